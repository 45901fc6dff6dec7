"""A whole broker inside the test's own loop, and a client that sends what it is told."""

from __future__ import annotations

import asyncio
import itertools
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
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.command import JSON, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame
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
    """Started on free ports with small files; stopped in order at the end."""
    values = SMALL | {"store_path_root_dir": str(folder / "store")} | settings
    app = AppBroker(Settings(**values), clock=clock, disk=disk)
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


class Client:
    """One connection. Answers are matched by opaque; what the broker asks is kept in `asked`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, codec: int
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.codec = codec
        self.asked: list[Command] = []
        self._decoder = FrameDecoder(64 << 20)
        self._opaques = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self.ended = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, app: AppBroker, codec: int = JSON) -> Self:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.broker_port)
        return cls(reader, writer, codec)

    async def _read(self) -> None:
        try:
            while data := await self.reader.read(1 << 20):
                for frame in self._decoder.feed(data):
                    self._received(decode_command(*frame))
        except ConnectionError:
            pass  # a reset ends a connection as well as a close does
        finally:
            if not self.ended.done():
                self.ended.set_result(None)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionResetError("the broker closed the connection"))
                    future.exception()

    def _received(self, command: Command) -> None:
        if not command.is_response:
            self.asked.append(command)
        elif (future := self._waiting.pop(command.opaque, None)) and not future.done():
            future.set_result(command)

    def command(self, code: int, ext: dict[str, str], body: bytes = b"", **rest: Any) -> Command:
        rest.setdefault("opaque", next(self._opaques))
        options: dict[str, Any] = {"codec": self.codec, "language": "JAVA"} | rest
        return Command(code, ext, body, **options)

    def expect(self, command: Command) -> asyncio.Future[Command]:
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = future
        return future

    async def request(
        self, code: int, ext: dict[str, str], body: bytes = b"", **rest: Any
    ) -> Command:
        return await self.ask(self.command(code, ext, body, **rest))

    async def ask(self, command: Command) -> Command:
        future = self.expect(command)
        self.writer.write(encode_frame(command))
        return await asyncio.wait_for(future, 60)

    async def ask_all(self, commands: list[Command]) -> list[Command]:
        """All in one write; the answers in the order of the requests."""
        futures = [self.expect(command) for command in commands]
        self.writer.write(b"".join(map(encode_frame, commands)))
        return await asyncio.wait_for(asyncio.gather(*futures), 30)

    async def close(self) -> None:
        self.writer.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


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
    """Whether a consumer would find so many."""
    return app.broker.store.max_offset(topic, queue_id) >= count
