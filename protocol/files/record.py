"""Messages as records of the commitlog: encode and decode, for broker, client and pipeline."""

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from aerobee.protocol.files import properties
from aerobee.protocol.files.crc import LARGE, crc32, crc32_large
from aerobee.protocol.files.ids import offset_message_id
from aerobee.protocol.files.record_layout import (
    CRC_MASK,
    CRC_NAME,
    CRC_PROPERTY_SIZE,
    CRC_REVERSED,
    HEAD_V4,
    HEAD_V4_SIZE,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    SIZE,
    TOPIC_SIZE_MAX_V1,
    V6_HOSTS,
    Buffer,
    CorruptRecord,
    crc_property,
    host_flags,
)
from aerobee.protocol.files.record_scan import check_record, sums_match

COMPRESSED: Final = 0x1
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
NOT_IN_QUEUE: Final = 0x4  # set in prepared and rolled-back messages alike
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

_SHORT: Final = struct.Struct(">h")
_LOOPBACK: Final = bytes([127, 0, 0, 1, 0, 0, 0, 0])


class Message(msgspec.Struct, gc=False, eq=False):
    """A message to append. A msgspec struct: three times faster to construct than a class."""

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


def encode_record(
    message: Message,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    *,
    append_crc: bool = False,
) -> bytes:
    """The record's bytes; the reference for what the commitlog's hot path writes."""
    topic = message.topic.encode()
    props = message.properties.encode()
    if append_crc and props and not props.endswith(properties.PAIR_END_BYTES):
        props += properties.PAIR_END_BYTES
    v2 = len(topic) > TOPIC_SIZE_MAX_V1
    sys_flag = message.sys_flag & ~V6_HOSTS | host_flags(message.born_host, message.store_host)
    head = HEADS[sys_flag & V6_HOSTS]
    props_size = len(props) + (CRC_PROPERTY_SIZE if append_crc else 0)
    size = head.size + len(message.body) + (2 if v2 else 1) + len(topic) + 2 + props_size
    checksum = crc32 if len(message.body) < LARGE else crc32_large
    pieces = [
        head.pack(
            size,
            MAGIC_V2 if v2 else MAGIC_V1,
            checksum(message.body) & CRC_MASK,
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
        len(topic).to_bytes(2 if v2 else 1, "big") + topic + _SHORT.pack(props_size) + props,
    ]
    if append_crc:
        crc = checksum(pieces[2], checksum(pieces[1], checksum(pieces[0])))
        pieces.append(crc_property(crc & CRC_MASK))
    return b"".join(pieces)


def decode_record(
    buffer: Buffer, position: int = 0, *, check: bool = False, with_body: bool = True
) -> StoredMessage:
    """The record at `position`, with `check` its checksums too; CorruptRecord if it is damaged.
    `with_body`: else it is left out, for a large one takes time to copy."""
    record = check_record(buffer, None, position, len(buffer) - position, check)
    head = HEADS[record.sys_flag & V6_HOSTS]
    (
        size,
        _,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_length,
    ) = head.unpack_from(buffer, position)
    body_at = position + head.size
    props_at = record.properties_position
    try:
        topic = record.topic.decode()
        props = str(buffer[props_at : position + record.size], "utf-8")
    except UnicodeDecodeError as error:
        raise CorruptRecord(position, f"text is not UTF-8: {error.reason}") from None
    return StoredMessage(
        topic,
        queue_id,
        bytes(buffer[body_at : body_at + body_length]) if with_body else b"",
        props,
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        size=size,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp=store_timestamp,
        body_crc=body_crc,
    )


def decode_records(buffer: Buffer) -> list[StoredMessage]:
    """Every record of a pull's or query's body; CorruptRecord when one is damaged or does not
    match its checksum.

    The common record is decoded inline, in a third of the time of `decode_record`, the fallback
    for the rest: IPv6 hosts, long topics, damage.
    """
    data = buffer if isinstance(buffer, bytes) else bytes(buffer)
    view = memoryview(data)
    found: list[StoredMessage] = []
    append = found.append
    unpack = HEAD_V4.unpack_from
    end = len(data)
    position = 0
    topic_bytes, topic = b"", ""
    while end - position > HEAD_V4_SIZE:
        head = unpack(data, position)
        size = head[0]
        body_start = position + HEAD_V4_SIZE
        body_end = body_start + head[14]
        following = position + size
        if (
            head[1] != MAGIC_V1
            or head[7] & V6_HOSTS
            or not body_start <= body_end < following <= end
        ):
            break
        props_at = body_end + 3 + data[body_end]
        if props_at > following or (
            props_at + (data[props_at - 2] << 8 | data[props_at - 1]) != following
        ):
            break
        name = data[body_end + 1 : props_at - 2]
        try:
            props = data[props_at:following].decode()
            if name != topic_bytes:
                topic_bytes, topic = name, name.decode()
        except UnicodeDecodeError:
            break
        body = data[body_start:body_end]
        tail_at = following - CRC_PROPERTY_SIZE
        if tail_at >= props_at and data.startswith(CRC_NAME, tail_at):
            checksum = crc32_large(view[position:tail_at]) & CRC_MASK
            if data[following - 1 : tail_at - 1 : -1] != CRC_REVERSED % checksum:
                break
        elif not sums_match(view, position, props_at, following, body, head[2]):
            break
        append(
            StoredMessage(
                topic,
                head[3],
                body,
                props,
                head[4],
                head[7],
                head[8],
                head[9],
                head[11],
                head[12],
                head[13],
                size,
                head[5],
                head[6],
                head[10],
                head[2],
            )
        )
        position = following
    while position < end:
        message = decode_record(data, position)
        following = position + message.size
        props_at = following - len(message.properties.encode())
        if not sums_match(
            view, position, props_at, following, bytes(message.body), message.body_crc
        ):
            raise CorruptRecord(position, "the record does not match its checksum")
        append(message)
        position = following
    return found


def split_records(buffer: Buffer) -> Iterator[memoryview]:
    """The bytes of each record, undecoded."""
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        left = len(view) - position
        size = SIZE.unpack_from(view, position)[0] if left >= SIZE.size else 0
        if not HEAD_V4_SIZE < size <= left:
            raise CorruptRecord(position, f"size {size} with {left} bytes left")
        yield view[position : position + size]
        position += size
