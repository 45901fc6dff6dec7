"""A message that exists if and only if the database says so."""

import asyncio
import sqlite3

from aerobee import Message, Verdict, connect


async def main() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE payments (id TEXT PRIMARY KEY, order_id TEXT UNIQUE)")

    def pay(payment: str, order: str) -> None:
        with database:  # commits, and before the transaction's block ends
            database.execute("INSERT INTO payments VALUES (?, ?)", (payment, order))

    async def was_paid(message: Message) -> Verdict:
        """Asked after an exception, and by the broker when it has not heard of an end."""
        found = database.execute("SELECT 1 FROM payments WHERE id = ?", (message.keys[0],))
        return Verdict.COMMIT if found.fetchone() else Verdict.ROLLBACK

    async with connect() as mq:
        async with mq.transactions("payments", group="cashier", check=was_paid) as transactions:
            async with transactions.begin(b"order 1 is paid", key="p-1"):
                pay("p-1", "o-1")
            try:
                async with transactions.begin(b"order 1 is paid twice", key="p-2"):
                    pay("p-2", "o-1")  # refused
            except sqlite3.IntegrityError:
                print("the second payment failed, and so did its message")
            async with transactions.begin(b"order 2 is paid", key="p-3") as half:
                half.rollback()  # no money came

        async with mq.consumer("payments", group="shipping") as inbox:
            async for message in inbox:
                print(f"received: {message.body.decode()}")
                await message.ack()
                break
    database.close()


asyncio.run(main())
