"""A pool of workers: a callback, at most four at a time; failures are retried after a delay."""

import asyncio

from aerobee import Message, connect

JOBS = 20


async def main() -> None:
    done: list[int] = []
    finished = asyncio.Event()

    async def work(message: Message) -> None:
        number = int(message.body)
        await asyncio.sleep(0.01)
        if number == 7 and message.reconsume_times == 0:
            print("job 7 fails the first time and is retried")
            await message.retry(delay=1)
            return
        done.append(number)
        if len(done) == JOBS:
            finished.set()

    async with connect() as mq:
        for number in range(JOBS):
            await mq.send("jobs", b"%d" % number)
        async with mq.consumer("jobs", group="workers") as inbox:
            running = asyncio.create_task(inbox.run(work, concurrency=4))
            await finished.wait()
            await inbox.close()  # lets running callbacks end and commits what is finished
            await running
    print(f"{len(done)} jobs done, the last one was {done[-1]}")


asyncio.run(main())
