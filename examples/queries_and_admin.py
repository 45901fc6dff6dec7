"""Find messages by key, id and time; look after topics and groups."""

import asyncio
import time

from aerobee import connect


async def main() -> None:
    async with connect() as mq:
        await mq.admin.create_topic("invoices", queues=2)
        receipt = await mq.send("invoices", b"invoice 42", key="i-42")
        async for message in mq.find("invoices", key="i-42"):
            print(f"by key: {message.body.decode()} stored at {message.stored_at:%H:%M:%S}")
        message = await mq.message(receipt.message_id, topic="invoices")
        print(f"by id: {message.body.decode()} at {message.queue_offset}")
        async for message in mq.find("invoices", since=time.time() - 60):
            print(f"of the last minute: {message.body.decode()}")

        async with mq.consumer("invoices", group="archive") as inbox:
            await (await inbox.get()).ack()
        print("lag:", sum(row.lag for row in await mq.admin.lag("archive", "invoices")))
        await mq.admin.reset("archive", "invoices", "first")
        print("lag after a reset:", sum(row.lag for row in await mq.admin.lag("archive")))
        print("topics:", ", ".join(await mq.admin.topics()))


asyncio.run(main())
