"""Send a message and receive it. Start a broker first: `aerobee broker`."""

import asyncio

from aerobee import connect


async def main() -> None:
    async with connect() as mq:  # mq://127.0.0.1:9876, or what AEROBEE_URL says
        receipt = await mq.send("greetings", b"hello, world", tag="friendly", key="greeting-1")
        print(f"stored {receipt.message_id} in queue {receipt.queue.queue_id}")

        async with mq.consumer("greetings", group="quickstart") as inbox:
            async for message in inbox:
                print(f"received {message.body.decode()!r} with tag {message.tag}")
                await message.ack()
                break


asyncio.run(main())
