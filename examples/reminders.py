"""Messages for later: a delay in seconds, or a moment."""

import asyncio
from datetime import UTC, datetime, timedelta

from aerobee import connect


async def main() -> None:
    async with connect() as mq:
        await mq.send("reminders", b"in a second and a half", delay=1.5)
        in_two_seconds = datetime.now(UTC) + timedelta(seconds=2)
        await mq.send("reminders", b"at a moment", deliver_at=in_two_seconds)
        await mq.send("reminders", b"at once")

        begun = asyncio.get_running_loop().time()
        async with mq.consumer("reminders", group="sleeper") as inbox:
            left = 3
            async for message in inbox:
                waited = asyncio.get_running_loop().time() - begun
                print(f"{waited:4.1f} s: {message.body.decode()}")
                left -= 1
                if not left:
                    await message.ack()
                    break


asyncio.run(main())
