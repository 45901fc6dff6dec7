"""(time, offset) of one queue, few of them: the newest exact, older ones farther apart.

A flat list `time, offset, time, offset, ...`, both growing.
"""

from itertools import pairwise
from typing import Final

PAIRS_MAX: Final = 16


def thinned(samples: list[int]) -> list[int]:
    """At most PAIRS_MAX pairs. Drops the pair that leaves the smallest gap for its age; never the
    first one, which is the state before all others, nor the last two."""
    while len(samples) > 2 * PAIRS_MAX:
        now = samples[-2]
        inner = range(2, len(samples) - 4, 2)
        # The clock may have been set back since a pair was noted.
        worst = min(
            inner,
            key=lambda at: (samples[at + 2] - samples[at - 2]) / (max(0, now - samples[at]) + 1),
        )
        del samples[worst : worst + 2]
    return samples


def passed_between(samples: list[int], queue_offset: int) -> tuple[int | None, int] | None:
    """Between which times the offset passed this one the last time; None: it did not, or nothing
    tells. A first time of None: at any time before the second."""
    pairs = [(None, 0), *zip(samples[::2], samples[1::2], strict=True)]
    for (before, low), (after, high) in reversed(list(pairwise(pairs))):
        if low <= queue_offset < high and after is not None:
            return before, after
    return None
