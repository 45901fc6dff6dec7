"""RocketMQ's remoting protocol and record format: bytes to values and back, without any I/O."""
