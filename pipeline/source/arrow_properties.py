"""The property strings of a batch, parsed all at once into maps and single values.

A pair ends at PAIR_END or where its record's string ends; its name ends at the first NAME_END. A
pair whose name or value is empty is left out, and so is the broker's checksum of the record.

Most batches come from producers that set the same properties in the same order, so that pair n of
every record has one name: `SamePairs` reads those; `MixedPairs` reads everything.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aerobee.pipeline.columns import COLUMNS
from aerobee.protocol.files.properties import CRC32, NAME_END, PAIR_END

Ints = npt.NDArray[np.int64]
_CRC_NAME: Final = CRC32.encode()
_NAME_END, _PAIR_END = ord(NAME_END), ord(PAIR_END)
_MARK_MAX: Final = max(_NAME_END, _PAIR_END)


class PropertyColumns(Protocol):
    """The parsed properties of a batch."""

    def value_of(self, name: str, kind: Any) -> Any:
        """The property of that name per record, null where it has none."""

    def as_map(self) -> Any:
        """Column `properties`."""

    def as_headers(self) -> Any:
        """Column `headers`."""


def property_columns(text: Any, gap_take: Callable[..., Any]) -> PropertyColumns:
    """Parses `text`, a binary array with a property string per record."""
    _valid, offsets, data = text.buffers()
    buffer = data if data is not None else pa.py_buffer(b"")
    bounds = np.frombuffer(offsets, np.int32)[: len(text) + 1].astype(np.int64)
    pairs = _same_pairs(np.frombuffer(buffer, np.uint8)[: bounds[-1]], bounds)
    if pairs is not None:
        return SamePairs(buffer, len(text), pairs, gap_take)
    return MixedPairs(buffer, bounds, gap_take)


def _headers(row_offsets: Any, names: Any, values: Any) -> Any:
    kind = COLUMNS["headers"][1]
    pairs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(row_offsets, pairs, type=kind)


def _same_pairs(data: Any, bounds: Ints) -> list[tuple[bytes, Ints, Ints]] | None:
    """Name, value starts and value ends of each pair; None unless all records have those names."""
    rows = len(bounds) - 1
    marks: Any = np.flatnonzero(data <= _MARK_MAX)
    if not rows or not len(marks) or len(marks) % rows:
        return None
    marks = marks.reshape(rows, -1)
    kinds = data[marks]
    if (kinds[:, 0::2] != _NAME_END).any() or (kinds[:, 1::2] != _PAIR_END).any():
        return None
    columns = list(np.ascontiguousarray(marks.T))
    if len(columns) % 2:  # 4.9 to 5.1 leave out the last mark
        columns.append(bounds[1:])
    elif (columns[-1] != bounds[1:] - 1).any():
        return None
    pairs = []
    starts = bounds[:-1]
    for name_ends, ends in zip(columns[0::2], columns[1::2], strict=True):
        name = _same_text(data, starts, name_ends)
        if not name or (ends - name_ends < 2).any():
            return None
        if name != _CRC_NAME:
            pairs.append((name, name_ends + 1, ends))
        starts = ends + 1
    return pairs


def _same_text(data: Any, starts: Ints, ends: Ints) -> bytes | None:
    """The text that all these ranges hold; None when they differ."""
    text: bytes = data[starts[0] : ends[0]].tobytes()
    size = len(text)
    if not size or (ends - starts != size).any():
        return None
    width = next(width for width in (8, 4, 2, 1) if width <= size)
    words = np.ndarray((len(data) - width + 1,), f"u{width}", buffer=data, strides=(1,))
    for at in {*range(0, size - width, width), size - width}:  # the last may overlap
        found = words[starts + at]
        if (found != found[0]).any():
            return None
    return text


class SamePairs:
    """Properties of records that all have the same names in the same order."""

    def __init__(
        self,
        buffer: Any,
        count: int,
        pairs: list[tuple[bytes, Ints, Ints]],
        gap_take: Callable[..., Any],
    ) -> None:
        self._buffer, self._count, self._pairs = buffer, count, pairs
        self._gap_take = gap_take

    def value_of(self, name: str, kind: Any) -> Any:
        for known, starts, ends in reversed(self._pairs):  # the last one counts
            if known == name.encode():
                return self._gap_take(self._buffer, starts, ends, kind)
        return pa.nulls(self._count, kind)

    def _row_offsets(self) -> Any:
        step = len(self._pairs)
        return pa.array(np.arange(self._count + 1, dtype=np.int32) * np.int32(step))

    def _all_names(self) -> Any:
        """The names of one record, repeated."""
        names = [name for name, _, _ in self._pairs]
        lengths = [len(name) for name in names]
        offsets = np.zeros(self._count * len(lengths) + 1, np.int32)
        firsts = np.arange(self._count, dtype=np.int32) * np.int32(sum(lengths))
        offsets[1:] = (firsts[:, None] + np.cumsum(lengths, dtype=np.int32)).ravel()
        text = pa.py_buffer(b"".join(names) * self._count)
        return pa.Array.from_buffers(
            pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), text]
        )

    def _all_values(self, kind: Any) -> Any:
        shape = (self._count, len(self._pairs))
        starts, ends = np.empty(shape, np.int64), np.empty(shape, np.int64)
        for at, (_, some_starts, some_ends) in enumerate(self._pairs):
            starts[:, at], ends[:, at] = some_starts, some_ends
        return self._gap_take(self._buffer, starts.ravel(), ends.ravel(), kind)

    def as_map(self) -> Any:
        return pa.MapArray.from_arrays(
            self._row_offsets(), self._all_names(), self._all_values(pa.string())
        )

    def as_headers(self) -> Any:
        return _headers(self._row_offsets(), self._all_names(), self._all_values(pa.binary()))


class MixedPairs:
    """Properties of any records; `bounds` are the start and end of each record's string."""

    def __init__(self, buffer: Any, bounds: Ints, gap_take: Callable[..., Any]) -> None:
        self._gap_take = gap_take
        self.count = len(bounds) - 1
        self._buffer = buffer
        self._data = np.frombuffer(buffer, np.uint8)[: bounds[-1]]
        self._row_starts = bounds[:-1]
        self._named: dict[int, tuple[Ints, Any]] = {}
        self._find_pairs(bounds)

    def _find_pairs(self, bounds: Ints) -> None:
        """Row, start, end of name and end of every pair, in order."""
        ends = np.flatnonzero(self._data == _PAIR_END)
        name_ends = np.flatnonzero(self._data == _NAME_END)
        row_ends = bounds[1:]
        upto = np.searchsorted(ends, row_ends)
        rows = np.repeat(np.arange(self.count), np.diff(upto, prepend=0))
        gaps = np.ones(len(ends), np.int64)  # from this pair's end to the next one's start
        filled = np.flatnonzero(row_ends > bounds[:-1])
        open_rows = filled[self._data[row_ends[filled] - 1] != _PAIR_END]
        if len(open_rows):  # 4.9 to 5.1 leave out the last mark
            rows = np.concatenate((rows, open_rows))
            ends = np.concatenate((ends, row_ends[open_rows]))
            gaps = np.concatenate((gaps, np.zeros(len(open_rows), np.int64)))
            order = np.argsort(ends * 2 + gaps, kind="stable")
            rows, ends, gaps = rows[order], ends[order], gaps[order]
        starts = np.zeros(len(ends), np.int64)
        starts[1:] = (ends + gaps)[:-1]
        self._keep_pairs(rows, starts, ends, name_ends)

    def _keep_pairs(self, rows: Ints, starts: Ints, ends: Ints, marks: Ints) -> None:
        if len(marks) == len(ends) and ((marks >= starts) & (marks < ends)).all():
            name_ends = marks  # almost always: a mark in each pair and nowhere else
            whole = np.ones(len(ends), bool)
        else:
            at = np.searchsorted(marks, starts)
            whole = at < len(marks)
            name_ends = np.append(marks, 0)[at]
            whole &= name_ends < ends
        whole &= (name_ends > starts) & (name_ends + 1 < ends)
        self._set_pairs(rows, starts, name_ends, ends, whole)
        checksums = self._pairs_named(_CRC_NAME)
        if len(checksums):
            kept = np.ones(len(self.rows), bool)
            kept[checksums] = False
            self._set_pairs(self.rows, self.starts, self.name_ends, self.ends, kept)

    def _set_pairs(self, rows: Ints, starts: Ints, name_ends: Ints, ends: Ints, kept: Any) -> None:
        if not kept.all():
            rows, starts, name_ends, ends = rows[kept], starts[kept], name_ends[kept], ends[kept]
        self.rows, self.starts, self.name_ends, self.ends = rows, starts, name_ends, ends
        self._named.clear()

    def _pairs_named(self, name: bytes) -> Ints:
        """Which pairs have that name (four or eight bytes: compared as one integer)."""
        size = len(name)
        if size not in self._named:
            at = np.flatnonzero(self.name_ends - self.starts == size)
            words = np.zeros(0, f"u{size}")
            if len(at):
                windows = np.lib.stride_tricks.sliding_window_view(self._data, size)
                words = np.ascontiguousarray(windows[self.starts[at]]).view(f"u{size}")[:, 0]
            self._named[size] = at, words
        at, words = self._named[size]
        found: Ints = at[words == np.frombuffer(name, f"u{size}")[0]]
        return found

    def value_of(self, name: str, kind: Any) -> Any:
        pairs = self._pairs_named(name.encode())
        starts, ends = self._row_starts.copy(), self._row_starts.copy()
        valid = np.zeros(self.count, bool)
        rows = self.rows[pairs]
        starts[rows] = self.name_ends[pairs] + 1
        ends[rows] = self.ends[pairs]
        valid[rows] = True
        return self._gap_take(self._buffer, starts, ends, kind, valid)

    def _row_offsets(self) -> Any:
        """Where each record's pairs begin among all pairs, and where the last one's end."""
        counts = np.bincount(self.rows, minlength=self.count)
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.array(offsets)

    def as_map(self) -> Any:
        names = self._gap_take(self._buffer, self.starts, self.name_ends, pa.string())
        values = self._gap_take(self._buffer, self.name_ends + 1, self.ends, pa.string())
        return pa.MapArray.from_arrays(self._row_offsets(), names, values)

    def as_headers(self) -> Any:
        names = self._gap_take(self._buffer, self.starts, self.name_ends, pa.string())
        values = self._gap_take(self._buffer, self.name_ends + 1, self.ends, pa.binary())
        return _headers(self._row_offsets(), names, values)
