"""Brokers that differ in nothing but the way their requests go: fast where it can, in Python or
compiled, or general.

All have the same clock, which stands still, see the same addresses and make the same unique ids,
so that every byte they answer and store can be compared.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from peers.in_process import running_broker
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.compiled import hot
from aerobee.broker.daemon import wiring
from aerobee.broker.fast.compiled_path import CompiledPath
from aerobee.broker.fast.hot_path import HotPath
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.pull.pull import Pulls
from aerobee.broker.handlers.send import Sends
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.feed import Feed
from aerobee.broker.net.general_feed import GeneralFeed
from aerobee.broker.net.requests import Dispatcher
from aerobee.broker.services.groups.config import GroupConfig
from aerobee.broker.services.stats import Counter
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.protocol.files.ids import UniqueIds
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame
from two_ways.requests import Asked

PEER, LOCAL = ("127.0.0.1", 40000), ("127.0.0.1", 10911)
MARK = 2**31 - 1
START_MS = 1_700_000_000_000
SETTINGS: dict[str, Any] = {
    "max_message_size": 4096,
    "mapped_file_size_commit_log": 128 << 10,
    "enable_property_filter": True,
    "broker_ip1": "127.0.0.1",
}
FEEDS: dict[str, Callable[[Connection, Dispatcher, int, Sends, Pulls], Feed]] = {
    "fast": HotPath,
    "general": lambda connection, dispatcher, size_max, _sends, _pulls: GeneralFeed(
        connection, dispatcher, size_max
    ),
}
if hot is not None:
    FEEDS["compiled"] = CompiledPath
TOPICS = {"Known": 6, "Other": 6, "ReadOnly": 4, "WriteOnly": 2, "Ordered": 6}


class StandingClock(Clock):
    """The time of day that the test says; waits last as long as ever."""

    def __init__(self) -> None:
        self.ms = START_MS

    def now_ms(self) -> int:
        return self.ms


class CountedIds(UniqueIds):
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def next(self) -> str:
        return f"{next(self._numbers):032X}"


class Twin:
    """One of them, and the connection to it."""

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.broker = broker
        self._connection = connection
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder(64 << 20)

    async def answers(self, burst: Sequence[Asked]) -> dict[int, tuple[int, bytes, bytes]]:
        """The frames that answer these, by opaque; all that they cause has happened then."""
        waited = {asked.opaque for asked in burst} - {None}
        # An answer to this one, which comes after all others, shows that they were handled.
        mark = Command(RequestCode.GET_BROKER_RUNTIME_INFO, opaque=MARK)
        self._writer.write(b"".join(asked.frame for asked in burst) + encode_frame(mark))
        found: dict[int, tuple[int, bytes, bytes]] = {}
        while not found.keys() >= {MARK, *waited}:
            data = await asyncio.wait_for(self._reader.read(1 << 20), 20)
            assert data, f"the connection was closed after {burst}"
            for frame in self._decoder.feed(data):
                opaque = decode_command(*frame).opaque
                assert opaque not in found, "answered twice"
                found[opaque] = frame
        await until(self._is_quiet)
        del found[MARK]
        return found

    def _is_quiet(self) -> bool:
        store = self.broker.store
        dispatched = store.dispatched_offset == store.max_physical_offset
        return dispatched and not self._connection.waiting and not self.broker.long_polling

    def counted(self) -> dict[str, Any]:
        """Statistics, latencies by request code, progress of groups and what is configured."""
        broker = self.broker
        latencies = {code: sum(each.counts) for code, each in broker.latencies.items()}
        latencies.pop(RequestCode.GET_BROKER_RUNTIME_INFO)
        return {
            "latencies": {code: count for code, count in latencies.items() if count},
            "puts": {name: _numbers(each) for name, each in broker.stats.put_counters()},
            "gets": {tuple(key): _numbers(each) for *key, each in broker.stats.get_counters()},
            "all": (_numbers(broker.stats.broker_put), _numbers(broker.stats.broker_get)),
            "pulls": (broker.stats.pulls_found.nums, broker.stats.pulls_missed.nums),
            "sizes": broker.stats.size_counts,
            "offsets": broker.offsets._table,
            "topics": dict(broker.topics.all()),
        }


def _numbers(counter: Counter) -> tuple[int, int, int]:
    return counter.nums, counter.size, counter.times


@asynccontextmanager
async def twins(folder: Path, **settings: Any) -> AsyncIterator[tuple[list[Twin], StandingClock]]:
    """One for each of FEEDS, and the clock of all."""
    clock = StandingClock()
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(_twin(folder / way, clock, way, settings))
            for way in FEEDS
        ]
        yield made, clock


@asynccontextmanager
async def _twin(
    folder: Path, clock: Clock, way: str, settings: dict[str, Any]
) -> AsyncIterator[Twin]:
    connections: list[Connection] = []

    def feed(
        connection: Connection,
        dispatcher: Dispatcher,
        frame_size_max: int,
        sends: Sends,
        pulls: Pulls,
    ) -> Feed:
        connections.append(connection)
        connection.peer, connection.local = PEER, LOCAL
        sends.unique_ids = CountedIds()
        if way != "compiled":
            sends.takes_plain_batches = False
            sends.broker.store.reput.dispatcher.derive = None
        return FEEDS[way](connection, dispatcher, frame_size_max, sends, pulls)

    with mock.patch.object(wiring, "HotFeed", feed):
        async with running_broker(folder, clock, **SETTINGS | settings) as app:
            broker = app.broker
            broker.turns.slice_s = float("inf")  # nothing is deferred to a later turn
            broker.addresses.port = LOCAL[1]
            for name, perm in TOPICS.items():
                broker.topics.put(TopicConfig(name, 4, 4, perm, order=name == "Ordered"))
            await until(lambda: all(map(broker.topics.is_durable, TOPICS)))
            broker.groups.put(GroupConfig("Disabled", consume_enable=False))
            reader, writer = await asyncio.open_connection("127.0.0.1", app.broker_port)
            await until(lambda: connections)
            try:
                yield Twin(broker, connections[0], reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()


def stored(folder: Path) -> dict[str, bytes]:
    """The files of a store that is closed: the log, the queues and the index."""
    files = {}
    for part in ("commitlog", "consumequeue", "index"):
        for number, path in enumerate(sorted((folder / "store" / part).rglob("*"))):
            if path.is_file():
                # An index file's name is the time of its making.
                name = f"index {number}" if part == "index" else str(path.relative_to(folder))
                files[name] = path.read_bytes()
    return files
