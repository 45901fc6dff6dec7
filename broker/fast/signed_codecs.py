"""Sends with access control, decoded in one step together with their signed content.

The signed text is the values of all ext fields in the order of their names. The fields that clients
usually send are read as texts into one struct in that order. A header with other fields, or with
unquoted numbers, is decoded in full. What cannot be decoded takes the general path.
"""

import struct
from collections.abc import Callable
from copy import copy
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from aerobee.broker.auth.signature import content_of
from aerobee.broker.fast.hot_codecs import (
    BINARY_SEND_HEAD,
    JSON_HEADS,
    PACKED_HEADS,
    QUEUE_IDS,
    SEND,
    Head,
    Heads,
    LearnedLayouts,
    LongSendFields,
    SendFields,
    changing_spans,
)
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ
from aerobee.protocol.wire.headers import Int32
from aerobee.protocol.wire.signing import (
    ACCESS_KEY,
    FRESH_CODE,
    FRESH_NUMBER,
    FRESH_TIME,
    SIGNATURE,
)

DIGITS_MAX: Final = 18  # always less than 2**63

if TYPE_CHECKING:
    Text = Any
else:
    Text = str  # read as a text, then replaced by its number


class SignedFields(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """All fields that clients send, in signing order; `l`, which only some send, and the signature
    come last."""

    AccessKey: str = ""
    SecurityToken: str = ""
    fresh_code: str = msgspec.field(default="", name=FRESH_CODE)
    fresh_number: str = msgspec.field(default="", name=FRESH_NUMBER)
    fresh_time: str = msgspec.field(default="", name=FRESH_TIME)
    a: str = ""
    b: str = ""
    c: str = ""
    d: str = ""
    e: Text = ""
    f: Text = ""
    g: Text = ""
    h: Text = ""
    i: str = ""
    j: Text = ""
    k: str = ""
    m: Text = ""
    n: str = ""
    l: str | None = None  # noqa: E741
    Signature: str = ""


class SignedSend(msgspec.Struct, gc=False):
    """A send's header and its signed content. The decoder sets the fields that no header may
    carry."""

    opaque: Int32
    extFields: SignedFields
    flag: Int32 = 0
    content: bytes = b""  # signed before the body


class _PackedSignedSend(msgspec.Struct, gc=False, array_like=True):
    code: Int32
    flag: Int32
    opaque: Int32
    language: Int32
    version: Int32
    remark: str | None
    extFields: SignedFields
    content: bytes = b""


_QUEUE_TEXTS: Final = {text.decode(): number for text, number in QUEUE_IDS.items()}
_Rest = tuple[int, int, int, bool]  # f, h, j, m
_values: Final = msgspec.structs.astuple
_D_F_H_J: Final = slice(8, 15, 2)  # places of fields
_M_N_L: Final = slice(16, 19)
_L_AT: Final = 18
_L_SIGNED_AT: Final = 16


def _signed(
    codec: int, decode: Callable[[bytes], SignedSend | _PackedSignedSend]
) -> Callable[[bytes], SignedSend | _PackedSignedSend]:
    """The decoder of one connection; tries `decode` first."""
    # Most sends of a read have the same millisecond, and most of a producer's are alike.
    last_born, last_born_ms = "0", 0
    last_head: tuple[Any, ...] = ()
    last_tail: tuple[Any, ...] = ()
    rest: _Rest = (0, 0, 0, False)

    def decoded(header: bytes) -> SignedSend | _PackedSignedSend:
        nonlocal last_born, last_born_ms, last_head, last_tail, rest
        try:
            send = decode(header)
            fields = send.extFields
            values = _values(fields)
            head, tail = values[_D_F_H_J], values[_M_N_L]
            if head != last_head or tail != last_tail:
                rest = _rest(head, tail)
                last_head, last_tail = head, tail
            if fields.g != last_born:
                last_born_ms = _born(fields.g)
                last_born = fields.g
            fields.e = _QUEUE_TEXTS[fields.e]
        except (msgspec.MsgspecError, ValueError, KeyError):  # a field is missing or not a number
            return _in_full(codec, header, SendFields)
        fields.g = last_born_ms
        fields.f, fields.h, fields.j, fields.m = rest
        most_retries = tail[-1]
        if most_retries is None:
            send.content = "".join(values[:_L_AT]).encode()
        else:
            signed = (*values[:_L_SIGNED_AT], most_retries, *values[_L_SIGNED_AT:_L_AT])
            send.content = "".join(signed).encode()
        return send

    return decoded


def _rest(head: tuple[Any, ...], tail: tuple[Any, ...]) -> _Rest:
    """The fields that are equal in most sends of a producer, parsed by the general rules."""
    texts = dict(zip("dfhj", head, strict=True)) | {"m": tail[0], "l": tail[-1]}
    fields = msgspec.convert(texts | {"b": "", "e": "0", "g": "0"}, SendFields, strict=False)
    return fields.f, fields.h, fields.j, fields.m


def _born(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        raise ValueError(text)
    return int(text)


def _in_full(codec: int, header: bytes, kind: type[SendFields | LongSendFields]) -> SignedSend:
    command = decode_command(codec, header)
    ext = command.ext
    numbers: Any = msgspec.convert(ext, kind, strict=False)
    fields = SignedFields(
        AccessKey=ext.get(ACCESS_KEY, ""),
        fresh_code=ext.get(FRESH_CODE, ""),
        fresh_number=ext.get(FRESH_NUMBER, ""),
        fresh_time=ext.get(FRESH_TIME, ""),
        b=numbers.b,
        e=numbers.e,
        f=numbers.f,
        g=numbers.g,
        h=numbers.h,
        i=numbers.i,
        j=numbers.j,
        m=numbers.m,
        Signature=ext.get(SIGNATURE, ""),
    )
    return SignedSend(command.opaque, fields, command.flag, content_of(ext))


class SignedBinarySends(LearnedLayouts["_SignedLayout"]):
    """Decodes the sends of one connection that come in ROCKETMQ's binary header.

    As `BinarySends`, with the signature among the changing fields, and in any order: Java's clients
    write the fields of a signed send twice."""

    __slots__ = ()

    def decode(self, header: bytes) -> SignedSend:
        for layout in self._layouts.get(len(header), ()):
            values = layout.unpack(header)
            queue, born, properties, signature = last = layout.last(values)
            queue_id = QUEUE_IDS.get(queue)
            if (
                values[0::2] == layout.same
                and queue_id is not None
                and born.isdigit()
                and layout.first(values) == last
            ):
                fields = layout.copy_fields()
                fields.e = queue_id
                fields.g = int(born)
                fields.i = properties.decode()
                fields.Signature = signature.decode()
                return SignedSend(
                    values[1],
                    fields,
                    layout.flag,
                    b"".join(layout.signed(values + layout.constants)),
                )
        return self._learn(header)

    def _learn(self, header: bytes) -> SignedSend:
        send = _in_full(ROCKETMQ, header, SendFields)
        self._remember(header, lambda: _layout(header, send))
        return send


_CHANGING: Final = (b"e", b"g", b"i", SIGNATURE.encode())


class _SignedLayout:
    """Positions of a header's changing fields, the bytes between them, and the signed content."""

    __slots__ = (
        "constants",
        "copy_fields",
        "first",
        "flag",
        "last",
        "same",
        "signed",
        "unpack",
    )

    def __init__(
        self, form: str, header: bytes, send: SignedSend, places: dict[bytes, Any]
    ) -> None:
        self.unpack = struct.Struct(form).unpack
        values = self.unpack(header)
        self.same = values[0::2]
        self.first = itemgetter(*(places[name][0] for name in _CHANGING))
        self.last = itemgetter(*(places[name][-1] for name in _CHANGING))
        self.copy_fields: Callable[[], SignedFields] = getattr(copy(send.extFields), "__copy__")  # noqa: B009
        self.flag = send.flag
        # The signed text: changing values, and the other values between them joined.
        ext = decode_command(ROCKETMQ, header).ext
        constants: list[bytes] = [b""]
        order: list[int] = []
        for name in sorted(ext):
            if name == SIGNATURE:
                continue
            if name.encode() in _CHANGING:
                order.append(places[name.encode()][-1])
                constants.append(b"")
            else:
                if not constants[-1]:
                    order.append(len(values) + len(constants) - 1)
                constants[-1] += ext[name].encode()
        self.constants = tuple(constants)
        self.signed = itemgetter(*order)


def _layout(header: bytes, send: SignedSend) -> _SignedLayout | None:
    """The layout of a valid header; None when it is unusual."""
    spans = changing_spans(header, _CHANGING)
    form, at = ">5si", 9
    places: dict[bytes, list[int]] = {}
    for number, (name, start, length) in enumerate(spans or ()):
        if not length or (name == b"g" and length > DIGITS_MAX):
            return None
        form += f"{start - at}s{length}s"
        at = start + length
        places.setdefault(name, []).append(3 + 2 * number)
    if places.keys() != set(_CHANGING) or max(map(len, places.values())) > 2:
        return None
    return _SignedLayout(f"{form}{len(header) - at}s", header, send, places)


def _long(codec: int) -> Callable[[bytes], SignedSend]:
    return lambda header: _in_full(codec, header, LongSendFields)


Decode = Callable[[bytes], Any]
_texts_of_json: Final = msgspec.json.Decoder(SignedSend).decode
_texts_of_msgpack: Final = msgspec.msgpack.Decoder(_PackedSignedSend).decode


def signed_heads_by_codec() -> tuple[Heads, Heads, Heads]:
    """`heads_by_codec` for a connection whose sends must be signed."""
    json_sends: dict[int, Decode] = {310: _signed(JSON, _texts_of_json), 10: _long(JSON)}
    packed_sends: dict[int, Decode] = {310: _signed(MSGPACK, _texts_of_msgpack)}
    json_heads: dict[bytes, Head] = {
        head: (kind, json_sends[code] if kind == SEND else decode, code)
        for head, (kind, decode, code) in JSON_HEADS.items()
    }
    packed_heads: dict[bytes, Head] = {
        head: (kind, packed_sends[code] if kind == SEND else decode, code)
        for head, (kind, decode, code) in PACKED_HEADS.items()
    }
    binary_heads: dict[bytes, Head] = {BINARY_SEND_HEAD: (SEND, SignedBinarySends().decode, 310)}
    return (12, json_heads), (2, binary_heads), (4, packed_heads)
