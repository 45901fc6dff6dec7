"""A message that always fails ends among the dead letters, where it can be read."""

import asyncio

from aerobee import ConsumerOptions, connect


async def main() -> None:
    options = ConsumerOptions(max_retries=1)
    async with connect() as mq:
        await mq.send("parcels", b"no such address", key="parcel-1")
        async with mq.consumer("parcels", group="couriers", options=options) as inbox:
            for _ in range(2):
                message = await inbox.get()
                print(f"attempt {message.reconsume_times + 1} fails")
                await message.retry(delay=0.5)
        async for letter in mq.find("%DLQ%couriers"):
            print(f"dead letter of topic {letter.topic}: {letter.body.decode()}")
    # Replay them with: aerobee dlq replay couriers


asyncio.run(main())
