"""The compiled path beside the one in Python: same bytes in, same bytes out, on disk too.

Thousands of random requests in random slices, plain ones, odd ones and damaged ones, while files
roll, the disk fails, puts are refused, the clock is set back and answers wait.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from aerobee.broker.compiled import hot
from aerobee.broker.fast.compiled_path import CompiledPath, CutDecoder, rules
from aerobee.broker.fast.hot_path import HotPath
from aerobee.broker.store.dispatch.dispatch_block import Derived
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.log.facts import Facts
from aerobee.broker.store.log.rows import EncodedRows
from aerobee.broker.store.reading.plain_read import Taken, take_compiled
from aerobee.broker.store.results import BatchPut, PutStatus
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame
from two_ways.in_process import Fed
from two_ways.requests import each_odd_request, framed
from two_ways.twins import stored

pytestmark = pytest.mark.skipif(hot is None, reason="this installation is pure Python")

CODECS = (JSON, ROCKETMQ, MSGPACK)
STATUSES = [PutStatus.PUT_OK] * 4 + [PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.UNKNOWN_ERROR]
NAMES = ["DELAY", "a", "MY_UNIQ_KEY", "__CRC32#"]
KEYS = ["7F000001000018B4AAC20000000000%02X", "k%d", '"%d', "\\%d", "ü%d", "x" * 260 + "%d"]
VALUES = ["TagA", "k1 k2", "", "a b", '"', "\\", "\t", "ü", "\U0001f41d", "UNIQ_KEY", "v" * 300]


def usual(draw: random.Random, opaque: int, tame: bool = False) -> bytes:
    """As clients send it, with what varies from one to the next; `tame`: nothing that a dispatch
    of many at once leaves to the one of each."""
    keys = [key for key in KEYS if key.isascii() or not tame]
    values = [value for value in VALUES if value.isascii() or not tame]
    codec = draw.choice(CODECS)
    key = draw.choice(KEYS[:1] * 9 + keys) % (opaque & 255)
    text = f"UNIQ_KEY\x01{key}\x02WAIT\x01{draw.choice(['true'] * 9 + ['false'])}"
    if draw.random() < 0.5:
        text = f"KEYS\x01{draw.choice(values)}\x02{text}\x02TAGS\x01{draw.choice(values)}"
    if draw.random() < 0.1:
        text += f"\x02{draw.choice(NAMES[tame:])}\x011"
    ext: dict[str, object] = {
        "a": "pg",
        "b": draw.choice(["Known"] * 8 + ["Other", ""]),
        "c": "TBW102",
        "d": "4",
        "e": str(draw.choice([0, 1, 2, 3, 3, 3, 9, -1])),
        "f": draw.choice(["0"] * 9 + ["1", "4", "16", "1024"]),
        "g": "1700000000000",
        "h": draw.choice(["0", "7", "-1"]),
        "i": text + draw.choice(["", "\x02"]),
        "j": draw.choice(["0"] * 9 + ["3"]),
        "k": "false",
        "m": "false",
    }
    if draw.random() < 0.1:
        ext["l"] = draw.choice(["16", "x"])
    if draw.random() < 0.1:  # bare numbers
        ext |= {name: int(str(ext[name])) for name in "defghj"}
    if draw.random() < 0.1:
        names = list(ext)
        draw.shuffle(names)
        ext = {name: ext[name] for name in names}
    body = draw.choice([b"", b"body", bytes(63), bytes(64), b"x" * 1000, b"y" * 4096, b"z" * 5000])
    flag = draw.choice([0] * 9 + [2])
    if codec == JSON:
        code = 310
        fields = {"code": code, "extFields": ext, "flag": flag, "language": "JAVA"}
        rest = {"opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 453}
        header = json.dumps(
            fields | rest, separators=(",", ":"), ensure_ascii=draw.random() < 0.5
        ).encode()
        return framed(JSON, header + draw.choice([b"", b"", b"\n", b" "]), body)
    if codec == MSGPACK and draw.random() < 0.5:
        return framed(MSGPACK, msgpack.packb((310, flag, opaque, 0, 453, None, ext)), body)
    texts = {name: str(value) for name, value in ext.items()}
    return encode_frame(Command(310, texts, body, opaque, flag, None, "JAVA", 453, codec))


def batch(draw: random.Random, opaque: int, tame: bool) -> bytes:
    """As producers that batch send it, with an odd message now and then."""
    values = [value for value in VALUES if value.isascii() or not tame]
    odd = ["", "WAIT\x01false\x02", "a\x01b", "KEYS\x01", "__CRC32#\x01x\x02", "DELAY\x010\x02"]
    parts = []
    for number in range(draw.randrange(1, 9)):
        text = f"UNIQ_KEY\x01{opaque}-{number}\x02KEYS\x01{draw.choice(values)}\x02WAIT\x01true\x02"
        if draw.random() < 0.05:
            text = draw.choice(odd)
        elif draw.random() < 0.5:
            text += f"TAGS\x01{draw.choice(values)}"
        body = draw.choice([b"", b"body", bytes(100)]) if draw.random() < 0.99 else bytes(5000)
        parts.append((draw.choice([0, 7, -1]), body, text))
    body = encode_batch(parts)
    if draw.random() < 0.1:
        body = body[:-1] if draw.random() < 0.5 else bytes([body[0] ^ 1]) + body[1:]
    ext = {
        "a": "pg",
        "b": "Known",
        "c": "TBW102",
        "d": "4",
        "e": str(draw.randrange(4)),
        "m": "true",
    }
    ext |= {"f": draw.choice(["0"] * 9 + ["4", "1"]), "g": "1700000000000", "h": "0", "j": "0"}
    if draw.random() < 0.5:
        plain = ["", "WAIT\x01true", "UNIQ_KEY\x01whole\x02"]
        ext["i"] = draw.choice([*plain, "DELAY\x011\x02", "TRAN_MSG\x01true\x02"])
    return encode_frame(Command(320, ext, body, opaque, codec=draw.choice(CODECS)))


def pull(draw: random.Random, opaque: int) -> bytes:
    """Of all messages of a queue, from anywhere, some or many, now and then few bytes."""
    ext = {
        "consumerGroup": "cg",
        "topic": "Known",
        "queueId": str(draw.randrange(4)),
        "queueOffset": str(draw.choice([0, 0, 1, draw.randrange(40), draw.randrange(400)])),
        "maxMsgNums": str(draw.choice([1, 2, 32, 32, 64, 100, 1000])),
        "sysFlag": draw.choice(["4", "5"]),
        "commitOffset": str(draw.randrange(9)),
        "suspendTimeoutMillis": "0",
        "subscription": draw.choice(["*"] * 4 + ["TagA"]),
        "subVersion": "0",
        "expressionType": "TAG",
    }
    if draw.random() < 0.3:
        ext["maxMsgBytes"] = str(draw.choice([1, 300, 2000, 100_000]))
    return encode_frame(Command(11, ext, b"", opaque, codec=draw.choice(CODECS)))


def damaged(draw: random.Random, frame: bytes) -> bytes:
    """Another byte somewhere in the header; the lengths stay as they are."""
    data = bytearray(frame)
    end = 8 + int.from_bytes(frame[5:8], "big")
    for _ in range(draw.randrange(1, 3)):
        data[draw.randrange(8, end)] = draw.choice([draw.randrange(256), 0, 34, 48, 92, 125, 255])
    return bytes(data)


def is_sound(frame: bytes) -> bool:
    """Whether the general decoder can read it. The fast ones do not look at what they skip, so
    that for others it matters whether a frame begins a run."""
    try:
        decode_command(*FrameDecoder().feed(frame)[0])
    except ProtocolError:
        return False
    return True


def bursts(draw: random.Random, tame: bool) -> Iterator[bytes]:
    odd = odd_sends()
    opaque = draw.choice([0, 100, 2**31 - 5000, -(2**31), -130, 65000])
    while True:
        frames = []
        for _ in range(draw.randrange(1, 24)):
            opaque += 1
            kind = draw.random()
            if kind < 0.1:
                frames.append(batch(draw, opaque, tame))
            elif kind < 0.8 or tame:
                frames.append(usual(draw, opaque, tame))
            elif kind < 0.9:
                frames.append(draw.choice(odd))
            elif is_sound(frame := damaged(draw, usual(draw, opaque, tame))):
                frames.append(frame)
        yield b"".join(frames)


def slices(draw: random.Random, data: bytes) -> list[bytes]:
    if draw.random() < 0.5:
        return [data]
    cuts = sorted(draw.randrange(len(data) + 1) for _ in range(draw.randrange(1, 5)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def odd_sends() -> list[bytes]:
    """To topics that are there: when a new one is on disk depends on a thread."""
    asked = [each for codec in CODECS for some in each_odd_request(codec) for each in some]
    return [
        each.frame for each in asked if "Known" in each.shown and each.shown[:2] in ("31", "10")
    ]


def frames_of(answers: bytes) -> list[bytes]:
    """In one order: those that waited may come before others. Refusals name the file, in each's
    own folder."""
    frames = FrameDecoder().feed(answers)
    return sorted(header.replace(b"/two/", b"/one/") + body for _, header, body in frames)


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
    reader = way.broker.store._reader
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
@pytest.mark.parametrize("seed", range(2))
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


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("codec", CODECS)
async def test_the_batches_of_a_read_are_put_together_however_long_the_turn_was(
    tmp_path: Path, codec: int, waits: bool
) -> None:
    """What is put off is read in Python, at three times the cost."""
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


def test_frames_are_cut_alike_in_any_slices() -> None:
    draw = random.Random(1)
    for _ in range(300):
        data = b"".join(usual(draw, number) for number in range(draw.randrange(1, 9)))
        if draw.random() < 0.3:
            at = draw.randrange(len(data))
            data = data[:at] + draw.randbytes(9) + data[at:]
        python, compiled = FrameDecoder(1 << 20), CutDecoder(1 << 20)
        for piece in slices(draw, data):
            found, wanted = compiled.feed(piece), python.feed(piece)
            assert list(found) == wanted and len(found) == len(wanted)
            assert list(found) == wanted, "they can be gone through once only"
            assert compiled.pending == python.pending
            assert compiled.header_missing == python.header_missing
            assert str(compiled.error) == str(python.error)
