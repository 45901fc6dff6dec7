"""Answers to plain sends and pulls, made from templates: the same bytes that the general encoder
would write, without building a Command for each."""

import struct
from functools import lru_cache
from typing import Any, Final

import msgspec

from aerobee.protocol.command import JSON, LANGUAGES, MSGPACK, RESPONSE_FLAG, ROCKETMQ, VERSION

_LENGTHS: Final = struct.Struct(">II").pack
_PYTHON: Final = LANGUAGES.index("PYTHON")
_JSON_TAIL: Final = b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"

# The two length words of a JSON frame without a body, by the length of its header.
LENGTH_PREFIXES: Final = tuple(_LENGTHS(size + 4, size) for size in range(4096))


class SendAnswers:
    """The answer to a send that is stored and waits for nothing, in each codec.

    `id_head` is the store host in hexadecimal, with which the message's id begins.
    """

    def __init__(self, region: str, trace_on: bool) -> None:
        self._ext = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
        fixed = msgspec.json.encode(self._ext)[:-1].replace(b"%", b"%%")
        # Keys in the alphabet's order, as the general encoder writes them.
        self.json_template = (
            b'{"code":0,"extFields":'
            + fixed
            + b',"msgId":"%b%016X","queueId":"%d","queueOffset":"%d"},'
            + b'"flag":1,"language":"PYTHON","opaque":%d,'
            + _JSON_TAIL
        )
        self._binary: dict[tuple[int, int, int], tuple[Any, bytes, bytes, bytes, bytes]] = {}
        self._packed: dict[tuple[int, int, int], bytes] = {}
        self._by_codec = {JSON: self.json, ROCKETMQ: self.binary, MSGPACK: self.packed}

    def answer(
        self,
        codec: int,
        opaque: int,
        id_head: bytes,
        physical_offset: int,
        queue_id: int,
        queue_offset: int,
    ) -> bytes:
        return self._by_codec[codec](opaque, id_head, physical_offset, queue_id, queue_offset)

    def json(
        self, opaque: int, id_head: bytes, physical_offset: int, queue_id: int, queue_offset: int
    ) -> bytes:
        header = self.json_template % (id_head, physical_offset, queue_id, queue_offset, opaque)
        return LENGTH_PREFIXES[len(header)] + header

    def binary(
        self, opaque: int, id_head: bytes, physical_offset: int, queue_id: int, queue_offset: int
    ) -> bytes:
        message_id = b"%b%016X" % (id_head, physical_offset)
        queue, offset = b"%d" % queue_id, b"%d" % queue_offset
        key = (len(message_id), len(queue), len(offset))
        form = self._binary.get(key)
        if form is None:
            form = self._binary[key] = self._binary_form(*key)
        pack, start, one, two, three = form
        packed: bytes = pack(start, opaque, one, message_id, two, queue, three, offset)
        return packed

    def _binary_form(
        self, id_size: int, queue_size: int, offset_size: int
    ) -> tuple[Any, bytes, bytes, bytes, bytes]:
        def name(text: str, value_size: int) -> bytes:
            encoded = text.encode()
            return struct.pack(">h", len(encoded)) + encoded + struct.pack(">i", value_size)

        fixed = b"".join(
            name(key, len(value.encode())) + value.encode() for key, value in self._ext.items()
        )
        before_id = fixed + name("msgId", id_size)
        before_queue = name("queueId", queue_size)
        before_offset = name("queueOffset", offset_size)
        ext_size = len(before_id) + id_size + len(before_queue) + queue_size
        ext_size += len(before_offset) + offset_size
        header_size = 21 + ext_size
        start = _LENGTHS(header_size + 4, ROCKETMQ << 24 | header_size)
        start += struct.pack(">hBh", 0, _PYTHON, VERSION)
        one = struct.pack(">iii", RESPONSE_FLAG, 0, ext_size) + before_id
        form = struct.Struct(
            f">{len(start)}si{len(one)}s{id_size}s{len(before_queue)}s{queue_size}s"
            f"{len(before_offset)}s{offset_size}s"
        )
        return form.pack, start, one, before_queue, before_offset

    def packed(
        self, opaque: int, id_head: bytes, physical_offset: int, queue_id: int, queue_offset: int
    ) -> bytes:
        queue, offset = b"%d" % queue_id, b"%d" % queue_offset
        key = (len(id_head), len(queue), len(offset))
        template = self._packed.get(key)
        if template is None:
            template = self._packed[key] = self._packed_form(*key)
        return template % (
            opaque.to_bytes(4, "big", signed=True),
            id_head,
            physical_offset,
            queue,
            offset,
        )

    def _packed_form(self, id_head_size: int, queue_size: int, offset_size: int) -> bytes:
        def text(value: bytes | str) -> bytes:
            return msgspec.msgpack.encode(value if isinstance(value, str) else value.decode())

        def size(length: int) -> bytes:  # the head of a text of that length
            return text("x" * length)[:-length]

        id_size = id_head_size + 16
        body = bytes([0x97, 0, RESPONSE_FLAG, 0xD2]) + b"%b"
        tail = bytes([_PYTHON]) + msgspec.msgpack.encode(VERSION) + b"\xc0\x85"
        for key, value in self._ext.items():
            tail += text(key) + text(value).replace(b"%", b"%%")
        body += tail + text("msgId") + size(id_size) + b"%b%016X"
        body += text("queueId") + size(queue_size) + b"%b"
        body += text("queueOffset") + size(offset_size) + b"%b"
        example = body % (bytes(4), bytes(id_head_size), 0, bytes(queue_size), bytes(offset_size))
        lengths = _LENGTHS(len(example) + 4, MSGPACK << 24 | len(example))
        return lengths.replace(b"%", b"%%") + body


_FOUND_JSON: Final = (
    b'{"code":0,"extFields":{"maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d",'
    b'"suggestWhichBrokerId":"0"},"flag":1,"language":"PYTHON","opaque":%d,"remark":"FOUND",'
    + _JSON_TAIL
)


def found_head(
    opaque: int, next_offset: int, min_offset: int, max_offset: int, body_size: int
) -> bytes:
    """All but the body of a pull's answer with messages, in JSON."""
    header = _FOUND_JSON % (max_offset, min_offset, next_offset, opaque)
    size = len(header)
    return _LENGTHS(size + 4 + body_size, size) + header


@lru_cache(maxsize=64)
def send_answers(region: str, trace_on: bool) -> SendAnswers:
    return SendAnswers(region, trace_on)
