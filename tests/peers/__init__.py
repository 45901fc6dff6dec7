"""Real third-party peers for the tests: Apache RocketMQ and its clients in Java, Go and Node."""
