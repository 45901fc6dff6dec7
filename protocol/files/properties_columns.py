"""Finds tags and keys in the properties of thousands of records at once.

Records of one sender have the same names and lengths. Those whose separators are at the same
positions and whose names are equal share one parse, done on the first of them, and the values are
columns of a byte matrix. Single records, and non-ASCII ones, are parsed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from aerobee.protocol.files.java_hash import java_hash
from aerobee.protocol.files.java_hash_columns import POWERS, hash_texts
from aerobee.protocol.files.properties import (
    NAME_END_BYTES,
    PAIR_END_BYTES,
    TAGS,
    key_spans,
    value_span,
)
from aerobee.protocol.files.record_columns import Column, groups, rows

Span = tuple[int, int]

FEW: Final = 8  # records: parsed one by one
LAYOUTS: Final = 8  # tried for records of one length; the rest is parsed one by one
_FIRST_PLAIN, _LAST_PLAIN, _ALL_BITS = np.uint8(33), np.uint8(127), np.uint8(255)


@dataclass(slots=True)
class Keys:
    """The Java hash of each key without its topic, and how many characters it has."""

    record: list[Column] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)  # its index within the record
    hash: list[Column] = field(default_factory=list)
    length: list[Column] = field(default_factory=list)

    def add(self, record: Column, rank: int, hashes: Column, length: int) -> None:
        self.record.append(record)
        self.rank.append(rank)
        self.hash.append(hashes)
        self.length.append(np.full(len(record), length, np.int64))

    def in_order(self) -> tuple[Column, Column, Column]:
        """Record numbers, hashes and powers of 31 for the keys' lengths, in the log's order."""
        if not self.record:
            nothing = np.empty(0, np.int64)
            return nothing, nothing, nothing
        ranks = [np.full(len(r), k, np.int64) for r, k in zip(self.record, self.rank, strict=True)]
        record = np.concatenate(self.record)
        order = np.argsort(record << 16 | np.concatenate(ranks), kind="stable")
        length = np.concatenate(self.length)[order]
        return record[order], np.concatenate(self.hash)[order], POWERS[length]


def read_properties(view: memoryview, at: Column, sizes: Column) -> tuple[Column, Keys]:
    """The tags code of each record, and the keys of all."""
    codes = np.zeros(len(at), np.int64)
    keys = Keys()
    for size, which in groups(sizes):
        texts = rows(view, at[which], size)
        for _ in range(LAYOUTS):
            if len(which) < FEW:
                break
            same = _like_first(texts)
            if same is not None:
                _read_layout(texts[same], which[same], codes, keys)
                which, texts = which[~same], texts[~same]
            else:  # the first is not ASCII
                _read_one(texts[0].tobytes(), which[:1], codes, keys)
                which, texts = which[1:], texts[1:]
        for number, text in enumerate(texts):
            _read_one(text.tobytes(), which[number : number + 1], codes, keys)
    return codes, keys


def _like_first(texts: Column) -> Column | None:
    """The texts with the first one's layout; None if that is not ASCII."""
    first = texts[0]
    if (first >= 128).any():
        return None
    is_special = _is_special(first)
    fixed = is_special * _ALL_BITS
    for start, end in _names(first.tobytes()):
        fixed[start:end] = _ALL_BITS
    differs = (texts ^ first) & fixed
    differs |= _is_special(texts) != is_special
    return ~differs.any(1) if differs.any() else np.ones(len(texts), bool)


def _is_special(texts: Column) -> Column:
    """Whether each is not a printable ASCII character: separators, spaces and all others."""
    return np.asarray(
        texts - _FIRST_PLAIN > _LAST_PLAIN - _FIRST_PLAIN
    )  # one comparison: below 0 wraps


def _names(text: bytes) -> list[Span]:
    """Where the names are: before each NAME_END."""
    spans = []
    start = 0
    for pair in text.split(PAIR_END_BYTES):
        length = pair.find(NAME_END_BYTES)
        spans.append((start, start + (length if length >= 0 else len(pair))))
        start += len(pair) + 1
    return spans


def _read_layout(texts: Column, which: Column, codes: Column, keys: Keys) -> None:
    text = texts[0].tobytes().decode()
    tag = value_span(text, TAGS)
    if tag is not None:
        codes[which] = hash_texts(texts[:, slice(*tag)]).astype(np.int32)
    for rank, span in enumerate(key_spans(text)):
        keys.add(which, rank, hash_texts(texts[:, slice(*span)]), span[1] - span[0])


def _read_one(data: bytes, which: Column, codes: Column, keys: Keys) -> None:
    text = data.decode("utf-8", "replace")
    tag = value_span(text, TAGS)
    if tag is not None:
        codes[which] = java_hash(text[slice(*tag)])
    for rank, (start, end) in enumerate(key_spans(text)):
        key = text[start:end]
        units = len(key) if key.isascii() else len(key.encode("utf-16-le")) // 2
        keys.add(which, rank, np.array([java_hash(key) & 0xFFFFFFFF], np.uint32), units)
