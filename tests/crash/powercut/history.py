"""What was sent to one disk over all its lives, and the answers that the clients got."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from crash.powercut.disk import Cut

NEVER: Final = float("inf")
PLAIN, LEVEL, TIMER, HALF, ROW = "plain", "level", "timer", "half", "row"
COMMIT, ROLLBACK = 8, 12


@dataclass(slots=True)
class Sent:
    """One message. Times are monotonic; NEVER: not answered with OK."""

    key: str
    kind: str
    body: bytes
    due_ms: int = 0  # delivered no earlier
    acked: float = NEVER
    place: tuple[int, int] | None = None  # of a plain one: queue and offset as answered
    end: dict[str, str] | None = None  # of a half one: the request that ends it
    outcome: int = 0  # ... COMMIT or ROLLBACK once that was asked for
    end_acked: float = NEVER
    firm: bool = False  # it was answered before a cut began: it must be there
    end_firm: bool = False  # ... so was its end
    batch: int = -1  # of a row of the exactly-once sink
    life: int = 0

    def at(self, moment: float) -> Sent:
        """Its state as the producer knew it then: later outcomes are unknown."""
        ended = self.end_acked < moment
        return replace(
            self,
            firm=self.acked < moment,
            end_firm=ended,
            end_acked=self.end_acked if ended else NEVER,
        )


@dataclass(slots=True)
class Totals:
    """Over all disks of one run."""

    cuts: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    disks: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    late: int = 0  # answered with OK after the cut had begun
    late_lost: int = 0
    seen: int = 0
    starts: list[float] = field(default_factory=list)
    windows: list[float] = field(default_factory=list)  # ASYNC_FLUSH: seconds that a cut may lose

    @property
    def slowest_start(self) -> float:
        return max(self.starts, default=0.0)


def tally(counts: Counter[str]) -> str:
    """As in "12 crash, 3,456 clean", or "0"."""
    return ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items())) or "0"


@dataclass(slots=True)
class History:
    """One disk."""

    sent: dict[str, Sent] = field(default_factory=dict)
    # What consumers were given: queue and offset -> key, when.
    seen: dict[tuple[int, int], tuple[str, float]] = field(default_factory=dict)
    offered: Counter[int] = field(default_factory=Counter)  # by queue: the offset committed last
    attempts: Counter[int] = field(default_factory=Counter)  # by batch of the exactly-once sink
    known: dict[int, list[str]] = field(default_factory=dict)  # by queue: what was there after cuts
    copies: Counter[str] = field(default_factory=Counter)  # by key: duplicates
    late: list[Sent] = field(default_factory=list)  # answered after the last cut had begun
    life: int = 0
    # How long `known` was before this life's broker was read, and when that was done: some of what
    # was found may be what this broker has delivered since its start, and be lost with it.
    known_before: dict[int, int] = field(default_factory=dict)
    read_at: float = 0.0

    def at(self, moment: float) -> History:
        """What must be there if the power went at this time."""
        return History(
            sent={key: sent.at(moment) for key, sent in self.sent.items()},
            seen={place: it for place, it in self.seen.items() if it[1] < moment},
            offered=self.offered.copy(),
            attempts=self.attempts.copy(),
            life=self.life,
        )

    def note_known(self) -> None:
        self.known_before = {queue_id: len(keys) for queue_id, keys in self.known.items()}

    def note_cut(self, cut: Cut, promised_until: float, totals: Totals) -> None:
        """From now on, what was answered before `promised_until` must be there."""
        self.late = []
        if promised_until < self.read_at:
            for queue_id, keys in self.known.items():
                del keys[self.known_before.get(queue_id, 0) :]
        for sent in self.sent.values():
            if sent.life != self.life:
                continue
            if sent.acked <= promised_until:
                sent.firm = True
            elif cut.before < sent.acked < NEVER:
                self.late.append(sent)
        for sent in self.sent.values():
            if sent.end_acked <= promised_until:
                sent.end_firm = True
            elif not sent.end_firm:
                sent.end_acked = NEVER  # unknown: it is retried
        for place, (_, when) in list(self.seen.items()):
            if when > promised_until:
                del self.seen[place]
        totals.late += len(self.late)
        totals.acked += sum(
            1 for sent in self.sent.values() if sent.life == self.life and sent.acked < NEVER
        )
        self.life += 1
