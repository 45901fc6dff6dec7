"""CRC-32 of large buffers: zlib-ng's where it is installed (eight times zlib's speed), else zlib's."""

from __future__ import annotations

from typing import Final

from zlib import crc32 as crc32

try:
    from zlib_ng.zlib_ng import crc32 as crc32_large
except ImportError:  # an optional wheel; the value is the same
    crc32_large = crc32

LARGE: Final = 256  # bytes; zlib's is the faster one for less

__all__ = ["LARGE", "crc32", "crc32_large"]
