"""The texts that a save of a config table writes: made on the loop, in slices.

A value that JSON cannot hold, an infinite number say, is left out and reported: it must not keep
the other entries from being saved.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from time import perf_counter
from typing import Any, Final

from aerobee.protocol.files.config_journal import Change, Path, encode_changes
from aerobee.protocol.json import json_stream

SLICE_S: Final = 0.0001
_LINE_CHANGES: Final = 16
_VERSION: Final = ("dataVersion",)
_UNWRITABLE: Final = (TypeError, ValueError, RecursionError)

Slices = Generator[None, None, list[bytes]]
LeftOut = Callable[[Path, Exception], None]  # told of each entry that is not written as it is


def journal_slices(
    changed: Iterable[Path], value_of: Callable[[Path], Any], left_out: LeftOut
) -> Slices:
    """The lines for entries that have changed, and for the table's version."""
    paths = list(changed)
    texts = []
    until = perf_counter() + SLICE_S
    for start in range(0, len(paths), _LINE_CHANGES):
        changes = [(path, value_of(path)) for path in paths[start : start + _LINE_CHANGES]]
        try:
            texts.append(encode_changes(changes))
        except _UNWRITABLE:
            texts.append(encode_changes(_writable(changes, left_out)))
        if perf_counter() > until:
            yield
            until = perf_counter() + SLICE_S
    version = value_of(_VERSION)
    if version is not None:
        texts.append(encode_changes([(_VERSION, version)]))
    return texts


def whole_slices(entries: Callable[[], Iterable[Change]], left_out: LeftOut) -> Slices:
    """The text of the JSON file in pieces."""
    try:
        return (yield from _pieces(entries()))
    except _UNWRITABLE:
        return (yield from _pieces(_writable(entries(), left_out)))


def _pieces(entries: Iterable[Change]) -> Slices:
    texts = []
    until = perf_counter() + SLICE_S
    for piece in json_stream.pieces(entries):
        texts.append(piece)
        if perf_counter() > until:
            yield
            until = perf_counter() + SLICE_S
    return texts


def _writable(entries: Iterable[Change], left_out: LeftOut) -> Iterator[Change]:
    """The entries without what cannot be written: a key of an object, or the whole entry."""
    for path, value in entries:
        error = _refusal(path, value)
        if error is None:
            yield path, value
            continue
        left_out(path, error)
        if isinstance(value, dict):
            rest = {key: item for key, item in value.items() if not _refusal(path, {key: item})}
            if rest and _refusal(path, rest) is None:
                yield path, rest


def _refusal(path: Path, value: Any) -> Exception | None:
    """Why this entry cannot be written."""
    try:
        encode_changes([(path, value)])
    except _UNWRITABLE as error:
        return error
    return None


def made_by(slices: Slices) -> list[bytes]:
    """All of it at once."""
    while True:
        try:
            next(slices)
        except StopIteration as made:
            texts: list[bytes] = made.value
            return texts
