"""A master's state for one slave: what to send next, and how much of the log the slave has."""

from __future__ import annotations

from typing import Final

from aerobee.broker.ha.wire import StreamError

# An empty slave reports 0, and gets the log from its first file on. A Java master would begin with
# its newest file then, so a slave that wants all of a log that begins at 0 reports 1: the first
# byte of a record is 0.
FROM_THE_FIRST_FILE: Final = 0
FROM_THE_FIRST_BYTE: Final = 1


class Sender:
    """One link's state. A valid ack is between the last one and what was sent on this link."""

    __slots__ = ("_batch", "_file_size", "acked", "position")

    def __init__(self, batch: int, file_size: int) -> None:
        self._batch = batch
        self._file_size = file_size
        self.position = -1  # of the next byte to send; -1 until the first report
        self.acked = -1

    @property
    def is_open(self) -> bool:
        """Whether the slave has said where to begin."""
        return self.position >= 0

    def report(self, end: int) -> None:
        """An ack: the slave's log ends here. StreamError when that is impossible."""
        if end > self.position:
            raise StreamError(f"it has {end}, but was sent the log up to {self.position} only")
        if end > self.acked:
            self.acked = end

    def begin(self, end: int, log_start: int, log_end: int) -> None:
        """The first report: the slave's log ends at `end`. StreamError when that is
        impossible."""
        if end == FROM_THE_FIRST_FILE:
            self.position, self.acked = log_start, 0
        elif end == FROM_THE_FIRST_BYTE and log_start == 0:
            self.position, self.acked = end, 0
        elif end < 0 or end > log_end:
            raise StreamError(
                f"its log ends at {end}, beyond ours at {log_end}: it is not a copy of this log; "
                f"promote it, or let it begin with an empty folder"
            )
        elif end < log_start:
            raise StreamError(
                f"its log ends at {end}, and ours begins at {log_start} by now: let it begin with "
                f"an empty folder"
            )
        else:
            self.position = self.acked = end

    def next_frame(self, log_end: int) -> tuple[int, int] | None:
        """Offset and size of what to send now; None when the slave has all of it."""
        left = log_end - self.position
        if left <= 0 or not self.is_open:
            return None
        to_file_end = self._file_size - self.position % self._file_size
        return self.position, min(left, self._batch, to_file_end)

    def claim(self, size: int) -> None:
        """Count bytes as sent. Called before sending, because the ack may be quick."""
        self.position += size


class Pace:
    """A rate limit in bytes per second."""

    __slots__ = ("_per_second", "_second", "_sent")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second  # 0: as many as there are
        self._second = -1
        self._sent = 0

    def take(self, size: int, now: float) -> float:
        """How many seconds to wait before sending these bytes; they are counted only if it is
        0."""
        if not self._per_second:
            return 0.0
        if int(now) != self._second:
            self._second, self._sent = int(now), 0
        if self._sent >= self._per_second:
            return self._second + 1 - now
        self._sent += size
        return 0.0
