"""The commitlog record: encode, decode, scan. Shared by broker, client and pipeline.

    0  4 total size        36  4 sys flag              72  4 reconsume times
    4  4 magic             40  8 born timestamp        76  8 prepared transaction offset
    8  4 body CRC          48  8 born host             84  4 body length, then the body
   12  4 queue id          56  8 store timestamp           1 topic length (V2: 2), the topic
   16  4 flag              64  8 store host                2 properties length, properties
   20  8 queue offset          (a host takes 20 bytes when its IPv6 bit is set in sys flag)
   28  8 physical offset

All integers are big-endian and signed. With `append_crc` the last 20 bytes of the properties are a
checksum of all before them: `__CRC32#`, \\x01, ten decimal digits least significant first, \\x02.
"""

import struct
from collections.abc import Iterator
from typing import Final
from zlib import crc32

import msgspec

from aerobee.protocol import properties
from aerobee.protocol.ids import offset_message_id

Buffer = bytes | bytearray | memoryview

MAGIC_V1: Final = -626843481  # 0xDAA320A7
MAGIC_V2: Final = -626843477  # 0xDAA320AB: the topic's length takes two bytes
BLANK_MAGIC: Final = -875286124  # 0xCBD43194: nothing more in this file
BLANK_SIZE: Final = 8  # the least that a file keeps free at its end

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

TOPIC_SIZE_MAX_V1: Final = 127
CRC_MASK: Final = 0x7FFFFFFF
CRC_PROPERTY_SIZE: Final = 20

HEAD_V4: Final = struct.Struct(">iiiiiqqiq8sq8siqi")  # up to and with the body's length: 88 bytes
HEAD_V4_SIZE: Final = HEAD_V4.size
_INT: Final = struct.Struct(">i")
_INT2: Final = struct.Struct(">ii")
_SHORT: Final = struct.Struct(">h")
_LOOPBACK: Final = bytes([127, 0, 0, 1, 0, 0, 0, 0])

_HEADS: Final = {
    0: HEAD_V4,
    BORN_HOST_V6: struct.Struct(">iiiiiqqiq20sq8siqi"),
    STORE_HOST_V6: struct.Struct(">iiiiiqqiq8sq20siqi"),
    BORN_HOST_V6 | STORE_HOST_V6: struct.Struct(">iiiiiqqiq20sq20siqi"),
}
_V6_MASK: Final = BORN_HOST_V6 | STORE_HOST_V6


class CorruptRecord(Exception):
    """Bytes that are not a whole, sound record."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"no sound record at {position}: {reason}")
        self.position = position
        self.reason = reason


class Message(msgspec.Struct, gc=False, eq=False):
    """What a store is asked to append. A struct of msgspec: a third of a class's time to make."""

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: str = ""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = _LOOPBACK
    store_host: bytes = _LOOPBACK
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    def property(self, name: str) -> str | None:
        return properties.get(self.properties, name)


class StoredMessage(Message, gc=False, eq=False):
    """A decoded record."""

    size: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    store_timestamp: int = 0
    body_crc: int = 0

    @property
    def message_id(self) -> str:
        """The offset id: where the message is stored."""
        return offset_message_id(self.store_host, self.physical_offset)

    def property_map(self) -> dict[str, str]:
        return properties.parse(self.properties)


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """The sys-flag bits that tell a reader how long the two hosts are."""
    return (BORN_HOST_V6 if len(born_host) > 8 else 0) | (
        STORE_HOST_V6 if len(store_host) > 8 else 0
    )


def crc_property(checksum: int) -> bytes:
    """The 20-byte property that carries a record's checksum, least significant digit first."""
    return b"__CRC32#\x01%s\x02" % (b"%010d" % checksum)[::-1]


def encode_record(
    message: Message,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    *,
    append_crc: bool = False,
) -> bytes:
    """The record's bytes; the plain form of what the commitlog's hot path writes."""
    topic = message.topic.encode()
    props = message.properties.encode()
    if append_crc and props and not props.endswith(b"\x02"):
        props += b"\x02"
    v2 = len(topic) > TOPIC_SIZE_MAX_V1
    sys_flag = message.sys_flag & ~_V6_MASK | host_flags(message.born_host, message.store_host)
    head = _HEADS[sys_flag & _V6_MASK]
    props_size = len(props) + (CRC_PROPERTY_SIZE if append_crc else 0)
    size = head.size + len(message.body) + (2 if v2 else 1) + len(topic) + 2 + props_size
    record = b"".join(
        (
            head.pack(
                size,
                MAGIC_V2 if v2 else MAGIC_V1,
                crc32(message.body) & CRC_MASK,
                message.queue_id,
                message.flag,
                queue_offset,
                physical_offset,
                sys_flag,
                message.born_timestamp,
                message.born_host,
                store_timestamp,
                message.store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                len(message.body),
            ),
            message.body,
            len(topic).to_bytes(2 if v2 else 1, "big"),
            topic,
            _SHORT.pack(props_size),
            props,
        )
    )
    return record + crc_property(crc32(record) & CRC_MASK) if append_crc else record


def decode_record(buffer: Buffer, position: int = 0, *, check: bool = False) -> StoredMessage:
    """The record at `position`, with `check` its checksums too; CorruptRecord if not sound."""
    room = len(buffer) - position
    if room < HEAD_V4_SIZE:
        raise CorruptRecord(position, f"{room} bytes left, a record takes at least {HEAD_V4_SIZE}")
    (sys_flag,) = _INT.unpack_from(buffer, position + 36)
    head = _HEADS[sys_flag & _V6_MASK]
    if room < head.size:
        raise CorruptRecord(position, f"{room} bytes left, its head takes {head.size}")
    fields = head.unpack_from(buffer, position)
    size, magic, body_length = fields[0], fields[1], fields[14]
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecord(position, f"magic {magic & 0xFFFFFFFF:#010x}")
    if not head.size < size <= room:
        raise CorruptRecord(position, f"size {size} with {room} bytes left")
    end = position + size
    body_start = position + head.size
    topic_at = body_start + body_length
    topic_start = topic_at + (1 if magic == MAGIC_V1 else 2)
    if body_length < 0 or topic_start > end:
        raise CorruptRecord(position, f"body length {body_length} in a record of {size}")
    topic_length = int.from_bytes(buffer[topic_at:topic_start], "big", signed=True)
    props_at = topic_start + topic_length
    if topic_length < 0 or props_at + 2 > end:
        raise CorruptRecord(position, f"topic length {topic_length} in a record of {size}")
    (props_length,) = _SHORT.unpack_from(buffer, props_at)
    if props_length < 0 or props_at + 2 + props_length != end:
        raise CorruptRecord(position, f"properties length {props_length} in a record of {size}")
    try:
        topic = str(buffer[topic_start:props_at], "utf-8")
        props = str(buffer[props_at + 2 : end], "utf-8")
    except UnicodeDecodeError as error:
        raise CorruptRecord(position, f"text is not UTF-8: {error.reason}") from None
    message = StoredMessage(
        topic,
        fields[3],
        bytes(buffer[body_start:topic_at]),
        props,
        fields[4],
        sys_flag,
        fields[8],
        fields[9],
        fields[11],
        fields[12],
        fields[13],
    )
    message.size = size
    message.body_crc = fields[2]
    message.queue_offset = fields[5]
    message.physical_offset = fields[6]
    message.store_timestamp = fields[10]
    if check:
        check_crc(buffer, position, message)
    return message


def check_crc(buffer: Buffer, position: int, message: StoredMessage) -> None:
    """Raise CorruptRecord when the body or, where the record has a checksum of its own, the record
    does not match. A body CRC of 0 is a value like any other."""
    if crc32(message.body) & CRC_MASK != message.body_crc and (message.body or message.body_crc):
        raise CorruptRecord(position, "the body does not match its CRC")
    tail = position + message.size - CRC_PROPERTY_SIZE
    stored = bytes(buffer[tail : position + message.size])
    if stored.startswith(b"__CRC32#\x01") and stored.endswith(b"\x02"):
        actual = crc_property(crc32(buffer[position:tail]) & CRC_MASK)
        if stored != actual:
            raise CorruptRecord(position, "the record does not match its checksum")


def decode_records(buffer: Buffer) -> list[StoredMessage]:
    """Every record of a pull's or query's body."""
    return list(iter_records(buffer))


def iter_records(buffer: Buffer) -> Iterator[StoredMessage]:
    """The records that stand one behind the other in `buffer`."""
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        message = decode_record(view, position)
        yield message
        position += message.size


def split_records(buffer: Buffer) -> Iterator[memoryview]:
    """The bytes of each record, undecoded."""
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        (size,) = _INT.unpack_from(view, position)
        if not HEAD_V4_SIZE < size <= len(view) - position:
            raise CorruptRecord(position, f"size {size} with {len(view) - position} bytes left")
        yield view[position : position + size]
        position += size


BatchPart = tuple[int, bytes, str]  # flag, body, properties
_BATCH_HEAD: Final = struct.Struct(">iiiii")  # total size, magic 0, CRC 0, flag, body length


def encode_batch(parts: list[BatchPart]) -> bytes:
    """The body of SEND_BATCH_MESSAGE."""
    pieces = []
    for flag, body, props_text in parts:
        props = props_text.encode()
        size = _BATCH_HEAD.size + len(body) + 2 + len(props)
        pieces += [
            _BATCH_HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _SHORT.pack(len(props)),
            props,
        ]
    return b"".join(pieces)


def decode_batch(body: Buffer) -> list[BatchPart]:
    """The messages inside a SEND_BATCH_MESSAGE body; CorruptRecord when a length lies."""
    view = memoryview(body)
    parts: list[BatchPart] = []
    position = 0
    while position < len(view):
        room = len(view) - position
        if room < _BATCH_HEAD.size + 2:
            raise CorruptRecord(position, f"{room} bytes left of the batch")
        size, _magic, _crc, flag, body_length = _BATCH_HEAD.unpack_from(view, position)
        body_start = position + _BATCH_HEAD.size
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
