"""Messages of one customer in their order, customers side by side."""

import asyncio

from aerobee import Message, connect

STEPS = ("created", "paid", "packed", "shipped")
CUSTOMERS = ("ada", "grace", "edsger")


async def main() -> None:
    histories: dict[str, list[str]] = {name: [] for name in CUSTOMERS}
    complete = asyncio.Event()

    async def note(message: Message) -> None:
        histories[message.keys[0]].append(message.body.decode())
        if all(len(history) == len(STEPS) for history in histories.values()):
            complete.set()

    async with connect() as mq:
        for step in STEPS:
            for customer in CUSTOMERS:
                await mq.send("order-steps", step.encode(), key=customer, order_key=customer)
        async with mq.consumer("order-steps", group="historian", orderly=True) as inbox:
            running = asyncio.create_task(inbox.run(note, concurrency=8))
            await complete.wait()
            await inbox.close()
            await running
    for customer, history in histories.items():
        print(f"{customer}: {' -> '.join(history)}")


asyncio.run(main())
