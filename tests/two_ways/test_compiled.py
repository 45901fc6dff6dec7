"""The compiled path beside the one in Python: same bytes in, same bytes out, on disk too.

Thousands of random requests in random slices, plain ones, odd ones and damaged ones, while files
roll, the disk fails, puts are refused, the clock is set back and answers wait.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from effort import examples

from aerobee.broker.compiled import hot
from aerobee.broker.fast.compiled_path import CompiledPath, CutDecoder, rules
from aerobee.broker.fast.hot_path import HotPath
from aerobee.broker.store.dispatch.dispatch_block import Derived
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.log.facts import Facts
from aerobee.broker.store.log.rows import EncodedRows
from aerobee.broker.store.queues.consume_queue import KEPT_MAX, ConsumeQueue
from aerobee.broker.store.reading.plain_read import Taken, take_compiled
from aerobee.broker.store.results import BatchPut
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.files.queue_entry import ENTRY
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.command import JSON, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame
from two_ways.bursts import (
    CODECS,
    STATUSES,
    VALUES,
    bursts,
    damaged,
    frames_of,
    is_sound,
    pull,
    slices,
    usual,
)
from two_ways.in_process import Fed
from two_ways.requests import framed
from two_ways.twins import stored

pytestmark = pytest.mark.skipif(hot is None, reason="this installation is pure Python")


def count_derived(way: Fed) -> list[int]:
    """How many records each call of C's dispatch has taken, from now on."""
    counts: list[int] = []
    dispatcher = way.broker.store.reput.dispatcher
    derive = dispatcher.derive
    assert derive is not None

    def counting(facts: Any) -> Derived | None:
        made = derive(facts)
        counts.append(len(facts) if made is not None else 0)
        return made

    dispatcher.derive = counting
    return counts


def count_batches(way: Fed) -> list[int]:
    """Of how many messages each batch was that was encoded in C, from now on."""
    counts: list[int] = []
    store = way.broker.store
    put, put_one = store.put_whole, store.put_plain_batch

    def counting(rows: EncodedRows, topic: str) -> Facts:
        facts = put(rows, topic)
        counts.append(len(facts))
        return facts

    def counting_one(rows: EncodedRows, topic: str) -> BatchPut | None:
        """Those whose answers wait come by the general path."""
        stored = put_one(rows, topic)
        counts.append(len(rows) if stored is not None else 0)
        return stored

    store.put_whole, store.put_plain_batch = counting, counting_one
    return counts


def count_taken(way: Fed) -> list[int]:
    """How many messages each pull has brought whose records were taken in C, from now on."""
    counts: list[int] = []
    reader = way.broker.store.reader
    take = reader.take
    assert take is take_compiled

    def counting(entries: bytes, file: MappedFile, max_bytes: int) -> Taken | None:
        taken = take(entries, file, max_bytes)
        counts.append(taken[4] if taken is not None else 0)
        return taken

    reader.take = counting
    return counts


def alone(data: bytes) -> list[bytes]:
    return [framed(*frame) for frame in FrameDecoder().feed(data)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("append_crc", [True, False])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("seed", range(examples(2, share=1)))
async def test_both_answer_and_store_the_same(
    tmp_path: Path, seed: int, waits: bool, append_crc: bool
) -> None:
    draw = random.Random(f"{seed} {waits} {append_crc}")
    # Many records of one file are dispatched in C if all are tame; small files roll often.
    settings = {
        "enabled_append_prop_crc": append_crc,
        "write_without_mmap": waits,  # each way of writing with each of the others
        "mapped_file_size_commit_log": 64 << 10 if seed else 1 << 20,
    }
    ways = [
        Fed(tmp_path / name, kind, **settings)
        for name, kind in (("one", HotPath), ("two", CompiledPath))
    ]
    python, compiled = ways
    requests = bursts(draw, tame=seed == 0)
    derived = count_derived(compiled)
    put_batches = count_batches(compiled)
    taken = count_taken(compiled)
    for way in ways:
        if waits:
            way.wait_for_copies()
    for step in range(120):
        fails, refuses = draw.random() < 0.05, draw.random() < 0.05
        later_ms, status = draw.choice([0, 1, 1, 5, -3]), draw.choice(STATUSES)
        for way in ways:
            way.disk.fails, way.copied = fails, status
            way.clock.ms += later_ms
            way.refuse(refuses)
        burst = next(requests)
        if seed or step >= 80:  # not before: pulls have what waits dispatched, a few at a time
            burst += b"".join(pull(draw, number) for number in range(draw.randrange(4)))
        # What is said of a failure depends on which messages were written together, and they are
        # not the same for both where one is plain for Python only.
        for piece in alone(burst) if fails else slices(draw, burst):
            random.seed(step)  # queue ids that the broker chooses
            wanted = python.said(piece)
            random.seed(step)
            found = compiled.said(piece)
            assert frames_of(found[0]) == frames_of(wanted[0]), f"step {step}"
            assert found[1] == wanted[1], f"step {step}"
        for way in ways:
            way.disk.fails = False
            if step % 40 == 39:  # so many that they are dispatched in columns
                way.broker.store.reput.catch_up()
        assert compiled.counted() == python.counted(), f"step {step}"
    assert compiled.counted()["store"][0] > 500, "hardly anything was stored"
    assert sum(put_batches) > 20, "hardly any batch was put in C"
    assert sum(taken) > (40 if seed else 500), "hardly any message was pulled in C"
    assert seed or sum(derived) > 250, "hardly anything was dispatched in C"
    for way in ways:
        way.refuse(False)
        way.broker.store.close()
    assert stored(tmp_path / "two") == stored(tmp_path / "one")


async def test_damaged_headers_are_read_alike(tmp_path: Path) -> None:
    draw = random.Random(1)
    python = Fed(tmp_path / "one", HotPath)
    compiled = Fed(tmp_path / "two", CompiledPath)
    for opaque in range(3000):
        frame = usual(draw, opaque)
        if draw.random() < 0.7:
            frame = damaged(draw, frame)
        random.seed(opaque)
        wanted = python.said(frame)
        random.seed(opaque)
        found = compiled.said(frame)
        assert (frames_of(found[0]), found[1]) == (frames_of(wanted[0]), wanted[1]), frame
        for way in (python, compiled):
            if way.feed.error is not None:  # nothing more is read from such a client
                way.connect()
    assert compiled.counted() == python.counted()
    for way in (python, compiled):
        way.broker.store.close()
    assert stored(tmp_path / "two") == stored(tmp_path / "one")


async def test_headers_that_hardly_differ_are_read_alike(tmp_path: Path) -> None:
    """Those of one read and one client: the compiled path compares them with each other."""
    draw = random.Random(2)
    python = Fed(tmp_path / "one", HotPath)
    compiled = Fed(tmp_path / "two", CompiledPath)
    ways = (python, compiled)
    for step in range(400):
        flag, order, ending = draw.choice([0, 0, 2]), draw.random() < 0.3, draw.choice(["", "\n"])
        frames = []
        for opaque in range(draw.randrange(2, 12)):
            ext: dict[str, object] = {"b": "Known", "d": "4", "e": str(draw.randrange(5))}
            ext |= {"f": "0", "g": str(draw.choice([1700000000000, 17, -1, 10**18, 2**63]))}
            ext["i"] = f"UNIQ_KEY\x01{step}-{opaque}\x02TAGS\x01{draw.choice(VALUES)}"
            ext |= {"j": "0", "m": "false"}
            if order:
                ext = dict(reversed(ext.items()))
            if draw.random() < 0.1:
                ext["e"] = draw.choice([1, -1, "01", "", "1 ", "x", None, True, "1\\"])
            fields = {"code": 310, "extFields": ext, "flag": flag, "opaque": opaque, "version": 453}
            if draw.random() < 0.05:
                fields["opaque"] = str(opaque)
            header = json.dumps(fields, separators=(",", ":"), ensure_ascii=draw.random() < 0.5)
            frame = framed(JSON, (header + ending).encode(), b"body")
            if draw.random() < 0.1:
                frame = damaged(draw, frame)
            if is_sound(frame):
                frames.append(frame)
        random.seed(step)
        wanted = python.said(b"".join(frames))
        random.seed(step)
        found = compiled.said(b"".join(frames))
        assert (frames_of(found[0]), found[1]) == (frames_of(wanted[0]), wanted[1]), frames
        for way in ways:
            if way.feed.error is not None:
                way.connect()
    assert compiled.counted() == python.counted()
    for way in ways:
        way.broker.store.close()
    assert stored(tmp_path / "two") == stored(tmp_path / "one")


async def test_a_usual_send_takes_the_compiled_way(tmp_path: Path) -> None:
    """Else the comparison above would be of Python with itself."""
    assert hot is not None
    way = Fed(tmp_path, CompiledPath)
    draw = random.Random(1)
    fields = {"b": "Known", "d": "4", "f": "0", "g": "1"}
    for number in (*range(4), *range(4)):
        way.said(encode_frame(Command(310, fields | {"e": str(number)}, b"first")))
    sends = way.feed._sends
    taken = {codec: 0 for codec in CODECS}
    for opaque in range(2000):
        frame = usual(draw, opaque)
        frames = iter(hot.Frames(frame, 1 << 20))
        run = frames.sends(sends.plain, rules(sends.added), bytes(8), bytes(8), False)
        taken[frame[4]] += run is not None and len(run) == 1
    assert min(taken.values()) > 100, taken
    way.broker.store.close()


async def test_only_a_read_of_nothing_but_usual_sends_is_taken_as_a_whole(tmp_path: Path) -> None:
    assert hot is not None
    way = Fed(tmp_path, CompiledPath)
    fields = {"b": "Known", "d": "4", "f": "0", "g": "1", "i": "UNIQ_KEY\x01k\x02"}
    sends = [encode_frame(Command(310, fields | {"e": str(n % 4)}, b"x", n)) for n in range(8)]
    for send in sends:
        way.said(send)
    other = encode_frame(Command(11, {"topic": "Known"}))
    delayed = encode_frame(Command(310, fields | {"e": "0", "i": "DELAY\x011\x02"}, b"x"))
    plain, known = way.feed._sends.plain, rules(way.feed._sends.added)

    def taken(data: bytes) -> int:
        run = hot.sends_of(data, 1 << 20, plain, known, bytes(8), bytes(8), False)
        return 0 if run is None else len(run)

    whole = b"".join(sends)
    assert taken(whole) == 8 and taken(sends[0]) == 1
    assert not any(map(taken, (b"", whole[:-1], whole + b"\0", whole + other, other + whole)))
    assert not any(map(taken, (sends[0] + delayed + sends[1], whole + delayed, delayed)))
    assert not taken(whole + encode_frame(Command(310, fields | {"e": "1"}, b"x", codec=1)))
    before = way.feed.completed
    assert way.feed.feed(whole) and way.feed.completed - before == 8
    way.broker.store.close()


async def test_what_waits_for_the_disk_does_not_keep_the_bytes_in_which_it_came(
    tmp_path: Path,
) -> None:
    """10,000 requests of a connection may wait, each with a body of megabytes."""
    assert hot is not None
    way = Fed(tmp_path, CompiledPath)
    fields = {"b": "Known", "d": "4", "e": "0", "f": "0", "g": "1", "i": "UNIQ_KEY\x01k\x02"}
    read = b"".join(encode_frame(Command(310, fields, b"x", n)) for n in range(8))
    way.said(read)
    sends = way.feed._sends
    held = sys.getrefcount(read)
    run = hot.sends_of(read, 1 << 20, sends.plain, rules(sends.added), bytes(8), bytes(8), True)
    assert run is not None
    with pytest.raises(ValueError, match="not all are stored"):
        run.settle()
    encode = partial(run.encode, 0, 0, 1 << 20, 1, True, 1 << 20, 1 << 15)
    encode()
    stored_before = run.stored()
    assert sys.getrefcount(read) > held
    run.settle()
    assert sys.getrefcount(read) == held and run.stored() == stored_before
    with pytest.raises(ValueError, match="already"):
        encode()
    with pytest.raises(ValueError, match="gone"):
        run[:]
    way.broker.store.close()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("codec", CODECS)
async def test_the_batches_of_a_read_are_put_together_however_long_the_turn_was(
    tmp_path: Path, codec: int, waits: bool
) -> None:
    """What is deferred is read in Python, at three times the cost."""
    way = Fed(tmp_path, CompiledPath)
    if waits:
        way.wait_for_copies()
    fields = {"b": "Known", "d": "4", "e": "0", "f": "0", "g": "1", "i": ""}
    for number in (*range(4), *range(4)):
        way.said(encode_frame(Command(310, fields | {"e": str(number)}, b"first")))
    way.connection.turns.slice_s = 0.0
    assert not way.connection.turns.is_over()  # it begins
    counts = count_batches(way)
    body = encode_batch([(0, b"body", "a\x01b\x02")] * 8)
    batches = [
        encode_frame(
            Command(320, fields | {"e": str(number % 4), "m": "true"}, body, number, codec=codec)
        )
        for number in range(9)
    ]
    other = encode_frame(Command(320, fields | {"b": "Other", "m": "true"}, body, 9))
    answers = FrameDecoder().feed(way.said(b"".join([*batches, other]))[0])
    assert [decode_command(*each).code for each in answers] == [0] * 10
    assert counts[0] == 72, "one put for those to one topic"
    way.broker.store.close()


@pytest.mark.parametrize("by_tables", [False, True])
def test_the_checksum_is_zlibs(by_tables: bool) -> None:
    assert hot is not None
    draw = random.Random(1)
    data = draw.randbytes(5000)
    for size in [*range(300), *draw.choices(range(5000), k=200)]:
        start, begun = draw.randrange(64), draw.randrange(2**32)
        piece = data[start : start + size]
        assert hot.crc32(piece, begun, by_tables=by_tables) == zlib.crc32(piece, begun)
        joined = hot.crc32_joined(begun, zlib.crc32(piece), len(piece))
        assert joined == zlib.crc32(piece, begun)


def frames_or_damaged(draw: random.Random) -> bytes:
    """A few frames, at times with bytes in between that are none."""
    data = b"".join(usual(draw, number) for number in range(draw.randrange(1, 9)))
    if draw.random() < 0.3:
        at = draw.randrange(len(data))
        data = data[:at] + draw.randbytes(9) + data[at:]
    return data


def test_frames_are_cut_alike_in_any_slices() -> None:
    draw = random.Random(1)
    for _ in range(300):
        python, compiled = FrameDecoder(1 << 20), CutDecoder(1 << 20)
        for piece in slices(draw, frames_or_damaged(draw)):
            found, wanted = compiled.feed(piece), python.feed(piece)
            assert list(found) == wanted and len(found) == len(wanted)
            assert list(found) == wanted, "they can be gone through once only"
            assert compiled.pending == python.pending
            assert compiled.header_missing == python.header_missing
            assert str(compiled.error) == str(python.error)


def receive(inbox: Any, decoder: CutDecoder, piece: bytes) -> Any:
    """As the loop does: the decoder's buffer, what the socket gives, what was received."""
    with memoryview(inbox.room(decoder.begun)) as room:
        room[: len(piece)] = piece
        return decoder.receive(inbox, len(piece))


def test_frames_received_behind_their_beginning_are_cut_alike() -> None:
    assert hot is not None
    draw = random.Random(2)
    inbox = hot.Inbox(256 << 10)
    held: list[tuple[Any, list[Any]]] = []
    for _ in range(300):
        python, compiled = FrameDecoder(1 << 20), CutDecoder(1 << 20)
        for piece in slices(draw, frames_or_damaged(draw)):
            found, wanted = receive(inbox, compiled, piece), python.feed(piece)
            assert list(found) == wanted and len(found) == len(wanted)
            assert compiled.pending == python.pending
            assert compiled.header_missing == python.header_missing
            assert str(compiled.error) == str(python.error)
            if draw.random() < 0.1:
                held.append((found, wanted))  # requests that wait: later reads must not change them
        assert all(list(found) == wanted for found, wanted in held)
        del held[draw.randrange(len(held) + 1) :]


def test_a_frame_that_is_larger_than_the_inbox_is_cut_alike() -> None:
    assert hot is not None
    frame = framed(JSON, b"{}", bytes(600_000))
    python, compiled, inbox = FrameDecoder(1 << 20), CutDecoder(1 << 20), hot.Inbox(128 << 10)
    data = 3 * frame
    for start in range(0, len(data), 60_000):
        piece = data[start : start + 60_000]
        assert list(receive(inbox, compiled, piece)) == python.feed(piece)
        assert compiled.pending == python.pending


def test_an_inbox_is_bounded_and_has_one_reader() -> None:
    assert hot is not None
    with pytest.raises(ValueError, match="too small"):
        hot.Inbox(10)
    inbox = hot.Inbox(128 << 10)
    with pytest.raises(BufferError, match="no room"):
        memoryview(inbox)
    with pytest.raises(ValueError, match="not so many"):
        inbox.received(1)
    with memoryview(inbox.room(bytearray(b"begun"))) as room:
        assert inbox.begun == 5 and len(room) == (128 << 10) - 5
        with pytest.raises(BufferError, match="another"):
            inbox.room(bytearray())
        for wrong in (-1, len(room) + 1):
            with pytest.raises(ValueError, match="not so many"):
                inbox.received(wrong)
            with pytest.raises(ValueError, match="not so many"):
                inbox.frames(wrong, 100)
    with pytest.raises(ValueError, match="not so many"):
        hot.Frames(b"12345678", 100, 9)


def test_an_inbox_gives_its_memory_again_once_nobody_refers_to_it() -> None:
    assert hot is not None

    def place() -> int:
        with memoryview(inbox.room(bytearray())) as room:
            return ctypes.addressof(ctypes.c_char.from_buffer(room))

    inbox = hot.Inbox(128 << 10)
    first = place()
    assert place() == first
    frames = inbox.frames(0, 100)
    assert place() != first
    del frames


KEPT_STATE = ("notes", "kept", "write_position", "max_offset", "max_physical_offset", "assigned")


class QueueOfNotes(ConsumeQueue):
    """A queue whose file is a list of what was written."""

    __slots__ = ("notes",)

    def __init__(self, written: int, end: int) -> None:
        self.notes: list[tuple[str, int, bytes]] = []
        self.kept = b""
        self.write_position, self.write_end = 20 * written, 20 * end
        self.max_offset = self.assigned = written
        self.max_physical_offset = -1

    def write_kept(self) -> None:
        self.notes.append(("kept", self.write_position - len(self.kept), self.kept))
        self.kept = b""

    def put_run(self, entries: bytes) -> None:
        self.notes.append(("run", self.write_position, entries))


def test_entries_of_many_queues_are_kept_alike() -> None:
    assert hot is not None
    draw = random.Random(5)
    python, compiled = (
        [QueueOfNotes(number % 7, number % 7 + 10 * (number % 9)) for number in range(90)]
        for _ in range(2)
    )
    for _ in range(60):
        runs = [
            b"".join(
                ENTRY.pack(draw.randrange(1 << 62), draw.randrange(1 << 31), draw.randrange(9))
                for _ in range(draw.choice((0, 1, 1, 1, 2, 40)))
            )
            for _ in python
        ]
        for queue, entries in zip(python, runs, strict=True):
            if entries:
                queue.keep(entries)
            queue.assigned = max(queue.assigned, queue.max_offset)
        hot.keep_entries(list(zip(compiled, runs, strict=True)), KEPT_MAX)
        for one, other in zip(python, compiled, strict=True):
            assert all(getattr(one, name) == getattr(other, name) for name in KEPT_STATE)
    assert {kind for queue in python for kind, _, _ in queue.notes} == {"kept", "run"}
    with pytest.raises(ValueError, match="whole"):
        hot.keep_entries([(compiled[0], b"short")], KEPT_MAX)
