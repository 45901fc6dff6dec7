"""Requests made at random, sound and damaged, as they come in one read."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import msgpack

from aerobee.broker.store.results import PutStatus
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame
from two_ways.requests import each_odd_request, framed

CODECS = (JSON, ROCKETMQ, MSGPACK)
STATUSES = [PutStatus.PUT_OK] * 4 + [PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.UNKNOWN_ERROR]
NAMES = ["DELAY", "a", "MY_UNIQ_KEY", "__CRC32#"]
KEYS = ["7F000001000018B4AAC20000000000%02X", "k%d", '"%d', "\\%d", "ü%d", "x" * 260 + "%d"]
VALUES = ["TagA", "k1 k2", "", "a b", '"', "\\", "\t", "ü", "\U0001f41d", "UNIQ_KEY", "v" * 300]


def usual(draw: random.Random, opaque: int, tame: bool = False) -> bytes:
    """As clients send it, with what varies from one to the next; `tame`: nothing that the
    batch dispatch leaves to the single one."""
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
    """Whether the general decoder can read it. The fast ones do not validate what they skip, so
    other frames depend on whether one begins a run."""
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
    """Sorted, because deferred answers may be reordered. Refusals name a file, in each broker's
    own folder."""
    frames = FrameDecoder().feed(answers)
    return sorted(header.replace(b"/two/", b"/one/") + body for _, header, body in frames)
