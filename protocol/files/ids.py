"""Identifiers: hosts as bytes, the broker's offset ids and the producer's unique ids."""

import itertools
import os
import socket
import struct
import time
from datetime import datetime
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_PORT: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
HOST_V4_SIZE: Final = 8
HOST_V6_SIZE: Final = 20


@lru_cache(4096)
def parse_ip(text: str) -> IPv4Address | IPv6Address:
    """Without its scope; IPv4 mapped into IPv6 as IPv4. ValueError when it is a name."""
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
    """The store host and physical offset inside an offset id; ValueError when it is none."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) not in (HOST_V4_SIZE + 8, HOST_V6_SIZE + 8):
        raise ValueError(
            f"{message_id!r} is not an offset message id: expected 32 or 56 hexadecimal digits"
        )
    return raw[:-8], _OFFSET.unpack(raw[-8:])[0]


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
        first = datetime.fromtimestamp(now_ms / 1000).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
        self._month_start_ms = int(first.timestamp() * 1000)
        self._next_month_ms = int(following.timestamp() * 1000)
