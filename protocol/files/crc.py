"""CRC-32 of large buffers: zlib-ng's where it is installed, eight times as fast, else zlib's.

ISA-L's is no faster for messages of usual size, and leaves the vector registers in a state in which
all that follows, the interpreter too, runs a sixth slower.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32 as crc32

try:
    from zlib_ng.zlib_ng import crc32 as crc32_large
except ImportError:  # an optional wheel; the value is the same
    crc32_large = crc32

LARGE: Final = 256  # bytes; zlib's is the faster one for less

__all__ = ["LARGE", "crc32", "crc32_large"]
