"""Record bytes to Arrow in bulk: no Python object is made per message.

Fixed fields are gathered with numpy. Bodies, topics and property values are cut out by a "gap
take": an Arrow binary array of 2n elements laid over the buffer without a copy (value, gap, value,
gap, ...), of which every other element is taken in one C++ pass. Its offsets are 32 bit, so one
batch spans less than 2 GiB of the log (`SPAN_MAX`).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aerobee.pipeline.columns import COLUMNS, arrow_schema
from aerobee.pipeline.source.arrow_properties import PropertyColumns, property_columns
from aerobee.protocol.files.compression import CannotInflate, inflate
from aerobee.protocol.files.ids import decode_host
from aerobee.protocol.files.properties import KEYS, TAGS, UNIQ_KEY
from aerobee.protocol.files.record import COMPRESSED
from aerobee.protocol.files.record_columns import HEAD_TYPES, Cut
from aerobee.protocol.files.record_layout import (
    BORN_HOST_V6,
    HEAD_V4_SIZE,
    STORE_HOST_V6,
    V6_HOSTS,
    CorruptRecord,
)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

SPAN_MAX: Final = 2**31 - 1
INFLATED_BYTES: Final = 64 * 1024 * 1024  # of decompressed bodies in a batch
# The years 1 to 9999, in milliseconds: what Spark's and Python's timestamps hold.
_TIME_MIN: Final = -62_135_596_800_000
_TIME_MAX: Final = 253_402_300_799_999


@lru_cache(maxsize=8)
def _even_numbers(count: int) -> Any:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


@lru_cache(maxsize=8)
def _repeated(text: str, count: int) -> Any:
    return pa.repeat(text, count)


def gap_take(buffer: Any, starts: Ints, ends: Ints, kind: Any, valid: Any = None) -> Any:
    """The byte ranges as an Arrow array of `kind`; the ranges ascend. `valid` False: a null."""
    count = len(starts)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = ends
    offsets[-1] = _estimate_end(starts, ends, buffer.size)
    laid = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), buffer])
    taken = laid.take(_even_numbers(count))
    if valid is None or valid.all():
        return taken
    mask = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, count, [mask, *taken.buffers()[1:]])


def _estimate_end(starts: Ints, ends: Ints, size: int) -> int:
    """An end for the last gap by which Arrow reserves the right room for the values.

    It reserves by the mean length of all 2n elements, so as much gap as value makes it reserve half
    of what is needed, and the result is copied while it grows. That gap is never read.
    """
    if not len(starts):
        return 0
    room = int(starts[0]) + 2 * (int(ends.sum()) - int(starts.sum()) + len(starts))
    return min(max(int(ends[-1]), room), size, SPAN_MAX)


class Records:
    """The records that start at `positions` (ascending) of `data`, decoded column by column."""

    def __init__(self, data: Bytes, positions: Ints, broker: str | None = None) -> None:
        self.data = data
        self.buffer = pa.py_buffer(data)
        self.positions = positions
        self.broker = broker
        self.count = len(positions)
        self._check_room()
        cut = Cut(data, positions)
        self.fields = cut.heads
        self.sys_flag = cut.sys_flag
        self.body_starts, self.body_ends = cut.body_starts, cut.body_ends
        self.topic_starts, self.topic_ends = cut.topic_starts, cut.topic_ends
        self.property_starts, self.ends = cut.props_at, cut.ends
        self._properties: PropertyColumns | None = None
        self.values: Any = None  # the bodies, when they were decompressed already

    def _check_room(self) -> None:
        if not self.count:
            return
        if self.positions[0] < 0 or self.positions[-1] + HEAD_V4_SIZE > len(self.data):
            raise CorruptRecord(int(self.positions[-1]), f"{len(self.data)} bytes are all there is")
        if int(self.positions[-1]) > SPAN_MAX:
            raise ValueError(f"a batch spans at most {SPAN_MAX} bytes of the log")

    @property
    def properties(self) -> PropertyColumns:
        if self._properties is None:
            text = gap_take(self.buffer, self.property_starts, self.ends, pa.binary())
            self._properties = property_columns(text, gap_take)
        return self._properties

    def column(self, name: str) -> Any:
        """One column of `columns.COLUMNS` as an Arrow array."""
        return _MAKERS[name](self)

    def select(self, keep: Any) -> "Records":
        """The records where `keep` is true."""
        return Records(self.data, self.positions[keep], self.broker)

    def batches(self, names: Sequence[str], schema: Any = None) -> Iterator[Any]:
        """One RecordBatch; more of them where decompressed bodies would make it too large."""
        if "value" not in names or not (self.sys_flag & COMPRESSED).any():
            yield self.batch(names, schema)
            return
        start = 0
        for bodies in _inflated(self):
            part = Records(self.data, self.positions[start : start + len(bodies)], self.broker)
            part.values = bodies
            start += len(bodies)
            yield part.batch(names, schema)

    def batch(self, names: Sequence[str], schema: Any = None) -> Any:
        """A RecordBatch of the named columns."""
        arrays = [self.column(name) for name in names]
        return pa.RecordBatch.from_arrays(arrays, schema=schema or arrow_schema(names))


def _integer(field: str, kind: Any) -> Any:
    return lambda records: pa.array(records.fields[field].astype(kind))


def _time(field: str) -> Any:
    def make(records: Records) -> Any:
        millis = records.fields[field].astype(np.int64)
        valid = (millis >= _TIME_MIN) & (millis <= _TIME_MAX)  # clients may send any number
        mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        buffers = [mask, pa.py_buffer(np.where(valid, millis, 0) * 1000)]
        return pa.Array.from_buffers(COLUMNS["timestamp"][1], records.count, buffers)

    return make


def _topic(records: Records) -> Any:
    return gap_take(records.buffer, records.topic_starts, records.topic_ends, pa.string())


def _value(records: Records) -> Any:
    if records.values is not None:
        return records.values
    if (records.sys_flag & COMPRESSED).any():
        return pa.concat_arrays(_inflated(records))
    return gap_take(records.buffer, records.body_starts, records.body_ends, pa.binary())


def _inflated(records: Records) -> Iterator[Any]:
    """The decompressed bodies, as arrays of some `INFLATED_BYTES` at most."""
    bodies = gap_take(records.buffer, records.body_starts, records.body_ends, pa.binary())
    values: list[bytes] = []
    size = 0
    for row, (body, sys_flag) in enumerate(zip(bodies, records.sys_flag.tolist(), strict=True)):
        value = body.as_py()
        try:
            values.append(inflate(value, sys_flag) if sys_flag & COMPRESSED else value)
        except CannotInflate as error:
            reason = f"its body cannot be decompressed: {error.__cause__ or error}"
            raise CorruptRecord(int(records.positions[row]), reason) from None
        size += len(values[-1])
        if size >= INFLATED_BYTES:
            yield pa.array(values, pa.binary())
            values, size = [], 0
    if values:
        yield pa.array(values, pa.binary())


def _host(field: str, flag: int) -> Any:
    def make(records: Records) -> Any:
        if (records.sys_flag & flag).any():
            return pa.array(_long_hosts(records, field), pa.string())
        packed = np.ascontiguousarray(records.fields[field]).view(np.uint64)
        if records.count and (packed == packed[0]).all():  # one broker, often one producer
            return _repeated(_host_text(packed[:1].tobytes()), records.count)
        distinct, codes = np.unique(packed, return_inverse=True)
        texts = pa.array([_host_text(one.tobytes()) for one in distinct], pa.string())
        return texts.take(pa.array(codes.astype(np.int32)))

    return make


def _host_text(host: bytes) -> str:
    ip, port = decode_host(host)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def host_bytes(records: Records, field: str, row: int) -> bytes:
    """The packed host of one record, 8 or 20 bytes."""
    form = HEAD_TYPES[int(records.sys_flag[row]) & V6_HOSTS]
    at = int(records.positions[row])
    host: bytes = records.data[at : at + form.itemsize].view(form)[field].tobytes()
    return host


def _long_hosts(records: Records, field: str) -> list[str]:
    return [_host_text(host_bytes(records, field, row)) for row in range(records.count)]


_HEX: Final = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), "V2")


def _offset_message_id(records: Records) -> Any:
    if (records.sys_flag & STORE_HOST_V6).any():
        ids = [
            (host_bytes(records, "store_host", row) + offset.to_bytes(8, "big")).hex().upper()
            for row, offset in enumerate(records.fields["physical_offset"].tolist())
        ]
        return pa.array(ids, pa.string())
    raw = np.empty((records.count, 16), np.uint8)
    raw[:, :8] = np.ascontiguousarray(records.fields["store_host"]).view(np.uint8).reshape(-1, 8)
    offsets = np.ascontiguousarray(records.fields["physical_offset"])
    raw[:, 8:] = offsets.view(np.uint8).reshape(-1, 8)
    text = pa.py_buffer(np.ascontiguousarray(_HEX[raw]))
    ends = pa.py_buffer(np.arange(0, 32 * records.count + 1, 32, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), records.count, [None, ends, text])


def _message_id(records: Records) -> Any:
    unique = records.properties.value_of(UNIQ_KEY, pa.string())
    return pc.coalesce(unique, _offset_message_id(records)) if unique.null_count else unique


def _broker(records: Records) -> Any:
    if records.broker is None:
        return pa.nulls(records.count, pa.string())
    return _repeated(records.broker, records.count)


def _keys(records: Records) -> Any:
    words = pc.split_pattern(records.properties.value_of(KEYS, pa.string()), " ")
    return words.cast(COLUMNS["keys"][1])


_MAKERS: Final[dict[str, Any]] = {
    "key": lambda records: records.properties.value_of(KEYS, pa.binary()),
    "value": _value,
    "topic": _topic,
    "partition": _integer("queue_id", np.int32),
    "offset": _integer("queue_offset", np.int64),
    "timestamp": _time("store_timestamp"),
    "tags": lambda records: records.properties.value_of(TAGS, pa.string()),
    "properties": lambda records: records.properties.as_map(),
    "bornTimestamp": _time("born_timestamp"),
    "messageId": _message_id,
    "reconsumeTimes": _integer("reconsume_times", np.int32),
    "bornHost": _host("born_host", BORN_HOST_V6),
    "storeHost": _host("store_host", STORE_HOST_V6),
    "flag": _integer("flag", np.int32),
    "sysFlag": lambda records: pa.array(records.sys_flag),
    "broker": _broker,
    "headers": lambda records: records.properties.as_headers(),
    "keys": _keys,
    "storeTimestamp": _time("store_timestamp"),
    "offsetMessageId": _offset_message_id,
    "physicalOffset": _integer("physical_offset", np.int64),
    "storeSize": _integer("size", np.int32),
    "bodyCrc": _integer("body_crc", np.int32),
    "preparedTransactionOffset": _integer("prepared_transaction_offset", np.int64),
}
assert set(_MAKERS) == set(COLUMNS)
