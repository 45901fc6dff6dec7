"""The layout of a commitlog record; `record` encodes and decodes it, `record_scan` walks a file.

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
from typing import Final

from aerobee.protocol.files.ids import HOST_V4_SIZE, HOST_V6_SIZE
from aerobee.protocol.files.properties import CRC32, NAME_END, PAIR_END_BYTES

Buffer = bytes | bytearray | memoryview

MAGIC_V1: Final = -626843481  # 0xDAA320A7
MAGIC_V2: Final = -626843477  # 0xDAA320AB: the topic's length takes two bytes
BLANK_MAGIC: Final = -875286124  # 0xCBD43194: nothing more in this file
BLANK_SIZE: Final = 8  # reserved at a file's end

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
V6_HOSTS: Final = BORN_HOST_V6 | STORE_HOST_V6
TOPIC_SIZE_MAX_V1: Final = 127  # its length is one signed byte
CRC_MASK: Final = 0x7FFFFFFF
CRC_NAME: Final = (CRC32 + NAME_END).encode()
CRC_REVERSED: Final = PAIR_END_BYTES + b"%010d" + CRC_NAME[::-1]
CRC_PROPERTY_SIZE: Final = 20
CRC_LIKENESS: Final = 6  # of its ten fixed bytes: that many matches are no coincidence

# The fields of the head in their order, each as `struct` names it where both hosts are IPv4.
HEAD_FIELDS: Final = {
    "size": "i",
    "magic": "i",
    "body_crc": "i",
    "queue_id": "i",
    "flag": "i",
    "queue_offset": "q",
    "physical_offset": "q",
    "sys_flag": "i",
    "born_timestamp": "q",
    "born_host": f"{HOST_V4_SIZE}s",
    "store_timestamp": "q",
    "store_host": f"{HOST_V4_SIZE}s",
    "reconsume_times": "i",
    "prepared_transaction_offset": "q",
    "body_length": "i",
}


def head_formats(v6_hosts: int) -> dict[str, str]:
    """HEAD_FIELDS for a record with these IPv6 bits in its sys flag."""
    hosts = {"born_host": BORN_HOST_V6, "store_host": STORE_HOST_V6}
    return HEAD_FIELDS | {name: f"{HOST_V6_SIZE}s" for name, bit in hosts.items() if v6_hosts & bit}


def head_part(*names: str, v6_hosts: int = 0) -> struct.Struct:
    """Reads these fields of a head, in the head's order, and skips the others."""
    form, skipped = ">", 0
    for name, one in head_formats(v6_hosts).items():
        if name in names:
            form += f"{skipped}x{one}" if skipped else one
            skipped = 0
        else:
            skipped += struct.calcsize(f">{one}")
    return struct.Struct(form)


HEADS: Final = {
    v6_hosts: head_part(*HEAD_FIELDS, v6_hosts=v6_hosts)
    for v6_hosts in (0, BORN_HOST_V6, STORE_HOST_V6, V6_HOSTS)
}
HEAD_V4: Final = HEADS[0]  # up to and with the body's length: 88 bytes
HEAD_V4_SIZE: Final = HEAD_V4.size
SIZE_AND_MAGIC: Final = head_part("size", "magic")  # and all that a blank record has
SIZE: Final = head_part("size")
_KIND: Final = head_part("size", "magic", "sys_flag")
_TIMES: Final = {v6: head_part("store_timestamp", v6_hosts=v6) for v6 in HEADS}


class CorruptRecord(Exception):
    """Bytes that are not a complete, valid record."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"no sound record at {position}: {reason}")
        self.position = position
        self.reason = reason


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """The sys-flag bits for the lengths of the two hosts."""
    return (BORN_HOST_V6 if len(born_host) > HOST_V4_SIZE else 0) | (
        STORE_HOST_V6 if len(store_host) > HOST_V4_SIZE else 0
    )


def crc_property(checksum: int) -> bytes:
    """The 20-byte property that carries a record's checksum, least significant digit first."""
    return (CRC_REVERSED % checksum)[::-1]


def encode_blank(room: int) -> bytes:
    """The record that ends a file with `room` bytes left."""
    return SIZE_AND_MAGIC.pack(room, BLANK_MAGIC)


def record_properties(record: memoryview) -> str:
    """The property string of a valid record, the rest undecoded."""
    size, magic, sys_flag = _KIND.unpack_from(record)
    at = HEADS[sys_flag & V6_HOSTS].size
    at += SIZE.unpack_from(record, at - 4)[0]  # the body's length ends the head
    width = 1 if magic == MAGIC_V1 else 2
    at += width + int.from_bytes(record[at : at + width], "big")
    return str(record[at + 2 : size], "utf-8", "replace")


def store_timestamp(head: Buffer) -> int:
    """When the record was stored whose first HEAD_V4_SIZE bytes, at least, these are."""
    sys_flag = _KIND.unpack_from(head)[2]
    return int(_TIMES[sys_flag & V6_HOSTS].unpack_from(head)[0])
