"""Results of the store: of puts and reads, and their statuses, with RocketMQ's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import NamedTuple

from aerobee.broker.base.histogram import Histogram
from aerobee.broker.store.files.mapped_file import MappedFile


class PutStatus(IntEnum):
    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPEDFILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGECACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    IN_SYNC_REPLICAS_NOT_ENOUGH = 10
    PUT_TO_REMOTE_BROKER_FAIL = 11
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 12
    WHEEL_TIMER_FLOW_CONTROL = 13
    WHEEL_TIMER_MSG_ILLEGAL = 14
    WHEEL_TIMER_NOT_ENABLE = 15


class PutResult:
    """The result of one message; offsets and time are valid when `ok`, `reason` when not."""

    __slots__ = ("physical_offset", "queue_offset", "size", "status", "store_timestamp")

    # Only a refused put and a batch set these: a plain put stays cheap to create.
    reason: str = ""
    physical_offsets: Sequence[int] | None = None

    def __init__(
        self,
        status: PutStatus,
        physical_offset: int = -1,
        size: int = 0,
        queue_offset: int = -1,
        store_timestamp: int = 0,
    ) -> None:
        self.status = status
        self.physical_offset = physical_offset
        self.size = size
        self.queue_offset = queue_offset
        self.store_timestamp = store_timestamp

    @property
    def ok(self) -> bool:
        return self.status is PutStatus.PUT_OK

    @property
    def end_offset(self) -> int:
        """Durable once the log is flushed up to here."""
        return self.physical_offset + self.size

    def __repr__(self) -> str:
        return f"PutResult({self.status.name}, {self.physical_offset}, {self.reason!r})"


class RefusedPut(PutResult):
    """A message that was not stored, and why."""

    __slots__ = ("reason",)

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(status)
        self.reason = reason


class BatchPut(PutResult):
    """A batch: its range of the log, the first queue offset, and the offset of each message."""

    __slots__ = ("physical_offsets",)

    def __init__(
        self, physical_offsets: Sequence[int], size: int, queue_offset: int, store_timestamp: int
    ) -> None:
        super().__init__(PutStatus.PUT_OK, physical_offsets[0], size, queue_offset, store_timestamp)
        self.physical_offsets = physical_offsets


class Refusal(NamedTuple):
    """Why puts are refused, as a status and a message."""

    status: PutStatus
    reason: str


class Arrival(NamedTuple):
    """A message that consumers can now read."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    store_timestamp: int
    properties: str
    physical_offset: int
    size: int


class ReadStatus(Enum):
    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    MESSAGE_WAS_REMOVING = auto()
    OFFSET_FOUND_NULL = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_TOO_SMALL = auto()
    NO_MATCHED_LOGIC_QUEUE = auto()
    NO_MESSAGE_IN_QUEUE = auto()


class Boundary(Enum):
    """Which message around a time: the first not before it, or the last not after it."""

    LOWER = auto()
    UPPER = auto()


Span = tuple[MappedFile, int, int]  # of a file of the log: position and length


class ReadResult:
    """Records as views into the log. The views stay valid; `release` lets the files be removed."""

    __slots__ = (
        "_views",
        "cold",
        "count",
        "held",
        "max_offset",
        "min_offset",
        "next_offset",
        "size",
        "spans",
        "status",
    )

    def __init__(
        self, status: ReadStatus, next_offset: int, min_offset: int, max_offset: int
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.count = 0
        self.size = 0
        self.cold = False  # far behind the log's end: probably not in memory
        self.held: list[MappedFile] = []
        self.spans: list[Span] = []
        self._views: list[memoryview] | None = None

    @property
    def views(self) -> list[memoryview]:
        """The spans in the mapped files: made when they are asked for, as `read_cold` needs none.
        They outlive the files."""
        if self._views is None:
            self._views = [file.view[at : at + size] for file, at, size in self.spans]
        return self._views

    def release(self) -> None:
        held, self.held = self.held, []
        for file in held:
            file.release()


@dataclass(slots=True)
class QueryResult:
    """The records with a key, and how far the index was built."""

    views: list[memoryview]
    index_last_update_timestamp: int = 0
    index_last_update_physical_offset: int = 0


@dataclass(slots=True)
class StoreStats:
    """Counters since the start."""

    puts: int = 0
    put_failures: int = 0
    put_bytes: int = 0
    put_lock_ms_max: float = 0.0
    flushes: int = 0
    flush_ms_max: float = 0.0
    dispatched: int = 0
    put_times: Histogram = field(default_factory=Histogram)  # of one call of put or put_batch
    flush_times: Histogram = field(default_factory=Histogram)  # of one fdatasync of the log


DurableCallback = Callable[[PutStatus], None]
ArrivalListener = Callable[[list[Arrival]], None]
