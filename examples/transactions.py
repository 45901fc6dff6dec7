"""A message that exists if and only if the database says so."""

import asyncio
import sqlite3

from aerobee import Message, Verdict, connect


async def main() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE payments (order_id TEXT PRIMARY KEY)")

    async def was_paid(message: Message) -> Verdict:
        """The broker asks this when it has not heard how a transaction ended."""
        row = database.execute(
            "SELECT 1 FROM payments WHERE order_id = ?", (message.keys[0],)
        ).fetchone()
        return Verdict.COMMIT if row else Verdict.ROLLBACK

    async with connect() as mq:
        async with mq.transactions("payments", group="cashier", check=was_paid) as transactions:
            async with transactions.begin(b"order 1 is paid", key="o-1"):
                database.execute("INSERT INTO payments VALUES ('o-1')")
            try:
                async with transactions.begin(b"order 1 is paid twice", key="o-1"):
                    database.execute("INSERT INTO payments VALUES ('o-1')")  # refused
            except sqlite3.IntegrityError:
                print("the second payment failed, and so did its message")

        async with mq.consumer("payments", group="shipping") as inbox:
            async for message in inbox:
                print(f"received: {message.body.decode()}")
                await message.ack()
                break
    database.close()


asyncio.run(main())
