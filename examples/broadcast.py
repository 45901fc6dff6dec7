"""Every reader gets every message; each keeps its own offsets in a file."""

import asyncio
import tempfile
from pathlib import Path

from aerobee import ConsumerOptions, connect


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with connect() as one, connect() as two:
            await one.admin.create_topic("news")
            readers = [
                mq.consumer(
                    "news",
                    group="readers",
                    broadcast=True,
                    options=ConsumerOptions(state_path=Path(folder) / f"{name}.json"),
                )
                for name, mq in (("one", one), ("two", two))
            ]
            async with readers[0] as first, readers[1] as second:
                await one.send("news", b"extra, extra")
                for name, inbox in (("one", first), ("two", second)):
                    message = await inbox.get()
                    print(f"reader {name} got {message.body.decode()!r}")
                    await message.ack()


asyncio.run(main())
