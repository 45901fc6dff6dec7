"""A frame's header in its three forms: JSON (0), ROCKETMQ's binary (1) and MessagePack (2, ours).

The MessagePack header is an array: code, flag, opaque, language, version, remark, ext map.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

import msgpack
import msgspec

from aerobee.protocol.wire.command import JSON, LANGUAGES, MSGPACK, ROCKETMQ, Command

EXT_FIELDS_MAX: Final = 1024
INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1


class ProtocolError(Exception):
    """The peer sent bytes that are not a frame; the connection has to be closed."""


class _JsonHeader(msgspec.Struct):
    code: int
    opaque: int = 0
    flag: int = 0
    language: str | int = "OTHER"
    version: int = 0
    remark: str | None = None
    extFields: dict[str, Any] | None = None


class _PackedHeader(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    code: int
    flag: int
    opaque: int
    language: int
    version: int
    remark: str | None
    ext: dict[str, Any]


# Not strict: Java accepts a number in quotes, too.
_json_header: Final = msgspec.json.Decoder(_JsonHeader, strict=False)
_packed_header: Final = msgspec.msgpack.Decoder(_PackedHeader, strict=False)
_json_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def _decode_json(header: bytes) -> Command:
    try:
        parsed = _json_header.decode(header)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"the JSON header cannot be read: {error}") from None
    return Command(
        parsed.code,
        _texts(parsed.extFields or {}),
        b"",
        parsed.opaque,
        parsed.flag,
        parsed.remark,
        parsed.language if isinstance(parsed.language, str) else _language(parsed.language),
        parsed.version,
        JSON,
    )


def _texts(fields: dict[str, Any]) -> dict[str, str]:
    """Ext fields as text; C++ and Node send bare numbers and booleans. A null field is dropped."""
    if {*map(type, fields.values())} <= {str}:
        return fields
    ext: dict[str, str] = {}
    for name, value in fields.items():
        if type(value) is str:
            ext[name] = value
        elif value is not None:
            ext[name] = _json_encode(value).decode()
    return ext


def _encode_json(command: Command) -> bytes:
    header: dict[str, Any] = {
        "code": command.code,
        "extFields": command.ext,
        "flag": command.flag,
        "language": command.language,
        "opaque": command.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    if command.remark is not None:
        header["remark"] = command.remark
    return _json_encode(header)


_BINARY_HEAD: Final = struct.Struct(">hBhii")  # code, language, version, opaque, flag
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")


def _decode_binary(header: bytes) -> Command:
    try:
        code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header)
        remark, position = _binary_text(header, _BINARY_HEAD.size)
        (ext_length,) = _INT.unpack_from(header, position)
        position += 4
        if ext_length < 0 or position + ext_length > len(header):
            raise ProtocolError(f"ext block of {ext_length} bytes in a header of {len(header)}")
        ext = _binary_ext(header, position, position + ext_length)
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"the binary header cannot be read: {error}") from None
    return Command(
        code, ext, b"", opaque, flag, remark or None, _language(language), version, ROCKETMQ
    )


def _binary_text(header: bytes, position: int) -> tuple[str, int]:
    (length,) = _INT.unpack_from(header, position)
    start = position + 4
    if length < 0 or start + length > len(header):
        raise ProtocolError(f"text of {length} bytes at {position} of a header of {len(header)}")
    return header[start : start + length].decode(), start + length


def _binary_ext(header: bytes, position: int, end: int) -> dict[str, str]:
    """The pairs of an ext block. A loop without Python calls: each request has a dozen of them."""
    ext: dict[str, str] = {}
    name_length_at, value_length_at = _SHORT.unpack_from, _INT.unpack_from
    size = len(header)
    while position < end:
        (length,) = name_length_at(header, position)
        start = position + 2
        name_end = start + length
        if length < 0 or name_end > size:
            raise ProtocolError(f"text of {length} bytes at {position} of a header of {size}")
        name = header[start:name_end].decode()
        (length,) = value_length_at(header, name_end)
        start = name_end + 4
        position = start + length
        if length < 0 or position > size:
            raise ProtocolError(f"text of {length} bytes at {name_end} of a header of {size}")
        if length:  # a zero-length value is a null
            ext[name] = header[start:position].decode()
    return ext


def _encode_binary(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    pairs = []
    for name, value in command.ext.items():
        name_bytes, value_bytes = name.encode(), value.encode()
        pairs += [
            _SHORT.pack(len(name_bytes)),
            name_bytes,
            _INT.pack(len(value_bytes)),
            value_bytes,
        ]
    ext = b"".join(pairs)
    head = _BINARY_HEAD.pack(
        command.code,
        LANGUAGES.index(command.language) if command.language in LANGUAGES else 7,
        command.version,
        command.opaque,
        command.flag,
    )
    return b"".join((head, _INT.pack(len(remark)), remark, _INT.pack(len(ext)), ext))


def _decode_msgpack(header: bytes) -> Command:
    try:
        parsed = _packed_header.decode(header)
        ext = _texts(parsed.ext)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
        raise ProtocolError(f"the MessagePack header cannot be read: {error}") from None
    return Command(
        parsed.code,
        ext,
        b"",
        parsed.opaque,
        parsed.flag,
        parsed.remark,
        _language(parsed.language),
        parsed.version,
        MSGPACK,
    )


def _encode_msgpack(command: Command) -> bytes:
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else 7
    packed: bytes = msgpack.packb(
        (
            command.code,
            command.flag,
            command.opaque,
            language,
            command.version,
            command.remark,
            command.ext,
        )
    )
    return packed


def _language(number: int) -> str:
    return LANGUAGES[number] if 0 <= number < len(LANGUAGES) else "OTHER"


DECODERS: Final[dict[int, Callable[[bytes], Command]]] = {
    JSON: _decode_json,
    ROCKETMQ: _decode_binary,
    MSGPACK: _decode_msgpack,
}
ENCODERS: Final[dict[int, Callable[[Command], bytes]]] = {
    JSON: _encode_json,
    ROCKETMQ: _encode_binary,
    MSGPACK: _encode_msgpack,
}


def decode_command(codec: int, header: bytes, body: bytes | memoryview = b"") -> Command:
    """The frame's header and body as a Command; ProtocolError when the header is invalid."""
    decode = DECODERS.get(codec)
    if decode is None:
        raise ProtocolError(f"header form {codec} is unknown; 0, 1 and 2 are known")
    command = decode(header)
    if len(command.ext) > EXT_FIELDS_MAX:
        raise ProtocolError(f"{len(command.ext)} ext fields, at most {EXT_FIELDS_MAX} are allowed")
    numbers = (command.code, command.opaque, command.flag, command.version)
    if min(numbers) < INT32_MIN or max(numbers) > INT32_MAX:
        for name, number in zip(("code", "opaque", "flag", "version"), numbers, strict=True):
            if not INT32_MIN <= number <= INT32_MAX:
                raise ProtocolError(f"{name} {number} does not fit 32 bits")
    command.body = body
    return command
