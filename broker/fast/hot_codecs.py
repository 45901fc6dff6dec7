"""The two busiest requests, send and pull, decoded in one step.

For an unusual header a decoder raises or returns None: the frame then takes the general path
(`protocol.codecs`), which has all the rules and the error messages. Nothing is refused here.
"""

import struct
from collections.abc import Callable, Collection
from typing import Any, Final, Generic, TypeVar

import msgspec

from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ
from aerobee.protocol.wire.headers import Int32, Int64, PullRequest

LayoutT = TypeVar("LayoutT")

SEND: Final = 1
PULL: Final = 2
UNUSUAL: Final = (msgspec.MsgspecError, ValueError, ProtocolError, struct.error, RecursionError)


class SendFields(msgspec.Struct, gc=False):
    """The fields of SEND_MESSAGE_V2 that a plain send needs, and all other numeric ones: if one is
    not a number, the send is unusual. In the order in which clients send them, which decodes
    fastest."""

    b: str  # topic
    d: Int32  # queues of a new topic
    e: Int32  # queue id
    f: Int32  # sys flag
    g: Int64  # born timestamp
    h: Int32 = 0  # flag
    i: str = ""  # properties
    j: Int32 = 0  # reconsume times
    l: Int32 | None = None  # most retries  # noqa: E741
    m: bool = False  # batch


class LongSendFields(msgspec.Struct, gc=False):
    """The same for SEND_MESSAGE."""

    b: str = msgspec.field(name="topic")
    d: Int32 = msgspec.field(name="defaultTopicQueueNums")
    e: Int32 = msgspec.field(name="queueId")
    f: Int32 = msgspec.field(name="sysFlag", default=0)
    g: Int64 = msgspec.field(name="bornTimestamp", default=0)
    h: Int32 = msgspec.field(name="flag", default=0)
    i: str = msgspec.field(name="properties", default="")
    j: Int32 = msgspec.field(name="reconsumeTimes", default=0)
    l: Int32 | None = msgspec.field(name="maxReconsumeTimes", default=None)  # noqa: E741
    m: bool = msgspec.field(name="batch", default=False)


class SendFrame(msgspec.Struct, gc=False):
    """A send's header."""

    opaque: Int32
    extFields: SendFields
    flag: Int32 = 0


class _LongSendFrame(msgspec.Struct, gc=False):
    opaque: Int32
    extFields: LongSendFields
    flag: Int32 = 0


class PullFrame(msgspec.Struct, gc=False):
    """A pull's header."""

    code: Int32
    opaque: Int32
    extFields: PullRequest
    flag: Int32 = 0


class _PackedSend(msgspec.Struct, gc=False, array_like=True):
    code: Int32
    flag: Int32
    opaque: Int32
    language: Int32
    version: Int32
    remark: str | None
    extFields: SendFields


class _PackedPull(msgspec.Struct, gc=False, array_like=True):
    code: Int32
    flag: Int32
    opaque: Int32
    language: Int32
    version: Int32
    remark: str | None
    extFields: PullRequest


def _json(kind: type[Any]) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind, strict=False).decode


def _packed(kind: type[Any]) -> Callable[[bytes], Any]:
    return msgspec.msgpack.Decoder(kind, strict=False).decode


class LearnedLayouts(Generic[LayoutT]):
    """Layouts of the headers of one connection, by header length."""

    __slots__ = ("_layouts", "_misses")

    LAYOUTS_MAX: Final = 8  # of one length
    LENGTHS_MAX: Final = 512
    MISSES_MAX: Final = 2000  # headers in random order (Go's maps) are not worth learning

    def __init__(self) -> None:
        self._layouts: dict[int, list[LayoutT]] = {}
        self._misses = 0

    def _remember(self, header: bytes, make: Callable[[], LayoutT | None]) -> None:
        """Learn from a header that matched no layout."""
        self._misses += 1
        if self._misses >= self.MISSES_MAX or len(self._layouts) >= self.LENGTHS_MAX:
            return
        known = self._layouts.setdefault(len(header), [])
        layout = make() if len(known) < self.LAYOUTS_MAX else None
        if layout is not None:
            known.insert(0, layout)


class BinarySends(LearnedLayouts["_Layout"]):
    """Decodes the sends of one connection that come in ROCKETMQ's binary header.

    The headers of one producer differ only in opaque, queue id, time and properties. For each
    header length the bytes of the other fields are cached; a header with the same bytes is decoded
    by one `struct`, in a third of the time of the general path.
    """

    __slots__ = ()

    def decode(self, header: bytes) -> SendFrame | None:
        layouts = self._layouts.get(len(header))
        if layouts is not None:
            for layout in layouts:
                start, opaque, one, queue, two, born, three, properties, end = layout.unpack(header)
                queue_id = QUEUE_IDS.get(queue)
                if (
                    (start, one, two, three, end) == layout.same
                    and queue_id is not None
                    and born.isdigit()
                ):
                    return SendFrame(
                        opaque,
                        SendFields(
                            layout.topic,
                            layout.topic_queues,
                            queue_id,
                            layout.sys_flag,
                            int(born),
                            layout.flag,
                            properties.decode(),
                            layout.reconsume_times,
                            layout.retries_max,
                            layout.batch,
                        ),
                        layout.frame_flag,
                    )
        return self._learn(header)

    def _learn(self, header: bytes) -> SendFrame | None:
        command = decode_command(ROCKETMQ, header)
        fields = msgspec.convert(command.ext, SendFields, strict=False)
        self._remember(header, lambda: _layout(header, fields, command.flag))
        return SendFrame(command.opaque, fields, command.flag)


class _Layout:
    """Positions of a header's changing fields, and the bytes between them."""

    __slots__ = (
        "batch",
        "flag",
        "frame_flag",
        "reconsume_times",
        "retries_max",
        "same",
        "sys_flag",
        "topic",
        "topic_queues",
        "unpack",
    )

    def __init__(self, form: str, header: bytes, fields: SendFields, frame_flag: int) -> None:
        self.unpack = struct.Struct(form).unpack
        self.same = self.unpack(header)[0::2]
        self.topic = fields.b
        self.topic_queues = fields.d
        self.sys_flag = fields.f
        self.flag = fields.h
        self.reconsume_times = fields.j
        self.retries_max = fields.l
        self.batch = fields.m
        self.frame_flag = frame_flag


QUEUE_IDS: Final = {b"%d" % number: number for number in range(4096)}
_REMARK_AT: Final = 13
_CHANGING: Final = (b"e", b"g", b"i")  # in Java's (alphabetical) order; each once
_DIGITS_MAX: Final = 18  # always less than 2**63


def changing_spans(header: bytes, changing: Collection[bytes]) -> list[tuple[bytes, int, int]]:
    """Name, position and length of each changing field in a valid header."""
    (remark_length,) = struct.unpack_from(">i", header, _REMARK_AT)
    position = _REMARK_AT + 4 + remark_length
    (ext_length,) = struct.unpack_from(">i", header, position)
    position += 4
    spans: list[tuple[bytes, int, int]] = []
    if position + ext_length != len(header):
        return spans  # no more fields
    while position < len(header):
        (name_length,) = struct.unpack_from(">h", header, position)
        name = header[position + 2 : position + 2 + name_length]
        position += 2 + name_length
        (length,) = struct.unpack_from(">i", header, position)
        position += 4
        if name in changing:
            spans.append((name, position, length))
        position += length
    return spans


def _layout(header: bytes, fields: SendFields, frame_flag: int) -> _Layout | None:
    """The layout of a valid header; None when it is unusual."""
    spans = changing_spans(header, _CHANGING)
    if tuple(name for name, _, _ in spans) != _CHANGING or spans[1][2] > _DIGITS_MAX:
        return None
    form, at = ">5si", 9
    for _, start, length in spans:
        form += f"{start - at}s{length}s"
        at = start + length
    return _Layout(f"{form}{len(header) - at}s", header, fields, frame_flag)


# Codec -> length of the prefix that identifies a send or a pull; prefix -> kind, decoder, code.
JSON_HEAD_SIZE: Final = 12
JSON_HEADS: Final = {
    b'{"code":310,': (SEND, _json(SendFrame), 310),
    b'{"code":10,"': (SEND, _json(_LongSendFrame), 10),
    b'{"code":11,"': (PULL, _json(PullFrame), 11),
    b'{"code":361,': (PULL, _json(PullFrame), 361),
}
PACKED_HEADS: Final = {
    b"\x97\xcd\x01\x36": (SEND, _packed(_PackedSend), 310),
    b"\x97\xcd\x01\x69": (PULL, _packed(_PackedPull), 361),
}
BINARY_SEND_HEAD: Final = b"\x01\x36"

Head = tuple[int, Callable[[bytes], Any], int]
Heads = tuple[int, dict[bytes, Head]]


def heads_by_codec() -> tuple[Heads, Heads, Heads]:
    """For each codec the table of one connection: prefix of the header -> kind, decoder, code."""
    tables: dict[int, Heads] = {
        JSON: (JSON_HEAD_SIZE, JSON_HEADS),
        ROCKETMQ: (2, {BINARY_SEND_HEAD: (SEND, BinarySends().decode, 310)}),
        MSGPACK: (4, PACKED_HEADS),
    }
    return tables[JSON], tables[ROCKETMQ], tables[MSGPACK]
