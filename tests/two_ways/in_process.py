"""One hot path on a real store, fed by hand: no socket, so that a test can ask it thousands of
times and let the store fail."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aerobee.broker.base.turns import Turns
from aerobee.broker.daemon.wiring import make_broker, make_front
from aerobee.broker.fast.hot_path import HotPath
from aerobee.broker.net.busy_poll import BusyPoll
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.feed import Feed, Limits
from aerobee.broker.net.outbox import Part
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.settings import Settings
from aerobee.broker.store.files.real_disk import RealDisk, RealFile
from aerobee.broker.store.reading.plain_read import take
from aerobee.broker.store.refusals import Cause
from aerobee.broker.store.results import PutStatus
from two_ways.twins import LOCAL, PEER, CountedIds, StandingClock


class _NoServer:
    limits = Limits()

    def __init__(self) -> None:
        self.busy_poll = BusyPoll(asyncio.get_running_loop())
        self.turns = Turns(slice_s=float("inf"))

    def opened(self, connection: Connection) -> bool:
        return True

    def refusal(self, connection: Connection) -> Feed | None:
        return None

    def lost(self, connection: Connection) -> None:
        return None

    def make_feed(self, connection: Connection) -> Feed:
        raise AssertionError("made by hand")


class _Collecting(Connection):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__(_NoServer())
        self.peer, self.local = PEER, LOCAL
        self.written: list[bytes] = []

    def write(self, parts: Sequence[Part]) -> None:
        self.written += map(bytes, parts)


class _FailingFile:
    def __init__(self, file: RealFile, disk: FailingDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, position: int, data: bytes) -> None:
        if self._disk.fails:
            self._file.write(position, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "no space left on the device", self._file.path)
        self._file.write(position, data)


class FailingDisk(RealDisk):
    """Writes of the log fail, half done, while `fails` says so."""

    fails = False

    def create(self, path: str, size: int) -> Any:
        file = super().create(path, size)
        return _FailingFile(file, self) if "/commitlog/" in path else file


class Fed:
    """A broker and the hot path of one connection to it."""

    def __init__(self, folder: Path, kind: type[HotPath], **settings: Any) -> None:
        self.folder = folder
        self.clock = StandingClock()
        self.disk = FailingDisk()
        self.copied = PutStatus.PUT_OK  # the status of each put that waits
        values: dict[str, Any] = {
            "store_path_root_dir": str(folder / "store"),
            "mapped_file_size_commit_log": 64 << 10,
            "mapped_file_size_consume_queue": 20 * 300,
            "max_message_size": 4096,
            "max_index_num": 700,
            "max_hash_slot_num": 100,
            "broker_ip1": "127.0.0.1",
        }
        self.broker = make_broker(Settings(**values | settings), self.clock, disk=self.disk)
        self.broker.turns.slice_s = float("inf")
        self.broker.addresses.port = LOCAL[1]
        self.broker.store.load()
        self.broker.topics.load()
        self.broker.groups.load()
        for topic in ("Known", "Other"):
            self.broker.topics.put(TopicConfig(topic, 4, 4))
        if kind is HotPath:
            self.broker.store.reput.dispatcher.derive = None
            self.broker.store.reput.facts.make = list
            self.broker.store.reput.facts.waiting = []
            self.broker.store.reader.take = take
        self._front = make_front(self.broker)
        self._front.sends.unique_ids = CountedIds()
        if kind is HotPath:
            self._front.sends.takes_plain_batches = False
        self._kind = kind
        self.connect()

    def connect(self) -> None:
        self.connection = _Collecting()
        front = self._front
        self.feed = self._kind(self.connection, front.dispatcher, 1 << 20, front.sends, front.pulls)

    def wait_for_copies(self) -> None:
        """From now on puts wait for copies, and are answered with the status `copied`."""
        self.broker.store.wait_for_copies(lambda _end, callback: callback(self.copied))

    def refuse(self, refused: bool) -> None:
        refusals = self.broker.store.refusals
        if refused:
            refusals.set(Cause.DISK_FULL, "the disk is full")
        else:
            refusals.clear(Cause.DISK_FULL)

    def said(self, data: bytes) -> tuple[bytes, dict[str, Any]]:
        """The bytes of all answers, in their order, and what the feed shows of itself."""
        answered = b"".join(self.feed.feed(data))
        written, self.connection.written = b"".join(self.connection.written), []
        shown = {
            "error": str(self.feed.error),
            "completed": self.feed.completed,
            "partial": self.feed.partial,
            "header missing": self.feed.header_missing,
            "waiting": self.connection.waiting,
        }
        return written + answered, shown

    def counted(self) -> dict[str, Any]:
        broker = self.broker
        store = broker.store.stats
        return {
            "latencies": {code: sum(each.counts) for code, each in broker.latencies.items()},
            "puts": {
                name: (each.nums, each.size, each.times)
                for name, each in broker.stats.put_counters()
            },
            "sizes": broker.stats.size_counts,
            "store": (store.puts, store.put_failures),
            "dispatched": (store.dispatched, broker.store.dispatched_offset),
            "log": broker.store.max_physical_offset,
        }
