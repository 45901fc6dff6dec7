"""Connections: slices, deadlines, backpressure, hostile and slow peers, requests of ours, stops."""

import asyncio
import os
import struct
from collections.abc import Iterator
from functools import partial
from operator import length_hint
from pathlib import Path
from typing import Any

import pytest
from peers.echo import Echo, ended
from peers.in_process import Client, has_stored, pull_ext, running_broker, send_ext
from structlog.testing import capture_logs
from waiting import until

from aerobee.broker.base.turns import Turns
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.fast.hot_path import HotPath
from aerobee.broker.net.feed import Limits
from aerobee.protocol.files.record import decode_records
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import FrameDecoder, RawFrame, encode_frame

# --- frames in any slices


async def test_a_request_sent_byte_by_byte_is_answered() -> None:
    async with Echo() as server:
        client = await server.connect()
        command = client.command(1, {"say": "hello"})
        answer = client.expect(command)
        for byte in encode_frame(command):
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await asyncio.wait_for(answer, 5)).ext == {"echo": "hello"}
        await client.close()


async def test_ten_thousand_requests_in_one_write_are_all_answered() -> None:
    async with Echo() as server:
        client = await server.connect()
        commands = [client.command(1, {"say": str(n)}) for n in range(10_000)]
        answers = await client.ask_all(commands)
        assert [answer.ext["echo"] for answer in answers] == [str(n) for n in range(10_000)]
        await client.close()


class CountedBytes(bytes):
    """Counts the bytes that are copied out of a read."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, bytes):
            return found
        CountedBytes.copied += len(found)
        return CountedBytes(found)


class CountedFrames(list[RawFrame]):
    """Counts the frames that are read or copied."""

    seen = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        CountedFrames.seen += len(found) if isinstance(key, slice) else 1
        return CountedFrames(found) if isinstance(key, slice) else found

    def __iter__(self) -> Iterator[RawFrame]:
        return CountedIterator(super().__iter__())


class CountedIterator:
    def __init__(self, frames: Iterator[RawFrame]) -> None:
        self._frames = frames

    def __iter__(self) -> Iterator[RawFrame]:
        return self

    def __next__(self) -> RawFrame:
        CountedFrames.seen += 1
        return next(self._frames)

    def __length_hint__(self) -> int:
        return length_hint(self._frames)


class CountedDecoder(FrameDecoder):
    def feed(self, data: bytes) -> list[RawFrame]:
        return CountedFrames(super().feed(data))


async def test_a_read_of_many_small_requests_is_gone_through_once(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rescanning the rest for each request would be quadratic."""
    await client.request(310, send_ext("Orders"), b"x")
    assert app._server is not None
    [connection] = app._server.connections
    feed = connection._feed
    assert isinstance(feed, HotPath)
    monkeypatch.setattr(feed, "_decoder", CountedDecoder())
    monkeypatch.setattr(feed, "_turns", Turns(slice_s=60.0))
    monkeypatch.setattr(CountedBytes, "copied", 0)
    monkeypatch.setattr(CountedFrames, "seen", 0)
    count = 1000
    read = CountedBytes(encode_frame(Command(9999, flag=2)) * count)
    before = feed.completed
    feed.feed(read)
    assert feed.completed - before == count and not feed.kept_back
    assert count <= CountedFrames.seen <= 2 * count
    assert len(read) // 2 < CountedBytes.copied <= 2 * len(read)


async def test_an_unknown_code_and_a_broken_handler_are_answered() -> None:
    async with Echo() as server:
        client = await server.connect()
        unknown, broken, good = await client.ask_all(
            [client.command(77, {}), client.command(2, {}), client.command(1, {"say": "x"})]
        )
        assert (unknown.code, unknown.remark) == (3, " request type 77 not supported")
        assert (broken.code, broken.remark) == (1, "RuntimeError: planted")
        assert good.ext == {"echo": "x"}
        await client.close()


async def test_two_connections_never_mix_their_bytes(app: AppBroker) -> None:
    clients = [await Client.connect(app) for _ in range(4)]
    await clients[0].request(310, send_ext("Orders"))
    frames = []
    for number, client in enumerate(clients):
        body = bytes([65 + number]) * 3000
        commands = [client.command(310, send_ext("Orders", number), body) for _ in range(20)]
        frames.append((client, b"".join(map(encode_frame, commands)), commands))
    answers = [client.expect(each) for client, _, commands in frames for each in commands]
    longest = max(len(data) for _, data, _ in frames)
    for start in range(0, longest, 700):
        for client, data, _ in frames:
            client.writer.write(data[start : start + 700])
        await asyncio.sleep(0)
    assert {answer.code for answer in await asyncio.gather(*answers)} == {0}
    for number in range(4):
        await until(partial(has_stored, app, "Orders", number, 20))
        answer = await clients[0].request(11, pull_ext("Orders", number))
        bodies = {bytes(message.body) for message in decode_records(answer.body)}
        assert bodies - {b""} == {bytes([65 + number]) * 3000}
    for client in clients:
        await client.close()


# --- hostile bytes


def frame_of(header: bytes) -> bytes:
    return struct.pack(">iI", 4 + len(header), len(header)) + header


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes.fromhex("1603010200010001fc0303"),
        struct.pack(">iI", -1, 0),
        struct.pack(">iI", 2**31 - 1, 0),
        struct.pack(">iI", 8, 9 << 24),
        struct.pack(">iI", 8, 100),
        struct.pack(">iI", 6, 2) + b"{}",
        struct.pack(">iI", 6, 2) + b"\xff\xff",
        os.urandom(4096),
    ],
)
async def test_bytes_that_are_no_frame_close_their_own_connection_only(data: bytes) -> None:
    async with Echo() as server:
        good, bad = await server.connect(), await server.connect()
        before = good.request(1, {"say": "before"})
        assert (await before).ext == {"echo": "before"}
        commands = [bad.command(1, {"say": str(n)}) for n in range(5)]
        answers = [bad.expect(command) for command in commands]
        bad.writer.write(b"".join(map(encode_frame, commands)) + data)
        told = await asyncio.wait_for(asyncio.gather(*answers), 5)
        assert [answer.ext["echo"] for answer in told] == ["0", "1", "2", "3", "4"]
        await ended(bad)
        assert (await good.request(1, {"say": "after"})).ext == {"echo": "after"}
        await good.close()
        await bad.close()


async def test_bytes_that_are_no_frame_are_said_once_though_answers_are_still_due() -> None:
    async with Echo(Limits(waiting_max=2)) as server:
        client = await server.connect()
        await client.request(1, {})
        [connection] = server.seen
        connection.waits_begin(3)
        with capture_logs() as logs:
            client.writer.write(b"GET / HTTP/1.1")
            connection.data_received(b"GET / HTTP/1.1")  # already read before the pause
            for _ in range(3):
                connection.waits_end()
                await asyncio.sleep(0.01)
            await ended(client)
        assert sum("not a valid frame" in line["event"] for line in logs) == 1
        await client.close()


@pytest.mark.parametrize("code", [310, 11, 34])
async def test_a_header_nested_too_deep_closes_the_connection_without_a_traceback(
    app: AppBroker, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = await Client.connect(app)
    depth = 100_000  # deeper than any Python's parser allows
    ext = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
    client.writer.write(frame_of(b'{"code":%d,"extFields":%s,"opaque":1}' % (code, ext)))
    await ended(client)
    await client.close()
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_response_that_nobody_asked_for_is_dropped() -> None:
    async with Echo() as server:
        client = await server.connect()
        client.writer.write(encode_frame(Command(0, opaque=4711, flag=1)))
        assert (await client.request(1, {"say": "still here"})).ext == {"echo": "still here"}
        await client.close()


async def test_a_client_that_half_closes_gets_its_answer() -> None:
    async with Echo() as server:
        client = await server.connect()
        command = client.command(1, {"say": "last words"})
        answer = client.expect(command)
        client.writer.write(encode_frame(command))
        client.writer.write_eof()
        assert (await asyncio.wait_for(answer, 5)).ext == {"echo": "last words"}
        await ended(client)
        await client.close()


@pytest.mark.parametrize("last", [b"", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_half_closed_client_gets_the_answers_that_wait_for_the_disk(
    tmp_path: Path, last: bytes
) -> None:
    async with running_broker(tmp_path, flush_disk_type="SYNC_FLUSH") as app:
        client = await Client.connect(app)
        await client.request(310, send_ext("Orders"))
        commands = [client.command(310, send_ext("Orders", queue)) for queue in (0, 0, -1)]
        answers = [client.expect(command) for command in commands]
        client.writer.write(b"".join(map(encode_frame, commands)) + last)
        if not last:
            client.writer.write_eof()
        told = await asyncio.wait_for(asyncio.gather(*answers), 5)
        assert [answer.code for answer in told] == [0, 0, 0]
        await ended(client)
        await client.close()


async def test_a_half_closed_client_gets_answers_that_are_too_large_to_be_made_at_once(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, mapped_file_size_commit_log=16 << 20) as app:
        client = await Client.connect(app)
        for _ in range(3):
            await client.request(310, send_ext("Orders"), bytes(1 << 20))
        app.broker.store.reput.catch_up()  # a pull returns only dispatched messages
        commands = [client.command(11, pull_ext("Orders")) for _ in range(6)]  # 18 MB of answers
        answers = [client.expect(command) for command in commands]
        client.writer.write(b"".join(map(encode_frame, commands)))
        client.writer.write_eof()
        told = await asyncio.wait_for(asyncio.gather(*answers), 10)
        assert [len(answer.body) > 3 << 20 for answer in told] == [True] * 6
        await ended(client)
        await client.close()
