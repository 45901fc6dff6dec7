"""A cluster with a day's traces in it, seen by a console in a process of its own.

The cluster's side runs on a loop in a thread: Playwright keeps the test's own thread.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from aerobee_command import AEROBEE

from aerobee.client.client import Client
from aerobee.client.consuming.consumer import Consumer
from aerobee.client.consuming.options import ConsumerOptions
from aerobee.client.message import Message
from aerobee.client.producing.transactions import Verdict

T = TypeVar("T")
ORDERS = 240
UNREAD = 90
REGIONS = ("eu-west", "eu-north", "us-east")


class Loop:
    """An event loop in a thread, for what happens beside the browser."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float = 90) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ConsoleProcess:
    """`aerobee console` as a user starts it."""

    def __init__(self, url: str, *args: str) -> None:
        self.process = subprocess.Popen(
            [AEROBEE, "console", "--url", url, "--port", "0", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        late = threading.Timer(60, self.process.kill)
        late.start()
        line = self.process.stdout.readline()
        late.cancel()
        assert line.startswith("console at "), f"it said {line!r}: {self._errors()}"
        self.address = line.split()[2]

    def _errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def __enter__(self) -> ConsoleProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


class World:
    """What the pages show: topics, groups with and without members, dead letters, timers."""

    def __init__(self, mq: Client) -> None:
        self.mq = mq
        self.ids: list[str] = []
        self.stack = AsyncExitStack()
        self.billing: Consumer | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def fill(self) -> None:
        await self.mq.admin.create_topic("orders", queues=4)
        await self.mq.admin.create_topic("payments", queues=2)
        await self.mq.admin.create_topic("shipments", queues=2)
        await self.mq.admin.create_topic("reminders", queues=1)
        for number in range(ORDERS - UNREAD):
            self.ids.append((await self._order(number)).message_id)
        await self._read_once("mailer", "orders", ORDERS - UNREAD)
        for number in range(ORDERS - UNREAD, ORDERS):
            self.ids.append((await self._order(number)).message_id)
        await self._join("billing")
        await self._dead_letters()
        await self._timers()
        await self._open_transaction()

    async def _order(self, number: int) -> Any:
        body = {
            "order": f"o-{number}",
            "amount": 20 + number * 7 % 400,
            "currency": "EUR",
            "lines": [{"sku": f"A-{number % 17}", "quantity": 1 + number % 3}],
        }
        return await self.mq.send(
            "orders",
            json.dumps(body).encode(),
            tag="paid" if number % 3 else "new",
            key=f"o-{number}",
            properties={"region": REGIONS[number % 3], "amount": str(body["amount"])},
        )

    async def _read_once(self, group: str, topic: str, count: int) -> None:
        """A group that has read some messages and is gone."""
        async with self.mq.consumer(topic, group=group) as inbox:
            for _ in range(count):
                await (await asyncio.wait_for(inbox.get(), 60)).ack()

    async def _join(self, group: str) -> None:
        options = ConsumerOptions(commit_interval=0.5)
        self.billing = await self.stack.enter_async_context(
            self.mq.consumer("orders", group=group, options=options)
        )

        async def work(inbox: Consumer) -> None:
            async for message in inbox:
                await message.ack()

        assert self.billing is not None
        self._tasks.append(asyncio.create_task(work(self.billing)))

    async def _dead_letters(self) -> None:
        reasons = ("card declined by the bank", "no such customer", "ledger is read-only")
        for number in range(6):
            body = f'{{"payment":"p-{number}","amount":{number * 10}}}'.encode()
            await self.mq.send("payments", body, key=f"p-{number}", tag="card")
        async with self.mq.consumer("payments", group="ledger") as inbox:
            for number in range(6):
                message: Message = await asyncio.wait_for(inbox.get(), 60)
                await message.reject(reasons[number % 3])

    async def _timers(self) -> None:
        for number in range(40):
            delay = 600 + number * number * 3.0
            await self.mq.send("reminders", b"call back", key=f"r-{number}", delay=delay)

    async def _open_transaction(self) -> None:
        producer = self.mq.transactions(
            "shipments", group="warehouse", check=lambda _message: Verdict.UNKNOWN
        )
        await self.stack.enter_async_context(producer)
        async with producer.begin(b'{"shipment":"s-1"}', key="s-1") as half:
            half.verdict = Verdict.UNKNOWN

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.stack.aclose()
