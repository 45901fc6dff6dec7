"""Which seconds of the timer log are done: only of interest once the clock was set back.

Until then every second before the running one is done. After that, seconds run a second time: the
units that were in the log before have fired, those written since have not.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class Passed(NamedTuple):
    """The units of these seconds before a position of the timer log are done."""

    first: int
    end: int  # the second after the last
    log_end: int

    def covers(self, other: "Passed") -> bool:
        return self.first <= other.first and other.end <= self.end and other.log_end <= self.log_end


class PassedSeconds:
    """The finished ranges that are not before the running second."""

    def __init__(self) -> None:
        self.ranges: list[Passed] = []

    def add_far(self, second: int, log_end: int) -> None:
        """A second of the old clock is done; its units stay in the log, as the new clock may never
        reach it."""
        last = self.ranges[-1] if self.ranges else None
        if last is not None and 0 < last.first <= second:
            self.ranges[-1] = Passed(last.first, second + 1, log_end)
        else:
            self.ranges.append(Passed(second, second + 1, log_end))

    def drop_before(self, second: int) -> None:
        """Drop the ranges that end by this second, and those that a later one covers."""
        self.ranges = [
            each
            for number, each in enumerate(self.ranges)
            if each.end > second
            and not any(later.covers(each) for later in self.ranges[number + 1 :])
        ]


def has_passed(seconds: Numbers, positions: Numbers, passed: Sequence[Passed]) -> NDArray[np.bool_]:
    """Which units are done, by their seconds and positions in the timer log."""
    over = np.zeros(len(seconds), bool)
    for first, end, log_end in passed:
        over |= (seconds >= first) & (seconds < end) & (positions < log_end)
    return over
