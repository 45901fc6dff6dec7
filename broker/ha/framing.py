"""The master's side of both stream formats: decoding a slave's reports, encoding frame heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aerobee.broker.ha.epochs import FOREVER, Epochs
from aerobee.broker.ha.wire import ACK, EPOCH_HEAD, HEAD, TRANSFER, ReportReader


class Framing(Protocol):
    def feed(self, data: bytes) -> int | None:
        """The end of the slave's log by its last report; None: no complete report yet."""

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
        self.sent_confirm = -1  # the last confirm offset that was sent
        self._epoch, self._end = epochs.at(0)  # of the last frame

    def head(self, offset: int, size: int) -> bytes:
        # A slave takes a heartbeat at an epoch's end to be about the bytes before it.
        self.limit(offset)
        number, start = self._epoch
        self.sent_confirm = self._confirmed()
        return EPOCH_HEAD.pack(TRANSFER, size, offset, number, start, self.sent_confirm)

    def limit(self, offset: int) -> int:
        if not self._epoch.start <= offset < self._end:
            self._epoch, self._end = self._epochs.at(offset)
        return self._end
