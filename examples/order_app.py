"""A small shop with all that the SDK has: it survives its broker's restarts and kills.

Orders are placed in a transaction with SQLite; three billing workers ask for prices by
request-reply and fail now and then; the life of each order is a sequence of events in order;
reminders come later; notices go to every reader; a thread without asyncio reads the reminders.
"""

import asyncio
import sqlite3
import sys
import threading
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from aerobee import JSON, AerobeeError, Client, ConsumerOptions, Message, Verdict, connect
from aerobee.sync import connect as connect_blocking

STATES = ("billed", "packed", "shipped")
TOPICS = {
    "shop-orders": 8,
    "shop-events": 4,
    "shop-prices": 2,
    "shop-reminders": 2,
    "shop-notices": 1,
}


class OrderApp:
    """The shop and its books; `check` says what is missing in them."""

    def __init__(self, url: str | None, folder: Path, *, rate: float = 50.0) -> None:
        self.url = url
        self.pause = 1 / rate
        self.folder = folder
        self.database = sqlite3.connect(folder / "shop.db", check_same_thread=False)
        self.database.execute("CREATE TABLE placed (id INTEGER PRIMARY KEY)")
        self.database.execute("CREATE TABLE billed (id INTEGER PRIMARY KEY, price REAL)")
        self.events: defaultdict[int, list[str]] = defaultdict(list)
        self.reminded: set[int] = set()
        self.announced: set[int] = set()
        self.noticed: list[set[int]] = [set(), set()]
        self.deliveries: Counter[tuple[str, str, int]] = Counter()  # consumer, queue, offset
        self.in_hand: Counter[tuple[str, str, int]] = Counter()
        self.open = asyncio.Event()

    # -- producing

    async def place_orders(self, mq: Client) -> None:
        """Each order is in the database if and only if its message is."""
        async with mq.transactions("shop-orders", group="shop", check=self.was_placed) as orders:
            number = 0
            while self.open.is_set():
                number += 1
                try:
                    async with orders.begin({"order": number}, key=str(number)) as half:
                        if number % 10 == 3:
                            half.rollback()  # the customer left
                        else:
                            self.insert("placed", number)
                        if number % 10 == 7:
                            raise RuntimeError("after the commit: the check knows that it counts")
                except (AerobeeError, RuntimeError):
                    pass
                await asyncio.sleep(self.pause)

    def was_placed(self, message: Message) -> Verdict:
        row = self.database.execute("SELECT 1 FROM placed WHERE id = ?", (message.value["order"],))
        return Verdict.COMMIT if row.fetchone() else Verdict.ROLLBACK

    async def send_for_sure(self, mq: Client, topic: str, value: dict, **options: object) -> None:
        """Until it is stored, perhaps twice: readers do not mind."""
        while True:
            try:
                await mq.send(topic, value, **options)
                return
            except AerobeeError:
                await asyncio.sleep(0.1)

    async def announce(self, mq: Client) -> None:
        number = 0
        while self.open.is_set():
            number += 1
            await self.send_for_sure(mq, "shop-notices", {"notice": number})
            self.announced.add(number)
            await asyncio.sleep(10 * self.pause)

    # -- consuming

    async def bill(self, message: Message, mq: Client) -> None:
        order = message.value["order"]
        if order % 10 == 5 and message.reconsume_times == 0:
            raise RuntimeError("the card reader is jammed; it is retried")
        reply = await mq.request("shop-prices", {"order": order}, timeout=10)
        self.insert("billed", order, reply.value["price"])
        for state in STATES:
            event = {"order": order, "state": state}
            await self.send_for_sure(mq, "shop-events", event, order_key=str(order))
        await self.send_for_sure(mq, "shop-reminders", {"order": order}, delay=1.0)

    async def tell_price(self, message: Message, _: Client) -> None:
        await message.reply({"price": message.value["order"] * 1.5})

    async def follow(self, message: Message, _: Client) -> None:
        self.events[message.value["order"]].append(message.value["state"])

    def read_reminders(self) -> None:
        """In a thread: blocking calls only."""
        with (
            connect_blocking(self.url, serializer=JSON) as mq,
            mq.consumer("shop-reminders", group="phone") as inbox,
        ):
            while self.open.is_set() or not self.is_settled():
                for message in inbox.get_batch(32, timeout=0.2):
                    self.reminded.add(message.value["order"])
                    message.ack()

    # -- running

    async def run(self, seconds: float | None = None) -> None:
        """Until `close` (or for so many seconds), and on until all that was placed is done."""
        self.open.set()
        async with AsyncExitStack() as stack:

            async def client() -> Client:
                opened = connect(self.url, serializer=JSON, wait=10)
                return await stack.enter_async_context(opened)

            shop = await client()
            for topic, queues in TOPICS.items():
                if topic not in await shop.admin.topics():
                    await shop.admin.create_topic(topic, queues=queues)

            async def serve(name: str, topic: str, group: str, handler: object, **how: object):
                mq = await client()
                inbox = await stack.enter_async_context(mq.consumer(topic, group=group, **how))

                async def handle(message: Message) -> None:
                    place = (name, str(message.queue), message.queue_offset)
                    self.deliveries[place] += 1
                    self.in_hand[place] += 1
                    try:
                        await handler(message, mq)
                    finally:
                        self.in_hand[place] -= 1

                return asyncio.create_task(inbox.run(handle, concurrency=4)), inbox

            again = ConsumerOptions(backoff=[0.3], commit_interval=1.0)
            served = [
                await serve("price", "shop-prices", "oracle", self.tell_price),
                *[
                    await serve("billing", "shop-orders", "shop-billing", self.bill, options=again)
                    for _ in range(3)
                ],
                await serve("follow", "shop-events", "follow", self.follow, orderly=True),
            ]
            for reader, seen in enumerate(self.noticed):

                async def note(message: Message, _: Client, seen: set[int] = seen) -> None:
                    seen.add(message.value["notice"])

                own = ConsumerOptions(state_path=self.folder / f"reader{reader}.json")
                how = {"broadcast": True, "start": "first", "options": own}
                served.append(
                    await serve(f"reader{reader}", "shop-notices", "readers", note, **how)
                )
            phone = threading.Thread(target=self.read_reminders, daemon=True)
            phone.start()
            producing = [
                asyncio.create_task(self.place_orders(shop)),
                asyncio.create_task(self.announce(await client())),
            ]
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, self.close)
            await asyncio.gather(*producing)
            await asyncio.to_thread(phone.join)  # it reads until every order has come to its end
            for task, inbox in served:
                await inbox.close()
                await task
        self.database.close()

    def close(self) -> None:
        """Take no more orders."""
        self.open.clear()

    # -- the books

    def insert(self, table: str, *row: float) -> None:
        """Committed at once, and before the transaction's block ends; twice is once."""
        with self.database:
            marks = ", ".join("?" * len(row))
            self.database.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)

    def ids(self, table: str) -> set[int]:
        return {row[0] for row in self.database.execute(f"SELECT id FROM {table}")}

    def is_settled(self) -> bool:
        """Whether every order that was placed has come to its end."""
        placed = self.ids("placed")
        return (
            placed == self.ids("billed") == self.reminded
            and all(set(self.events.get(order, ())) == set(STATES) for order in placed)
            and all(self.announced <= seen for seen in self.noticed)
        )

    def disorder(self) -> list[int]:
        """Orders whose events did not come in order, those that came again left out."""
        return [
            order for order, states in self.events.items() if tuple(dict.fromkeys(states)) != STATES
        ]


async def main() -> None:
    with TemporaryDirectory() as folder:
        app = OrderApp(None, Path(folder))
        await app.run(seconds=float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
        again = sum(count - 1 for count in app.deliveries.values())
        print(f"{len(app.events)} orders billed, packed, shipped; out of order: {app.disorder()}")
        print(f"{len(app.reminded)} reminders, {len(app.announced)} notices, {again} repeated")


if __name__ == "__main__":
    asyncio.run(main())
