"""The same requests, signed by some users, or wrongly; Java's binary headers hold all twice."""

import itertools
import json
from collections.abc import Iterable

import msgpack

from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK
from aerobee.protocol.wire.frame import FrameDecoder
from aerobee.protocol.wire.signing import signature
from two_ways.requests import Asked, framed

# The mark behind each burst is not signed.
USERS = """
accounts:
  - {accessKey: root, secretKey: the-secret-of-root, type: Super}
  - {accessKey: other, secretKey: the-secret-of-other, policies: ["allow Topic:Other Pub,Sub"]}
  - {accessKey: away, secretKey: the-secret-of-away, type: Super, status: disable}
  - {accessKey: anonymous, policies: ["allow Cluster:* Get", "allow Topic:Other Pub"]}
"""
WAYS = ["root"] * 12 + ["other", "other", "away", "unknown", "wrong", ""]


def all_signed(script: Iterable[list[Asked]]) -> list[list[Asked]]:
    """By turns by each of the users, wrongly, or not at all."""
    turns = itertools.count()
    return [[_signed(asked, next(turns)) for asked in burst] for burst in script]


def _signed(asked: Asked, turn: int) -> Asked:
    way = WAYS[turn % len(WAYS)]
    if not way:
        return asked
    [(codec, header, body)] = FrameDecoder(64 << 20).feed(asked.frame)
    user = "root" if way == "wrong" else way
    ext = decode_command(codec, header).ext | {"AccessKey": user}
    secret = "another" if way == "wrong" else f"the-secret-of-{user}"
    more = {"AccessKey": user, "Signature": signature(ext, body, secret)}
    if codec == JSON:
        values = json.loads(header)
        values["extFields"] = {**values.get("extFields", {}), **more}
        made = json.dumps(values, separators=(",", ":")).encode()
    elif codec == MSGPACK:
        packed = msgpack.unpackb(header)
        packed[-1] |= more
        made = msgpack.packb(packed)
    else:
        made = _with_pairs(header, more, twice=turn % 2 == 1)
    return Asked(framed(codec, made, body), asked.opaque, f"{asked.shown} by {way}")


def _with_pairs(header: bytes, more: dict[str, str], *, twice: bool) -> bytes:
    at = 17 + int.from_bytes(header[13:17], "big")  # of the ext block's length
    pairs = header[at + 4 :] * (2 if twice else 1)
    for name, value in more.items():
        pairs += len(name).to_bytes(2, "big") + name.encode()
        pairs += len(value).to_bytes(4, "big") + value.encode()
    return header[:at] + len(pairs).to_bytes(4, "big") + pairs
