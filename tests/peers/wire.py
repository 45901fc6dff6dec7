"""A remoting client of a page, on its own bytes: it shares no code with what it is used to test."""

from __future__ import annotations

import itertools
import json
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

_opaques = itertools.count(1)


@dataclass
class Answer:
    """One frame as it came, with the header as the JSON it was."""

    header: dict[str, Any]
    body: bytes
    raw_header: bytes = field(repr=False, default=b"")

    @property
    def code(self) -> int:
        return int(self.header["code"])

    @property
    def ext(self) -> dict[str, Any]:
        return self.header.get("extFields") or {}

    @property
    def is_response(self) -> bool:
        return bool(self.header["flag"] & 1)


def frame(header: dict[str, Any] | bytes, body: bytes = b"", *, compact: bool = False) -> bytes:
    """A frame with a JSON header; without spaces when compact, as Java's clients write it."""
    separators = (",", ":") if compact else None
    text = (
        header if isinstance(header, bytes) else json.dumps(header, separators=separators).encode()
    )
    return struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body


class Wire:
    """One connection; requests by JSON header, answers matched by opaque, the rest kept apart."""

    def __init__(self, address: str, timeout: float = 10.0, *, compact: bool = False) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.unasked: list[Answer] = []
        self._compact = compact

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, code: int, ext: dict[str, Any], body: bytes = b"", **header: Any) -> int:
        opaque = int(header.pop("opaque", next(_opaques)))
        fields = {"code": code, "language": "CPP", "version": 63, "opaque": opaque, "flag": 0}
        text = {**fields, "extFields": ext, **header}
        self.socket.sendall(frame(text, body, compact=self._compact))
        return opaque

    def receive(self) -> Answer:
        length, mark = struct.unpack(">iI", self._exactly(8))
        assert mark >> 24 == 0, f"the header is not JSON but type {mark >> 24}"
        text = self._exactly(mark & 0xFFFFFF)
        return Answer(json.loads(text), self._exactly(length - 4 - len(text)), text)

    def request(self, code: int, ext: dict[str, Any], body: bytes = b"", **header: Any) -> Answer:
        opaque = self.send(code, ext, body, **header)
        while True:
            answer = self.receive()
            if answer.is_response and answer.header["opaque"] == opaque:
                return answer
            self.unasked.append(answer)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError(f"closed after {len(data)} of {count} bytes")
            data += piece
        return bytes(data)


def has_route(namesrv: str, topic: str) -> bool:
    """Whether the name server knows the topic; False too while nobody listens there yet."""
    try:
        with Wire(namesrv, timeout=5) as wire:
            return wire.request(105, {"topic": topic}).code == 0
    except OSError:
        return False


def pull_ext(topic: str, queue_id: int = 0, offset: int = 0, **more: str) -> dict[str, str]:
    """The fields of PULL_MESSAGE with the subscription inside, without waiting."""
    fields = {
        "consumerGroup": "cg",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return fields | more
