"""A large JSON object written in small pieces, from its entries one by one.

An entry is a path of keys and the value that stands there. Entries of one object follow each other.
The text is laid out as `fastjson.dumps(value, indent=1)` does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring
from typing import Any

from aerobee.protocol import fastjson

Entry = tuple[tuple[str, ...], Any]


def pieces(entries: Iterable[Entry]) -> Iterator[bytes]:
    """The text of the whole object; one piece for each entry."""
    opened: tuple[str, ...] = ()
    begin = b"{"
    for path, value in entries:
        folders = path[:-1]
        common = 0
        while common < min(len(opened), len(folders)) and opened[common] == folders[common]:
            common += 1
        parts = [begin]
        for depth in range(len(opened), common, -1):
            parts.append(_line(depth) + b"}")
        if begin == b"" or len(opened) > common:
            parts.append(b",")
        for depth in range(common, len(folders)):
            parts.append(_line(depth + 1) + _key(folders[depth]) + b"{")
        inner = _line(len(path))
        text = fastjson.dumps(value, indent=1).replace(b"\n", inner)
        parts.append(inner + _key(path[-1]) + text)
        opened, begin = folders, b""
        yield b"".join(parts)
    tail = b"".join(_line(depth) + b"}" for depth in range(len(opened), 0, -1))
    yield begin + tail + (b"}" if begin else b"\n}")


def _line(depth: int) -> bytes:
    return b"\n" + b" " * depth


def _key(key: str) -> bytes:
    return encode_basestring(key).encode() + b": "
