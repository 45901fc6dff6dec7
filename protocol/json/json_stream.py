"""A large JSON object written and read in small pieces, its entries one by one.

An entry is a path of keys and its value. Entries of one object follow each other.
The text is laid out as `fastjson.dumps(value, indent=1)` does it; any standard JSON is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator, Iterable, Iterator
from json.encoder import encode_basestring
from typing import Any, Final

from aerobee.protocol.json import fastjson

Path = tuple[str, ...]
Entry = tuple[Path, Any]

_BLANK: Final = re.compile(r"[ \t\r\n]*")
_value_at: Final = json.JSONDecoder().raw_decode


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


def entries(text: str, opened: Collection[Path]) -> Iterator[Entry]:
    """The entries of an object; the objects at the paths in `opened` are read entry by entry too,
    empty ones as they are. ValueError or IndexError, after some entries perhaps, where it is not
    standard JSON."""
    end = yield from _entries_at(text, _skip(text, 0), (), opened)
    if _skip(text, end) != len(text):
        raise ValueError(f"more text after the object at {end}")


def _entries_at(
    text: str, at: int, path: Path, opened: Collection[Path]
) -> Generator[Entry, None, int]:
    if text[at : at + 1] != "{" or text[_skip(text, at + 1)] == "}":
        value, at = _value_at(text, at)
        yield path, value
        return at
    while text[at] in "{,":
        key, at = _value_at(text, _skip(text, at + 1))
        at = _skip(text, at)
        if not isinstance(key, str) or text[at] != ":":
            raise ValueError(f"a key and a colon were expected before {at}")
        at = _skip(text, at + 1)
        if (*path, key) in opened:
            at = yield from _entries_at(text, at, (*path, key), opened)
        else:
            value, at = _value_at(text, at)
            yield (*path, key), value
        at = _skip(text, at)
    if text[at] != "}":
        raise ValueError(f"a comma or a brace was expected at {at}")
    return at + 1


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    assert blank is not None  # the empty text matches
    return blank.end()
