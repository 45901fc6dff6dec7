"""Records that the system takes from a file's map: what arrives is what is stored."""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile

import pytest
import uvloop

from aerobee.broker.compiled import hot
from aerobee.broker.net.outbox import Outbox
from aerobee.broker.store.files.system_calls import map_file
from aerobee.protocol.files.queue_entry import ENTRY

pytestmark = pytest.mark.skipif(hot is None, reason="this installation is pure Python")


def taken(view: memoryview, sizes: list[int], gap: int) -> tuple[object, bytes]:
    """Records of a map, and the same bytes."""
    assert hot is not None
    entries, parts, at = [], [], 0
    for size in sizes:
        entries.append(ENTRY.pack(at, size, 0))
        parts.append(bytes(view[at : at + size]))
        at += size + gap
    found = hot.take_records(b"".join(entries), view, 0, len(view), 1 << 30)
    return found[2], b"".join(parts)


@pytest.mark.parametrize("gap", [0, 7])
def test_a_socket_gets_head_and_records_also_when_it_takes_a_part(gap: int) -> None:
    """More than its buffer holds, from a reader that comes later."""
    draw = random.Random(gap)
    view = memoryview(draw.randbytes(64 << 10))

    async def main() -> tuple[list[bytes], bytes, int]:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 10)
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        outbox = Outbox()
        outbox.open(transport)
        wanted, gathered = [], 0
        for number in range(20):
            sizes = [draw.randrange(600, 2000) for _ in range(draw.randrange(1, 30))]
            records, body = taken(view, sizes, gap)
            head = b"head %d" % number
            part = records.answer(head)  # type: ignore[attr-defined]
            gathered += not isinstance(part, bytes)
            assert len(part) == len(head) + len(body)
            assert outbox.write((part,))
            wanted.append(head + body)
        assert outbox.unsent > 0, "the buffer took all: nothing was sent in parts"
        received = b""
        while len(received) < sum(map(len, wanted)):
            received += await asyncio.wait_for(loop.sock_recv(theirs, 1 << 16), 60)
        transport.close()
        theirs.close()
        return wanted, received, gathered

    wanted, received, gathered = uvloop.run(main())
    assert received == b"".join(wanted)
    assert gathered == 20


def test_small_records_are_copied() -> None:
    records, body = taken(memoryview(bytes(3 << 20)), [100] * 2000, 1)
    assert records.answer(b"head") == b"head" + body  # type: ignore[attr-defined]


def test_more_pieces_than_a_call_takes_go_by_several() -> None:
    draw = random.Random(2)
    view = memoryview(draw.randbytes(6 << 20))
    for count in (1022, 1023, 1024, 1025, 2046, 2047, 2048, 5000):
        records, body = taken(view, [draw.randrange(600, 1000) for _ in range(count)], 1)
        part = records.answer(b"head")  # type: ignore[attr-defined]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            received, sent = b"", part.write_to(ours.fileno())
            assert 0 < sent < len(part), "the buffer took all"
            with pytest.raises(BlockingIOError):
                while True:
                    received += theirs.recv(1 << 20)
            assert received == (b"head" + body)[:sent]
        with tempfile.TemporaryFile() as file:
            assert part.write_to(file.fileno()) == len(part)
            file.seek(0)
            assert file.read() == b"head" + body


def test_records_of_a_mapped_file_arrive_as_they_are_stored() -> None:
    """Their pages are passed through a pipe, of which a part is left when the socket is full."""
    draw = random.Random(4)
    with tempfile.TemporaryFile() as file:
        file.write(draw.randbytes(6 << 20))
        file.flush()
        view = map_file(file.fileno(), 6 << 20, random=False)
        for sizes, gap in (
            ([1000] * 15, 0),  # copied: too few
            ([1000] * 32, 0),
            ([1000] * 32, 9),
            ([100_000, 5000, 90_000], 1),
            ([600] * 400, 4000),  # more pages than the pipe has room for
            ([draw.randrange(600, 1000) for _ in range(5000)], 1),  # copied: too many
        ):
            records, body = taken(view, sizes, gap)
            part = records.answer(b"head")  # type: ignore[attr-defined]
            for _ in range(2):  # the second time what was left of the first one is gone
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                with ours, theirs:
                    ours.setblocking(False)
                    theirs.setblocking(False)
                    received, sent = b"", part.write_to(ours.fileno())
                    with pytest.raises(BlockingIOError):
                        while True:
                            received += theirs.recv(1 << 20)
                    assert received == (b"head" + body)[:sent]
                    assert sent > 4
                    assert sent == len(part) or len(part) > 100_000
                    assert b"".join(part.rest(sent)) == (b"head" + body)[sent:]


def test_a_closed_socket_takes_no_pages() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(1 << 16))
        file.flush()
        view = map_file(file.fileno(), 1 << 16, random=False)
        records, body = taken(view, [1000] * 32, 0)
        part = records.answer(b"head")  # type: ignore[attr-defined]
        assert part.write_to(-1) == 0
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert part.write_to(ours.fileno()) == len(part)
            assert theirs.recv(len(part), socket.MSG_WAITALL) == b"head" + body


def test_the_rest_of_an_answer_begins_where_the_socket_stopped() -> None:
    draw = random.Random(3)
    view = memoryview(draw.randbytes(1 << 20))
    for sizes in ([1000] * 4, [draw.randrange(600, 1000) for _ in range(200)]):
        records, body = taken(view, sizes, 1)
        part = records.answer(b"head")  # type: ignore[attr-defined]
        whole = b"head" + body
        ends = [4 + sum(sizes[:count]) for count in (0, 1, 2, len(sizes))]
        for sent in {
            0,
            3,
            4,
            5,
            *ends,
            *(end - 1 for end in ends),
            *draw.sample(range(4, 4000), 50),
        }:
            left = part.rest(sent)
            assert b"".join(left) == whole[sent:]
            assert all(map(len, left)) or sent == len(whole)


def test_a_closed_socket_takes_nothing() -> None:
    records, body = taken(memoryview(bytes(8192)), [1000] * 4, 1)
    part = records.answer(b"head")  # type: ignore[attr-defined]
    assert part.write_to(-1) == 0
    assert bytes(part) == b"head" + body
