"""What the console has observed since its start: rates, lags, members that joined or left."""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

SAMPLES: Final = 450  # a quarter of an hour at 2 s
EVENTS: Final = 200
GROWING_SAMPLES: Final = 4


@dataclass(slots=True)
class History:
    """Only observed samples: gaps without a viewer are not filled."""

    since_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    samples: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    events: dict[str, deque[dict[str, Any]]] = field(default_factory=dict)
    _members: dict[str, dict[str, str]] = field(default_factory=dict)
    _lags: dict[str, deque[int]] = field(default_factory=dict)
    _counts: dict[object, tuple[float, int]] = field(default_factory=dict)

    def sample(self, row: dict[str, Any]) -> None:
        self.samples.append(row)

    def see_members(self, group: str, members: dict[str, str]) -> None:
        """Record who joined and left since the last sample; `members` are addresses by client."""
        before = self._members.get(group)
        self._members[group] = dict(members)
        if before is None:
            return
        events = self.events.setdefault(group, deque(maxlen=EVENTS))
        at = time.time_ns() // 1_000_000
        for name, known, other in (("joined", members, before), ("left", before, members)):
            for client in sorted(known.keys() - other.keys()):
                events.append({"at": at, "event": name, "client": client, "address": known[client]})

    def see_lag(self, group: str, lag: int) -> None:
        self._lags.setdefault(group, deque(maxlen=GROWING_SAMPLES)).append(lag)

    def is_growing(self, group: str) -> bool:
        """Whether the lag grew in each of the last samples."""
        seen = list(self._lags.get(group, ()))
        pairs = itertools.pairwise(seen)
        return len(seen) == GROWING_SAMPLES and all(after > before for before, after in pairs)

    def rate(self, key: object, count: int) -> float | None:
        """The rate per second since the last sample of this counter; None for the first."""
        now = time.monotonic()
        before = self._counts.get(key)
        if before is None:
            self._counts[key] = now, count
            return None
        seconds = now - before[0]
        if seconds >= 1.0:
            self._counts[key] = now, count
        return max(0.0, (count - before[1]) / seconds) if seconds > 0 else None
