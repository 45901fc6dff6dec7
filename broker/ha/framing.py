"""The two streams as a master speaks them: what a slave's bytes say, and how a frame begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aerobee.broker.ha.epochs import FOREVER, Epochs
from aerobee.broker.ha.wire import ACK, EPOCH_HEAD, HEAD, TRANSFER, ReportReader


class Framing(Protocol):
    def feed(self, data: bytes) -> int | None:
        """The end of the slave's log, as it says last; None: nothing whole has come."""

    def head(self, offset: int, size: int) -> bytes: ...

    def limit(self, offset: int) -> int:
        """Where a frame that begins here must end at the latest, beside the file's end."""


class PlainFraming:
    """RocketMQ 4.9's stream."""

    def __init__(self) -> None:
        self.feed = ReportReader().feed

    def head(self, offset: int, size: int) -> bytes:
        return HEAD.pack(offset, size)

    def limit(self, offset: int) -> int:
        return FOREVER


class EpochFraming:
    """The stream with epochs; those of a master do not change while it is one."""

    def __init__(self, epochs: Epochs, confirmed: Callable[[], int]) -> None:
        self.feed = ReportReader(ACK).feed
        self._epochs = epochs
        self._confirmed = confirmed
        self.told = -1  # the last confirm offset that went out
        self._epoch, self._end = epochs.at(0)  # of the last frame

    def head(self, offset: int, size: int) -> bytes:
        # A heartbeat at an epoch's end speaks of the bytes before it, as far as a slave knows.
        self.limit(offset)
        number, start = self._epoch
        self.told = self._confirmed()
        return EPOCH_HEAD.pack(TRANSFER, size, offset, number, start, self.told)

    def limit(self, offset: int) -> int:
        if not self._epoch.start <= offset < self._end:
            self._epoch, self._end = self._epochs.at(offset)
        return self._end
