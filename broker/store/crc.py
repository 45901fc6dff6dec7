"""CRC-32 of large buffers: ISA-L's where it is installed (ten times zlib's speed), else zlib's."""

from __future__ import annotations

from zlib import crc32 as crc32

try:
    from isal.isal_zlib import crc32 as crc32_large
except ImportError:  # an optional wheel; the value is the same
    crc32_large = crc32

__all__ = ["crc32", "crc32_large"]
