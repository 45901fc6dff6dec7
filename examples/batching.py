"""Send many messages fast: a buffer, batches, and receipts for those who want them."""

import asyncio
import time

from aerobee import connect

COUNT = 20_000


async def main() -> None:
    async with connect() as mq:
        begun = time.perf_counter()
        async with mq.producer("measurements", linger=0.005) as producer:
            for number in range(COUNT):
                # Returns once it is in the buffer; waits while the buffer is full.
                delivery = await producer.send(b"reading %d" % number, key=f"sensor-{number % 50}")
            receipt = await delivery.receipt()  # only the last one's, here
        seconds = time.perf_counter() - begun  # leaving the block has sent everything
        print(f"{COUNT} messages stored in {seconds:.2f} s")
        print(f"the last one is at {receipt.queue_offset} of queue {receipt.queue.queue_id}")


asyncio.run(main())
