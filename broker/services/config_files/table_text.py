"""The texts that a save of a config table writes: made on the loop, in slices."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from time import perf_counter
from typing import Any, Final

from aerobee.protocol.files.config_journal import Change, Path, encode_changes
from aerobee.protocol.json import json_stream

SLICE_S: Final = 0.0001
_LINE_CHANGES: Final = 16
_VERSION: Final = ("dataVersion",)

Slices = Generator[None, None, list[bytes]]


def journal_slices(changed: Iterable[Path], value_of: Callable[[Path], Any]) -> Slices:
    """The lines for entries that have changed, and for the table's version."""
    paths = list(changed)
    texts = []
    until = perf_counter() + SLICE_S
    for start in range(0, len(paths), _LINE_CHANGES):
        some = paths[start : start + _LINE_CHANGES]
        texts.append(encode_changes([(path, value_of(path)) for path in some]))
        if perf_counter() > until:
            yield
            until = perf_counter() + SLICE_S
    version = value_of(_VERSION)
    if version is not None:
        texts.append(encode_changes([(_VERSION, version)]))
    return texts


def whole_slices(entries: Iterable[Change]) -> Slices:
    """The text of the JSON file in pieces."""
    texts = []
    until = perf_counter() + SLICE_S
    for piece in json_stream.pieces(entries):
        texts.append(piece)
        if perf_counter() > until:
            yield
            until = perf_counter() + SLICE_S
    return texts


def made_by(slices: Slices) -> list[bytes]:
    """All of it at once."""
    while True:
        try:
            next(slices)
        except StopIteration as made:
            texts: list[bytes] = made.value
            return texts
