"""The same client for programs without asyncio."""

from aerobee.sync import connect

with connect() as mq:
    mq.send("letters", b"dear reader", tag="personal")
    with mq.consumer("letters", group="household") as inbox:
        for message in inbox:
            print(f"received {message.body.decode()!r}")
            message.ack()
            break
