"""The checksum at the end of our config/*.json: a last member that Java brokers ignore.

    {
     "offsetTable": {...},
     "crc32": "1c291ca3"
    }

It is that of all bytes before the comma. A file without it was written by a Java broker or by hand.
"""

from __future__ import annotations

import re
from typing import Any, Final
from zlib import crc32

_MEMBER: Final = "crc32"
_END: Final = b"\n}"
_SEAL: Final = re.compile(rb',\n "crc32": "([0-9a-f]{8})"\n\}\Z')
_SEAL_SIZE: Final = 32


def seal(text: bytes) -> bytes:
    """An object's text, laid out with an indent of 1, with its checksum."""
    if not text.endswith(_END):
        return text  # an empty object
    begin = text[: -len(_END)]
    return begin + b',\n "%b": "%08x"' % (_MEMBER.encode(), crc32(begin)) + _END


def is_broken(text: bytes) -> bool:
    """Whether the text has a checksum that does not match."""
    found = _SEAL.search(text, max(0, len(text) - _SEAL_SIZE))
    return found is not None and int(found[1], 16) != crc32(text[: found.start()])


def without_seal(content: dict[Any, Any]) -> dict[Any, Any]:
    content.pop(_MEMBER, None)
    return content
