"""The journal beside a config file: changes that are on disk while the JSON file is still older.

`topics.json.journal` is a text of lines and a zero, followed by what an earlier use left there:

    crc32 {"journal":1,"size":<bytes of the JSON file>,"crc32":<of all of them>}
    crc32 [[["topicConfigTable","orders"],{...}],[["topicConfigTable","gone"]], ...]
    crc32 {"next":{"size":...,"crc32":...}}

A change is a path of keys and the new value; without a value the entry is removed.
Each line's checksum continues from the line before it, so neither a torn line nor one of an earlier
use can follow. The first line names the JSON file that the changes extend, by its content: beside
any other JSON file the journal is ignored. `next` names the JSON file that was about to replace
that one, with all of these changes in it: beside any other than these two, another
broker has written the file since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

from aerobee.protocol.json import fastjson

SUFFIX: Final = ".journal"
END: Final = b"\0"  # after the last line; the next line overwrites it
_VERSION: Final = 1
_CRC_DIGITS: Final = 8

Path = tuple[str, ...]
Change = tuple[Path, Any]  # None: the entry is removed


class Base(NamedTuple):
    """The JSON file that a journal extends."""

    size: int
    crc: int


def base_of(json: bytes) -> Base:
    return Base(len(json), crc32(json))


def encode_start(base: Base) -> tuple[bytes, int]:
    """The first line, and the checksum from which the next one continues."""
    return encode_line({"journal": _VERSION, "size": base.size, "crc32": base.crc}, 0)


def encode_changes(changes: Iterable[Change]) -> bytes:
    """The content of a line."""
    return fastjson.dumps(
        [[list(path)] if value is None else [list(path), value] for path, value in changes]
    )


def next_base(base: Base) -> dict[str, dict[str, int]]:
    """The content of the last line, before a new JSON file is put in place."""
    return {"next": {"size": base.size, "crc32": base.crc}}


def encode_line(value: Any, chain: int) -> tuple[bytes, int]:
    text = value if isinstance(value, bytes) else fastjson.dumps(value)
    crc = crc32(text, chain)
    return b"%08x %b\n" % (crc, text), crc


@dataclass(slots=True)
class Journal:
    """The content of a journal, up to the first incomplete line."""

    bases: list[Base]  # the file it extends, and the one that includes it
    changes: list[Change]
    end: int  # of the last whole line
    chain: int  # its checksum


def read_journal(data: bytes) -> Journal | None:
    """None when even the first line is incomplete."""
    journal = None
    for line, end, chain in _lines(data):
        if journal is None:
            if not isinstance(line, dict) or line.get("journal") != _VERSION:
                return None
            journal = Journal([_base(line)], [], end, chain)
        elif isinstance(line, dict):
            journal.bases.append(_base(line["next"]))
        else:
            for path, *value in line:
                journal.changes.append((tuple(map(str, path)), value[0] if value else None))
        journal.end, journal.chain = end, chain
    return journal


def is_cut_off(data: bytes, journal: Journal | None) -> bool:
    """Whether something other than the end follows the last whole line."""
    end = 0 if journal is None else journal.end
    return data[end : end + len(END)] not in (END, b"")


def _base(value: dict[str, int]) -> Base:
    return Base(int(value["size"]), int(value["crc32"]))


def _lines(data: bytes) -> Iterator[tuple[Any, int, int]]:
    """Value, end and checksum of each."""
    at = chain = 0
    while (end := data.find(b"\n", at)) >= 0:
        line = data[at:end]
        text = line[_CRC_DIGITS + 1 :]
        chain = crc32(text, chain)
        if line[: _CRC_DIGITS + 1] != b"%08x " % chain:
            return
        at = end + 1
        yield fastjson.loads(text), at, chain


def apply_changes(content: dict[Any, Any], changes: Iterable[Change]) -> None:
    """Apply the changes to the content of the JSON file."""
    for path, value in changes:
        place = content
        for key in path[:-1]:
            inner = place.get(key)
            if not isinstance(inner, dict):
                inner = place[key] = {}
            place = inner
        if value is None:
            place.pop(path[-1], None)
        else:
            place[path[-1]] = value


def with_journal(json: bytes, content: dict[Any, Any], journal: Journal | None) -> int | None:
    """Apply a journal to `content`, parsed from `json`; returns the number of changes, None when
    another broker has written `json` since."""
    if journal is None or not journal.changes:
        return 0
    base = base_of(json)
    if base == journal.bases[0]:
        apply_changes(content, journal.changes)
        return len(journal.changes)
    return 0 if base in journal.bases else None
