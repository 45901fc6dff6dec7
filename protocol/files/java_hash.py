"""Java's String.hashCode, on which RocketMQ builds tag codes and index slots."""

from array import array
from functools import lru_cache
from typing import Final

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_PIECE: Final = 64  # units, after which the number is reduced to 32 bits


def java_hash(text: str) -> int:
    """Java's hash of `text`: over UTF-16 code units, wrapped to a signed 32-bit integer."""
    units: bytes | array[int]
    if text.isascii():
        units = text.encode("ascii")
    else:
        units = array("H", text.encode("utf-16-le", "surrogatepass"))
    value = 0
    for start in range(0, len(units), _PIECE):
        for unit in units[start : start + _PIECE]:
            value = value * 31 + unit
        value &= _MASK
    return value - (_MASK + 1) if value & _SIGN else value


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """The tags code of a consume-queue entry: the tag's hash, 0 without a tag."""
    return java_hash(tag) if tag else 0


def index_hash(topic: str, key: str) -> int:
    """The non-negative hash under which an index file keeps `key` of `topic`."""
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == _SIGN else value
