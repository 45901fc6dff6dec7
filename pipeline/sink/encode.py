"""Rows of a DataFrame as the bytes of SEND_BATCH_MESSAGE, a whole RecordBatch at a time.

Each row becomes `size, 0, 0, flag, body length, body, properties length, properties`. The pieces
are Arrow arrays joined row by row in C++, so the rows of a message batch are one slice of a buffer.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.sink.places import Target, key_hashes
from aerobee.pipeline.sink.rows import BROKER_MADE, ROW
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import BATCH_FIELDS, BATCH_HEAD
from aerobee.protocol.files.ids import UniqueIds
from aerobee.protocol.files.properties import PROPERTIES_SIZE_MAX

BATCH_HEAD_TYPE: Final = np.dtype([(name, ">i4") for name in BATCH_FIELDS])
_NAME_END: Final = pa.scalar(properties.NAME_END_BYTES, pa.binary())
_PAIR_END: Final = pa.scalar(properties.PAIR_END_BYTES, pa.binary())
_NOTHING: Final = pa.scalar(b"", pa.binary())
_HEXADECIMAL: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_DROPPED: Final = pa.array(sorted(name.encode() for name in BROKER_MADE), pa.binary())


class BulkIds:
    """A producer's unique ids, many at once: a counter makes those of one millisecond unique."""

    def __init__(self) -> None:
        self._ids = UniqueIds()
        self._count = 0

    def take(self, count: int) -> Any:
        """The next ids, a row of bytes each."""
        pieces: list[Any] = []
        left = count
        while left or not pieces:
            if pieces:
                time.sleep(0.002)  # another moment, for the counter has come round
            stem = np.frombuffer(self._ids.next()[:-4].encode(), np.uint8)
            some = min(left, 0x8000)
            numbers = np.arange(self._count, self._count + some)
            taken = np.empty((some, len(stem) + 4), np.uint8)
            taken[:, :-4] = stem
            taken[:, -4:] = _HEXADECIMAL[numbers[:, None] >> (12, 8, 4, 0) & 15]
            pieces.append(taken)
            self._count += some
            left -= some
        return np.concatenate(pieces)


class RowNames:
    """The names of a task's rows, in the order of its rows: the same when the task is run again."""

    def __init__(self, place: str) -> None:
        self._start = pa.scalar(f"{ROW}{properties.NAME_END}{place}/".encode(), pa.binary())
        self._count = 0

    def take(self, count: int) -> Any:
        """The next names as properties, each ended."""
        numbers = pa.array(np.arange(self._count, self._count + count)).cast(pa.string())
        self._count += count
        return pc.binary_join_element_wise(
            self._start, numbers.cast(pa.binary()), _PAIR_END, _NOTHING
        )


class Group:
    """Encoded rows for one target."""

    __slots__ = ("offsets", "target", "view")

    def __init__(self, target: Target, rows: Any) -> None:
        self.target = target
        _valid, offsets, data = rows.buffers()
        first = rows.offset
        self.offsets = np.frombuffer(offsets, np.int32)[first : first + len(rows) + 1]
        self.view = memoryview(data) if data is not None else memoryview(b"")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, end: int) -> memoryview:
        return self.view[self.offsets[start] : self.offsets[end]]


def encode_rows(
    batch: Any,
    topic: str | None,
    ids: BulkIds,
    lanes: Callable[[str], int] | None = None,
    names: RowNames | None = None,
) -> Iterator[Group]:
    """The batch's rows, grouped by where they go; within a group in the batch's order.

    `lanes` says how many queues the keys of a topic are spread over; without it, or with 0, keys
    do not decide. `names`: each row brings its name, as the first of its properties."""
    columns = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
    for name in ("value",) if topic else ("value", "topic"):
        if columns[name].null_count:
            raise OptionError(f"a row's {name} is null; a message needs one: filter such rows out")
    rows = _joined(columns, batch.num_rows, ids, names)
    hashes = key_hashes(_binary(columns["key"])) if lanes and "key" in columns else None
    if topic and "partition" not in columns:
        yield from _by_key(topic, rows, hashes, lanes)
        return
    topics = [topic] * batch.num_rows if topic else columns["topic"].to_pylist()
    queues = columns["partition"].to_pylist() if "partition" in columns else [None] * len(topics)
    places: dict[tuple[str, int | None], list[int]] = {}
    for number, place in enumerate(zip(topics, queues, strict=True)):
        places.setdefault(place, []).append(number)
    for (its_topic, queue_id), numbers in places.items():
        some = rows.take(pa.array(numbers, pa.int32()))
        if queue_id is None:
            its_hashes = None if hashes is None else hashes[numbers]
            yield from _by_key(its_topic, some, its_hashes, lanes)
        elif queue_id < 0:
            text = f"a row's partition is {queue_id}; queues count from 0, null leaves the choice"
            raise OptionError(text)
        else:
            yield Group(Target(its_topic, queue_id), some)


def _by_key(
    topic: str, rows: Any, hashes: Any, lanes: Callable[[str], int] | None
) -> Iterator[Group]:
    """The rows of a topic by the queues that their keys mean; those without a key together."""
    count = lanes(topic) if lanes and hashes is not None and (hashes >= 0).any() else 0
    if not count:
        yield Group(Target(topic), rows)
        return
    chosen = np.where(hashes < 0, -1, hashes % count)
    for lane in np.unique(chosen).tolist():
        numbers = np.nonzero(chosen == lane)[0].astype(np.int32)
        yield Group(Target(topic, lane=None if lane < 0 else lane), rows.take(pa.array(numbers)))


def _joined(columns: dict[str, Any], count: int, ids: BulkIds, names: RowNames | None) -> Any:
    body = _binary(columns["value"])
    props = _properties(columns, count, ids, names)
    body_sizes = _lengths(body)
    props_sizes = _lengths(props)
    if count and int(props_sizes.max()) > PROPERTIES_SIZE_MAX:
        raise OptionError(
            f"a row's properties take {int(props_sizes.max())} bytes; at most "
            f"{PROPERTIES_SIZE_MAX} fit into a message"
        )
    head = np.zeros(count, BATCH_HEAD_TYPE)
    head["size"] = BATCH_HEAD.size + body_sizes + 2 + props_sizes
    if "flag" in columns:
        head["flag"] = columns["flag"].fill_null(0).to_numpy(zero_copy_only=False)
    head["body_length"] = body_sizes
    sizes = props_sizes.astype(">i2").reshape(-1, 1)
    return pc.binary_join_element_wise(
        _fixed(head, BATCH_HEAD.size), body, _fixed(sizes, 2), props, _NOTHING
    )


def _binary(array: Any) -> Any:
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def _lengths(array: Any) -> Any:
    return pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64)


def _fixed(values: Any, width: int) -> Any:
    """The rows of a numpy array as binary values of `width` bytes."""
    offsets = np.arange(0, width * len(values) + 1, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _properties(columns: dict[str, Any], count: int, ids: BulkIds, names: RowNames | None) -> Any:
    """The property strings; key and tags win over entries of the map of the same name."""
    pieces = [] if names is None else [names.take(count)]
    named: dict[str, Any] = {}  # which rows have the property by a column
    for column, name in (("key", properties.KEYS), ("tags", properties.TAGS)):
        if column in columns:
            values = _binary(columns[column])
            given = pc.greater(pc.binary_length(values), 0).fill_null(False)
            named[name] = given.to_numpy(zero_copy_only=False)
            _check_separators(values)
            pieces.append(_pair(name, pc.if_else(given, values, pa.scalar(None, pa.binary()))))
    unique = np.zeros(count, bool)
    for column in ("properties", "headers"):
        if column in columns:
            text, has_id = _pairs_of(columns[column], column, named, count)
            unique |= has_id
            pieces.append(text)
    fresh = _fixed_pairs(properties.UNIQ_KEY, ids.take(count))
    if unique.any():
        fresh = pc.if_else(pa.array(unique), pa.scalar(None, pa.binary()), fresh)
    pieces.append(fresh)
    return pc.binary_join_element_wise(
        *pieces, _NOTHING, null_handling="replace", null_replacement=b""
    )


def _pair(name: str, values: Any) -> Any:
    """The pair of each value; null where there is none."""
    start = pa.scalar((name + properties.NAME_END).encode(), pa.binary())
    return pc.binary_join_element_wise(start, values, _PAIR_END, _NOTHING)


def _fixed_pairs(name: str, values: Any) -> Any:
    """The pairs of values of one width, which are the rows of a numpy array."""
    start = np.frombuffer((name + properties.NAME_END).encode(), np.uint8)
    width = len(start) + values.shape[1] + 1
    pairs = np.empty((len(values), width), np.uint8)
    pairs[:, : len(start)] = start
    pairs[:, len(start) : -1] = values
    pairs[:, -1] = ord(properties.PAIR_END)
    return _fixed(pairs, width)


def _pairs_of(array: Any, column: str, named: dict[str, Any], count: int) -> tuple[Any, Any]:
    """A map's or headers' entries as one text per row, and which rows bring a unique id."""
    if column == "headers":
        counts = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        flat = array.flatten()
        names, values = _binary(flat.field("key")), _binary(flat.field("value"))
    else:
        counts = _map_sizes(array)
        names, values = _map_entries(array)
    rows = np.repeat(np.arange(count), counts)
    named_and_full = pc.and_(
        pc.is_valid(names), pc.greater(pc.binary_length(values), 0).fill_null(False)
    )
    keep = pc.and_(pc.invert(pc.is_in(names, value_set=_DROPPED)), named_and_full)
    keep = keep.to_numpy(zero_copy_only=False)
    for name, given in named.items():
        same = pc.equal(names, pa.scalar(name.encode(), pa.binary())).fill_null(False)
        keep = keep & ~(same.to_numpy(zero_copy_only=False) & given[rows])
    names, values, rows = names.filter(pa.array(keep)), values.filter(pa.array(keep)), rows[keep]
    _check_separators(names, properties.NAME_END + properties.PAIR_END)
    _check_separators(values)
    pairs = pc.binary_join_element_wise(
        pc.binary_join_element_wise(names, values, _NAME_END), _PAIR_END, _NOTHING
    )
    has_id = np.zeros(count, bool)
    is_id = pc.equal(names, pa.scalar(properties.UNIQ_KEY.encode(), pa.binary()))
    has_id[rows[is_id.to_numpy(zero_copy_only=False)]] = True
    return _by_row(pairs, rows, count), has_id


def _map_sizes(array: Any) -> Any:
    sizes = np.diff(np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1])
    if array.null_count:
        sizes = np.where(array.is_valid().to_numpy(zero_copy_only=False), sizes, 0)
    return sizes


def _map_entries(array: Any) -> tuple[Any, Any]:
    """Names and values of the rows' entries, without those of null rows."""
    if array.null_count or array.offset:
        array = array.take(pa.array(np.arange(len(array), dtype=np.int32)))  # compact
    start = np.frombuffer(array.buffers()[1], np.int32)[array.offset]
    end = np.frombuffer(array.buffers()[1], np.int32)[array.offset + len(array)]
    span = slice(int(start), int(end))
    return _binary(array.keys[span]), _binary(array.items[span])


def _by_row(pairs: Any, rows: Any, count: int) -> Any:
    """The pairs of each row, which stand side by side, as one value per row."""
    upto = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=upto[1:])
    _valid, offsets, data = pairs.buffers()
    ends = np.frombuffer(offsets, np.int32)[upto] if len(pairs) else np.zeros(count + 1, np.int32)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(ends)), data or pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _check_separators(values: Any, marks: str = properties.PAIR_END) -> None:
    for mark in marks:
        if pc.any(pc.match_substring(values, mark)).as_py():
            raise OptionError("a property holds \\x01 or \\x02, which separate properties")
