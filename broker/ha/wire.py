"""RocketMQ's replication streams as bytes: reports go up, frames come down. No sockets here.

The plain stream, that of 4.9, and of 5 without a controller:

    slave   8 bytes       int64 end of its log; the last whole one counts
    master  12 + n bytes  int64 offset, int32 n, n bytes of the log as they are; n = 0: heartbeat

The stream with epochs, "AutoSwitch" in RocketMQ 5:

    slave   16 bytes, once     int32 1, int16 from the newest file, int16 learner, int64 brokerId
    master  20 + 12 k, once    int32 1, int32 12 k, int64 end of its log, int32 its epoch,
                               k times: int32 epoch, int64 its start
    slave   12 bytes           int32 2, int64 end of its log
    master  36 + n bytes       int32 2, int32 n, int64 offset, int32 epoch of these bytes, int64 its
                               start, int64 confirm offset, n bytes of the log

Frames cut records anywhere and never cross the end of a log file, nor that of an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from aerobee.protocol.files.epoch_file import Epoch

REPORT: Final = Struct(">q")
HEAD: Final = Struct(">qi")
HELLO: Final = Struct(">ihhq")  # a slave's first message on the stream with epochs
WELCOME: Final = Struct(">iiqi")  # the master's answer ...
EPOCH: Final = Struct(">iq")  # ... with these
ACK: Final = Struct(">iq")
EPOCH_HEAD: Final = Struct(">iiqiqq")
HANDSHAKE: Final = 1
TRANSFER: Final = 2
EPOCHS_MAX: Final = 1000
# A Java slave collects a frame in a buffer of 4 MiB, head included.
FRAME_SIZE_MAX: Final = (4 << 20) - EPOCH_HEAD.size


class StreamError(Exception):
    """The other side does not follow the protocol, or has another log: close the connection."""


class ReportReader:
    """A slave's reports, however they are cut."""

    __slots__ = ("_has_state", "_layout", "_rest")

    def __init__(self, layout: Struct = REPORT) -> None:
        self._layout = layout
        self._has_state = layout is ACK
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The last whole report; None while there is none."""
        if self._rest:
            data = self._rest + data
        size = self._layout.size
        whole = len(data) - len(data) % size
        self._rest = data[whole:]
        if not whole:
            return None
        fields: tuple[int, ...] = self._layout.unpack_from(data, whole - size)
        if self._has_state and fields[0] != TRANSFER:
            raise StreamError(f"an ack of the kind {fields[0]}")
        return fields[-1]


class FrameHead(NamedTuple):
    offset: int
    size: int
    epoch: Epoch | None = None
    confirmed: int = 0


def plain_head(data: memoryview) -> FrameHead:
    return FrameHead(*HEAD.unpack(data))


def epoch_head(data: memoryview) -> FrameHead:
    kind, size, offset, number, start, confirmed = EPOCH_HEAD.unpack(data)
    if kind != TRANSFER:
        raise StreamError(f"a frame of the kind {kind}")
    return FrameHead(offset, size, Epoch(number, start), confirmed)


class FrameReader:
    """A master's frames, however they are cut."""

    __slots__ = ("_begun", "_decode", "_head", "_head_size", "_offset", "_size_max", "rest")

    def __init__(
        self,
        size_max: int,
        *,
        with_epochs: bool = False,
        begun: Callable[[FrameHead], Any] | None = None,
    ) -> None:
        """`size_max`: of a frame's data; a log file, as no frame crosses the end of one. `begun` is
        called with each frame's head, before its data is given out."""
        self._decode = epoch_head if with_epochs else plain_head
        self._head_size = EPOCH_HEAD.size if with_epochs else HEAD.size
        self._begun = begun
        self._size_max = size_max
        self._head = b""
        self._offset = 0  # of the next byte of the current frame ...
        self.rest = 0  # ... which has so many to come

    @property
    def is_between(self) -> bool:
        """Whether no frame is incomplete."""
        return not self.rest and not self._head

    def feed(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Offset and bytes. A frame may come in several pieces; an empty one is a heartbeat."""
        position = 0
        while position < len(data):
            if self.rest:
                piece = data[position : position + self.rest]
                offset = self._offset
                self._offset += len(piece)
                self.rest -= len(piece)
                position += len(piece)
                yield offset, piece
                continue
            part = data[position : position + self._head_size - len(self._head)]
            position += len(part)
            if self._head or len(part) < self._head_size:
                self._head += part
                part = memoryview(self._head)
            if len(part) == self._head_size:
                head = self._decode(part)
                self._head = b""
                self._offset, self.rest = head.offset, head.size
                if not 0 <= self.rest <= self._size_max:
                    raise StreamError(f"a frame of {self.rest} bytes at {self._offset}")
                if self._begun is not None:
                    self._begun(head)
                if not self.rest:
                    yield self._offset, data[:0]


class Hello(NamedTuple):
    """A slave's first message."""

    from_newest_file: bool
    is_learner: bool
    broker_id: int


def encode_hello(broker_id: int) -> bytes:
    return HELLO.pack(HANDSHAKE, 0, 0, broker_id)


def decode_hello(data: bytes) -> Hello | None:
    """None: this is the plain stream. A plain report of 4 GiB begins with the same bytes, but a
    slave sends no second report before it got data: 16 bytes at once are a hello."""
    if len(data) < HELLO.size:
        return None
    kind, newest, learner, broker_id = HELLO.unpack_from(data)
    if kind != HANDSHAKE or newest not in (0, 1) or learner not in (0, 1):
        return None
    return Hello(bool(newest), bool(learner), broker_id)


class Welcome(NamedTuple):
    """A master's answer to it."""

    log_end: int
    epochs: tuple[Epoch, ...]


def encode_welcome(log_end: int, epochs: tuple[Epoch, ...]) -> bytes:
    last = epochs[-1].number if epochs else 0
    head = WELCOME.pack(HANDSHAKE, EPOCH.size * len(epochs), log_end, last)
    return head + b"".join(EPOCH.pack(*epoch) for epoch in epochs)


def decode_welcome(data: bytes) -> tuple[Welcome, bytes] | None:
    """The answer and the bytes after it; None: it is incomplete."""
    if len(data) < WELCOME.size:
        return None
    kind, size, log_end, _last = WELCOME.unpack_from(data)
    if kind != HANDSHAKE or size % EPOCH.size or not 0 <= size <= EPOCH.size * EPOCHS_MAX:
        raise StreamError(f"no answer to our handshake: kind {kind}, {size} bytes of epochs")
    end = WELCOME.size + size
    if len(data) < end:
        return None
    epochs = tuple(map(Epoch._make, EPOCH.iter_unpack(data[WELCOME.size : end])))
    return Welcome(log_end, epochs), data[end:]
