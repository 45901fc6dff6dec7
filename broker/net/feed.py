"""The feed that a connection passes its bytes to, and the limits of a connection."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aerobee.broker.net.outbox import Part
from aerobee.protocol.wire.codecs import ProtocolError
from aerobee.protocol.wire.frame import FRAME_SIZE_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection."""

    frame_size_max: int = FRAME_SIZE_MAX
    write_buffer_max: int = 1 << 20  # unsent bytes at which we stop reading
    waiting_max: int = 10_000  # requests that wait for the disk, at which we stop reading
    idle_seconds: float = 120.0
    header_seconds: float = 10.0  # a frame's lengths and header must be here so soon
    frame_seconds: float = 30.0  # and all of it so soon


class Room(Protocol):
    """A buffer for reads, in which the feed parses them; it holds one read at a time."""

    def room(self) -> Any:
        """A buffer for the next read, of whatever connection."""

    def received(self, count: int) -> bytes:
        """A copy of what was received there."""

    def receive(self, count: int) -> Sequence[Part]:
        """As `feed`, of what was received there."""


class Feed(Protocol):
    """Turns bytes into answers: the hot path in Python, or its compiled counterpart."""

    error: ProtocolError | None  # set once the bytes are no frames; nothing more is answered
    completed: int  # frames that were whole, so far

    def feed(self, data: bytes) -> Sequence[Part]:
        """The answers that can be given at once to the requests that `data` completes."""

    def resume(self) -> Sequence[Part]:
        """Answers to deferred requests: earlier answers were large, or the turn was over."""

    @property
    def kept_back(self) -> Sequence[object]:
        """Requests that `resume` will answer."""

    @property
    def partial(self) -> bool:
        """Whether a frame is incomplete."""

    @property
    def header_missing(self) -> bool:
        """Whether even the header of that frame is incomplete."""
