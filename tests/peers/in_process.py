"""A whole broker inside the test's own loop, and a client that sends given requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from aerobee.broker.base.clock import Clock
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.settings import Settings
from aerobee.broker.store.durability.log_job import LogJob
from aerobee.broker.store.files.disk import Disk
from aerobee.protocol.files import properties
from aerobee.protocol.wire.command import JSON, Command
from aerobee.protocol.wire.frame import encode_frame
from peers.frame_client import FrameClient
from peers.wire import pull_ext as pull_ext

SMALL: dict[str, Any] = {
    "listen_port": 0,
    "namesrv_listen_port": -1,
    "metrics_exporter_type": "DISABLE",
    "broker_name": "broker-a",
    "mapped_file_size_commit_log": 4 << 20,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
    "disk_guard_enable": False,
}


@asynccontextmanager
async def running_broker(
    folder: Path, clock: Clock | None = None, *, disk: Disk | None = None, **settings: Any
) -> AsyncIterator[AppBroker]:
    """Started on free ports with small files; stopped cleanly at the end."""
    values = SMALL | {"store_path_root_dir": str(folder / "store")} | settings
    app = AppBroker(Settings(**values), clock=clock, disk=disk)
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


class Client(FrameClient):
    """Sends given requests; the broker's own requests are kept in `asked`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, codec: int = JSON
    ) -> None:
        super().__init__(reader, writer)
        self.codec = codec
        self.asked: list[Command] = []

    @classmethod
    async def connect(cls, app: AppBroker, codec: int = JSON) -> Self:
        client = await cls.open(app.broker_port)
        client.codec = codec
        return client

    def keep(self, command: Command) -> None:
        self.asked.append(command)

    def command(self, code: int, ext: dict[str, str], body: bytes = b"", **rest: Any) -> Command:
        rest.setdefault("opaque", next(self._opaques))
        options: dict[str, Any] = {"codec": self.codec, "language": "JAVA"} | rest
        return Command(code, ext, body, **options)

    async def request(
        self, code: int, ext: dict[str, str], body: bytes = b"", **rest: Any
    ) -> Command:
        return await self.ask(self.command(code, ext, body, **rest))

    async def ask(self, command: Command) -> Command:
        return await asyncio.wait_for(self.begin(command), 60)

    async def ask_all(self, commands: list[Command]) -> list[Command]:
        """All in one write; the answers in the order of the requests."""
        futures = [self.expect(command) for command in commands]
        self.writer.write(b"".join(map(encode_frame, commands)))
        return await asyncio.wait_for(asyncio.gather(*futures), 30)


def send_ext(topic: str, queue_id: int = 0, /, **more: str) -> dict[str, str]:
    """The fields of SEND_MESSAGE_V2 as Java's client fills them."""
    text = properties.encode({"UNIQ_KEY": "7F000001000018B4AAC2000000000001", "WAIT": "true"})
    fields = {
        "a": "pg",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": text.removesuffix("\x02"),
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return fields | more


@contextmanager
def held_sync(app: AppBroker) -> Iterator[None]:
    """Inside, what is appended does not get to the disk."""
    flush, release = app.broker.store.flush, threading.Event()
    real_sync = flush.sync

    def slow_sync(job: LogJob) -> LogJob:
        assert release.wait(20)
        return real_sync(job)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flush, "sync", slow_sync)
            yield
    finally:
        release.set()


def counted(app: AppBroker, table: str, key: str) -> int:
    """How many messages the broker has counted there."""
    found = app.broker.stats.find(table, key)
    assert found is not None
    return found[0].nums


def has_stored(app: AppBroker, topic: str, queue_id: int, count: int) -> bool:
    """Whether a consumer would find that many."""
    return app.broker.store.max_offset(topic, queue_id) >= count
