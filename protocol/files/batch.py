"""The body of SEND_BATCH_MESSAGE: messages of one topic, one behind the other.

0  4 total size     12  4 flag
4  4 magic, 0       16  4 body length, then the body
8  4 CRC, 0             2 properties length, properties
"""

import struct
from typing import Final

from aerobee.protocol.files.record_layout import Buffer, CorruptRecord

BatchPart = tuple[int, bytes, str]  # flag, body, properties
BATCH_FIELDS: Final = ("size", "magic", "crc", "flag", "body_length")
BATCH_HEAD: Final = struct.Struct(">iiiii")
_SHORT: Final = struct.Struct(">h")


def encode_batch(parts: list[BatchPart]) -> bytes:
    """The body of SEND_BATCH_MESSAGE."""
    pieces = []
    for flag, body, props_text in parts:
        props = props_text.encode()
        size = BATCH_HEAD.size + len(body) + 2 + len(props)
        pieces += [
            BATCH_HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _SHORT.pack(len(props)),
            props,
        ]
    return b"".join(pieces)


def decode_batch(body: Buffer) -> list[BatchPart]:
    """The messages inside a SEND_BATCH_MESSAGE body; CorruptRecord when a length is wrong."""
    view = memoryview(body)
    parts: list[BatchPart] = []
    position = 0
    while position < len(view):
        room = len(view) - position
        if room < BATCH_HEAD.size + 2:
            raise CorruptRecord(position, f"{room} bytes left of the batch")
        size, _magic, _crc, flag, body_length = BATCH_HEAD.unpack_from(view, position)
        body_start = position + BATCH_HEAD.size
        props_at = body_start + body_length
        end = position + size
        if body_length < 0 or size > room or props_at + 2 > end:
            raise CorruptRecord(position, f"size {size} and body length {body_length} in the batch")
        (props_length,) = _SHORT.unpack_from(view, props_at)
        if props_length < 0 or props_at + 2 + props_length != end:
            raise CorruptRecord(position, f"properties length {props_length} in the batch")
        try:
            props = str(view[props_at + 2 : end], "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptRecord(position, f"properties are not UTF-8: {error.reason}") from None
        parts.append((flag, bytes(view[body_start:props_at]), props))
        position = end
    return parts


def check_batch(body: bytes, begin: bytes, properties_size_max: int) -> int:
    """How many messages are inside; CorruptRecord as by `decode_batch`, or when the properties of
    one do not begin with `begin` or are longer. Nothing is copied but the properties."""
    position = count = 0
    end = len(body)
    while position < end:
        if end - position < BATCH_HEAD.size + 2:
            raise CorruptRecord(position, f"{end - position} bytes left of the batch")
        size, _magic, _crc, _flag, body_length = BATCH_HEAD.unpack_from(body, position)
        props_at = position + BATCH_HEAD.size + body_length
        if body_length < 0 or size > end - position or props_at + 2 > position + size:
            raise CorruptRecord(position, f"size {size} and body length {body_length} in the batch")
        (props_length,) = _SHORT.unpack_from(body, props_at)
        if not 0 <= props_length <= properties_size_max:
            reason = f"properties of {props_length} bytes; at most {properties_size_max} fit"
            raise CorruptRecord(position, reason)
        if props_at + 2 + props_length != position + size:
            raise CorruptRecord(position, f"properties length {props_length} in the batch")
        if not body.startswith(begin, props_at + 2, position + size):
            raise CorruptRecord(position, f"properties do not begin with {begin!r}")
        position += size
        try:
            body[props_at + 2 : position].decode()
        except UnicodeDecodeError as error:
            reason = f"properties are not UTF-8: {error.reason}"
            raise CorruptRecord(position, reason) from None
        count += 1
    return count
