"""Identifiers: hosts as bytes, the broker's offset ids and the producer's unique ids."""

import itertools
import os
import socket
import struct
import time
from datetime import datetime, timedelta
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_PORT: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
_UNIQUE_SIZES: Final = (16, 28)  # by the length of the producer's address
_AHEAD_MS: Final = 24 * 3600 * 1000  # a producer in another time zone
HOST_V4_SIZE: Final = 8
HOST_V6_SIZE: Final = 20


@lru_cache(4096)
def parse_ip(text: str) -> IPv4Address | IPv6Address:
    """The IP without its scope; IPv4 mapped into IPv6 as IPv4. ValueError for a host name."""
    address = ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def encode_host(ip: str, port: int) -> bytes:
    """IP and port as a record keeps them; IPv4 mapped into IPv6 is kept as four bytes."""
    return parse_ip(ip).packed + _PORT.pack(port)


def decode_host(host: bytes | memoryview) -> tuple[str, int]:
    """The IP text and port of `encode_host`'s bytes."""
    if len(host) not in (HOST_V4_SIZE, HOST_V6_SIZE):
        raise ValueError(f"a host is {HOST_V4_SIZE} or {HOST_V6_SIZE} bytes, not {len(host)}")
    family = socket.AF_INET if len(host) == HOST_V4_SIZE else socket.AF_INET6
    return socket.inet_ntop(family, bytes(host[:-4])), _PORT.unpack(host[-4:])[0]


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The id that a broker gives a message: where it is stored (32 or 56 hex digits)."""
    return (store_host + _OFFSET.pack(physical_offset)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[bytes, int]:
    """The store host and physical offset inside an offset id; ValueError when it is malformed."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) not in (HOST_V4_SIZE + 8, HOST_V6_SIZE + 8):
        raise ValueError(
            f"{message_id!r} is not an offset message id: expected 32 or 56 hexadecimal digits"
        )
    return raw[:-8], _OFFSET.unpack(raw[-8:])[0]


def is_offset_message_id(message_id: str) -> bool:
    """Whether an id is a broker's: the two kinds have one length, but where a broker's has the
    upper half of its port, which is 0, a producer's has its process id."""
    try:
        host, _ = parse_offset_message_id(message_id)
    except ValueError:
        return False
    return host[-4:-2] == bytes(2) and host[-2:] != bytes(2)


def unique_id_time(message_id: str, now_ms: int) -> int | None:
    """When a producer made a unique id, by its own clock and time zone, this month or the last;
    None when it is not a unique id."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        return None
    if len(raw) not in _UNIQUE_SIZES:
        return None
    elapsed_ms = int.from_bytes(raw[-6:-2])
    this_month = _month_start(datetime.fromtimestamp(now_ms / 1000))
    made_ms = int(this_month.timestamp() * 1000) + elapsed_ms
    if made_ms > now_ms + _AHEAD_MS:
        last_month = _month_start(this_month - timedelta(days=1))
        made_ms = int(last_month.timestamp() * 1000) + elapsed_ms
    return made_ms if made_ms <= now_ms + _AHEAD_MS else None


def _month_start(moment: datetime) -> datetime:
    return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


class UniqueIds:
    """Makes a producer's unique ids: ip, pid, a random word, ms of the month, a counter."""

    def __init__(self, ip: str = "127.0.0.1") -> None:
        packed = encode_host(ip, 0)[:-4][-4:]
        self._prefix = (packed + struct.pack(">H", os.getpid() & 0xFFFF) + os.urandom(4)).hex()
        self._prefix = self._prefix.upper()
        self._counter = itertools.count()
        self._month_start_ms = 0
        self._next_month_ms = 0

    def next(self) -> str:
        now_ms = time.time_ns() // 1_000_000
        if not self._month_start_ms <= now_ms < self._next_month_ms:
            self._start_month(now_ms)
        elapsed_ms = now_ms - self._month_start_ms
        return f"{self._prefix}{elapsed_ms:08X}{next(self._counter) & 0xFFFF:04X}"

    def _start_month(self, now_ms: int) -> None:
        first = _month_start(datetime.fromtimestamp(now_ms / 1000))
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self._month_start_ms = int(first.timestamp() * 1000)
        self._next_month_ms = int(following.timestamp() * 1000)
