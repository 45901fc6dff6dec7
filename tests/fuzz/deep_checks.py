"""What must hold of the compiled decoders for any bytes; the first byte says which of them reads.

What C takes, the path in Python must read the same way: frames, the sends of three codecs, signed
ones, batches, pulls that repeat one before, the records of a log. What C does not take, Python
looks at in any case. `fuzz_deep.py` calls `check` some thousand times a second, guided by what the
input reaches in C.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from aerobee.broker import compiled
from aerobee.broker.fast.compiled_path import rules
from aerobee.broker.fast.hot_codecs import heads_by_codec
from aerobee.broker.fast.repeated_pulls import RepeatedPulls
from aerobee.broker.handlers.plain_batch import batch_rules
from aerobee.broker.handlers.send_batch import is_unusual_batch
from aerobee.broker.store.log.scan_block import read_block
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import decode_batch
from aerobee.protocol.files.record import decode_records
from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.command import JSON, Command
from aerobee.protocol.wire.frame import FRAME_SIZE_MAX, FrameDecoder, RawFrame, encode_frame
from aerobee.protocol.wire.headers import PullRequest, decode_ext, decode_send_v2
from aerobee.protocol.wire.signing import ACCESS_KEY, SIGNATURE, Credentials, signature

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

assert compiled.hot is not None, "there is no compiled part to look at"
hot: Any = compiled.hot
HOST: Final = bytes(8)
ADDED: Final = "x\x01y\x02"
ROOT: Final = Credentials("root", "the-secret-of-root")
SIGNATURE_SIZE: Final = 28
BASE: Final = 4096  # of the log file that records are read from
NOW_MS: Final = 1_700_000_000_000
PLACE: Final = struct.Struct(">q")
SIZE_AND_MAGIC: Final = struct.Struct(">ii")


class Queue:
    """Stands for the queue that a send goes to."""

    __slots__ = ("assigned", "queue_id", "topic", "topic_field")

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.topic_field = bytes([len(topic)]) + topic.encode()
        self.assigned = 0


PLAIN: Final = {topic: {k: Queue(topic, k) for k in range(4)} for topic in ("Fuzz", "Known")}
RULES: Final = rules(ADDED)
BATCH_RULES: Final = batch_rules()
SIGNER: Final = hot.Signer(ROOT.access_key.encode(), b"Fuzz", (ROOT.secret_key,))
HEADS: Final = heads_by_codec()
ONE_QUEUE: Final = Queue("Fuzz", 1)
VIEW: Final = memoryview(bytes(range(256)) * 16)


def sends(data: bytes) -> None:
    """Frames are cut as in Python, and the sends in them read as there."""
    frames = hot.Frames(data, FRAME_SIZE_MAX - 4)
    cut = list(frames)
    decoder = FrameDecoder()
    assert cut == decoder.feed(data), "frames are cut otherwise in C"
    assert frames.bad == (decoder.error is not None)
    cursor = iter(frames)
    at = 0
    while at < len(cut):
        run = cursor.sends(PLAIN, RULES, HOST, HOST, False)
        if run is None:
            next(cursor)
            at += 1
        else:
            same_sends(run, cut[at : at + len(run)])
            at += len(run)


def same_sends(run: _hot.Run, frames: list[RawFrame]) -> None:
    rows, marks = run[:], run.marks()
    assert 0 < len(rows) == len(marks) == len(frames)
    for row, mark, (codec, header, body) in zip(rows, marks, frames, strict=True):
        size, table = HEADS[codec]
        read = table[header[:size]][1](header)
        fields = read.extFields
        ended = properties.ended(fields.i)
        queue, taken, text, flag, sys_flag, born, _, _, times, _ = row
        assert (taken, text) == (body, ended + ADDED)
        assert (queue.topic, queue.queue_id) == (fields.b, fields.e)
        assert (flag, sys_flag, born, times) == (fields.h, fields.f, fields.g, fields.j)
        assert mark == (read.opaque, fields.e, read.flag, False, key_of(ended))
        assert not fields.m
    encoded(run)


def key_of(text: str) -> str | None:
    return properties.get(text, properties.UNIQ_KEY)


def encoded(run: _hot.Run) -> None:
    """The records that C makes of it are those messages."""
    rows = run[:]
    facts, records = run.encode(BASE, 0, 1 << 20, NOW_MS, True, 1 << 20, 32767)
    assert len(facts) == run.encoded
    messages = decode_records(records)
    assert len(messages) == run.encoded
    for message, row in zip(messages, rows, strict=False):
        assert bytes(message.body) == row[1]
        assert message.properties.startswith(row[2])
        assert (message.topic, message.queue_id) == (row[0].topic, row[0].queue_id)
        assert (message.flag, message.sys_flag, message.born_timestamp) == row[3:6]


def signed(data: bytes) -> None:
    """The first frame is given its right signature, where it has room for one."""
    cut = FrameDecoder().feed(data)
    for codec, header, body in cut[:1]:
        try:
            ext = decode_command(codec, header, body).ext
        except ProtocolError:
            continue
        given = ext.get(SIGNATURE, "")
        if len(given) == SIGNATURE_SIZE and given.isascii():
            right = signature(ext, body, ROOT.secret_key)
            data = data.replace(given.encode(), right.encode(), 1)
    cut = FrameDecoder().feed(data)
    run = iter(hot.Frames(data, FRAME_SIZE_MAX - 4)).sends(PLAIN, RULES, HOST, HOST, True, SIGNER)
    for codec, header, body in cut[: 0 if run is None else len(run)]:
        ext = decode_command(codec, header, body).ext
        assert ext[ACCESS_KEY] == ROOT.access_key
        assert ext[SIGNATURE] == signature(ext, body, ROOT.secret_key), "this is forged"
        assert ext.get("b", ext.get("topic")) == "Fuzz"


def batch(data: bytes) -> None:
    run = hot.batch(data, ONE_QUEUE, BATCH_RULES, 0, 1, 0, HOST, HOST)
    if run is not None:
        same_batch(run[:], data)
        encoded(run)
    if count := hot.sound_batch(data, b"", properties.PROPERTIES_SIZE_MAX):
        assert len(decode_batch(data)) == count


def same_batch(rows: list[Any], body: bytes) -> None:
    parts = decode_batch(body)
    assert [(row[3], row[1], row[2]) for row in rows] == parts


def batches(data: bytes) -> None:
    """Requests that carry batches."""
    frames = hot.Frames(data, FRAME_SIZE_MAX - 4)
    run = iter(frames).batches(PLAIN, BATCH_RULES, HOST, HOST, 1 << 20, is_unusual_batch, 16)
    if run is None:
        return
    encoded(run)
    rows = run[:]
    requests = run.requests(HOST)
    for (codec, header, body), told in zip(frames, requests, strict=False):
        command = decode_command(codec, header, body)
        read = decode_send_v2({"a": ""} | command.ext)
        assert told[:4] == (codec, command.opaque, command.flag, read.properties)
        assert (told[4].topic, told[4].queue_id) == (read.topic, read.queue_id)
        assert read.batch
        same_batch(rows[: told[7]], body)
        del rows[: told[7]]
    assert not rows


PULL: Final = Command(
    11,
    {
        "consumerGroup": "cg",
        "topic": "Fuzz",
        "queueId": "1",
        "queueOffset": "70",
        "maxMsgNums": "32",
        "sysFlag": "2",
        "commitOffset": "60",
        "suspendTimeoutMillis": "20000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    },
    opaque=5,
)
PULLS: Final = RepeatedPulls(FRAME_SIZE_MAX)
for _codec, _header, _body in FrameDecoder().feed(encode_frame(PULL)):
    PULLS.learn(_header)


def pull(data: bytes) -> None:
    found = PULLS.answer(data)
    if found is not None:
        [(codec, header, body)] = FrameDecoder().feed(data)
        command = decode_command(codec, header, body)
        fields = decode_ext(command.ext, PullRequest)
        assert PULLS.pull_of(found) == (command.opaque, command.flag, command.code, fields)


def records(data: bytes) -> None:
    """A log as another broker has sent it, or a disk has given it back."""
    view = memoryview(data)
    facts = hot.read_facts(view, BASE, 0, len(data), 50, lambda _topic, _id: ONE_QUEUE)
    whole = hot.whole_records(view, BASE, len(data) + 8)
    if facts or len(data) % 16 == 0:
        block = read_block(view, BASE, 0, len(data), 50, check_crc=False)
        assert facts.offsets() == [int(start) + BASE for start in block.start]
    at = 0
    while at < whole:
        assert PLACE.unpack_from(view, at + 28)[0] == BASE + at
        at += SIZE_AND_MAGIC.unpack_from(view, at)[0]
    assert at == whole <= len(data), "this is not where a record ends"


def entries(data: bytes) -> None:
    """Entries of a queue say where a pull's records are."""
    taken = hot.take_records(data, VIEW, 64, len(VIEW) - 64, 1024)
    if taken is not None:
        _, _, found, size, _ = taken
        assert len(found.joined(b"head")) == size + 4
        assert sum(map(len, found)) == size


TARGETS: Final[tuple[Callable[[bytes], None], ...]] = (
    sends,
    signed,
    batch,
    batches,
    pull,
    records,
    entries,
    sends,
)


def check(kind: int, data: bytes) -> None:
    TARGETS[kind % len(TARGETS)](data)


def seeds() -> list[bytes]:
    """A sound input of each kind, in each codec."""
    from mutate import FIELDS, TOPIC

    from aerobee.protocol.files.batch import encode_batch
    from aerobee.protocol.files.record import Message, encode_record

    body = encode_batch([(0, b"a" * 30, "KEYS\x01k\x02"), (3, b"", "UNIQ_KEY\x01u"), (0, b"c", "")])
    found = [b"\2" + body]
    v2 = {name: FIELDS[name] for name in "abcdefghij"}
    long = {"topic": TOPIC, "producerGroup": "pg", "defaultTopicQueueNums": "4", "queueId": "1"}
    long |= {"sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": v2["i"]}
    for codec in range(3):
        for code, ext in ((310, v2), (10, long)):
            frame = encode_frame(Command(code, ext, b"hello", 7, codec=codec))
            found += [b"\0" + frame, b"\0" + frame * 3]
            command = Command(code, dict(ext), b"hello", 7, codec=codec)
            ROOT.sign(command)
            found += [b"\1" + encode_frame(command) * number for number in (1, 3)]
        many = encode_frame(Command(320, v2 | {"m": "true"}, body, 7, codec=codec))
        found += [b"\3" + many, b"\3" + many * 2]
    frame = encode_frame(PULL)
    found.append(b"\4" + frame)
    assert frame[4] == JSON
    log = b""
    for number in range(3):
        message = Message(TOPIC, number, b"x" * 20, "KEYS\x01k\x02")
        log += encode_record(message, number, BASE + len(log), NOW_MS)
    found.append(b"\5" + log)
    entry = struct.Struct(">qiq")
    found.append(b"\6" + entry.pack(64, 100, 0) + entry.pack(164, 50, 0) + entry.pack(500, 9, 1))
    return found
