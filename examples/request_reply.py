"""A question and its answer: the consumer replies to the client that asked."""

import asyncio

from aerobee import Message, connect


async def price(message: Message) -> None:
    await message.reply(b"3.20" if message.body == b"coffee" else b"not on the menu")


async def main() -> None:
    async with connect() as mq, mq.consumer("prices", group="waiter") as inbox:
        running = asyncio.create_task(inbox.run(price))
        for drink in (b"coffee", b"petrol"):
            reply = await mq.request("prices", drink, timeout=10)
            print(f"{drink.decode()}: {reply.body.decode()}")
        await inbox.close()
        await running


asyncio.run(main())
