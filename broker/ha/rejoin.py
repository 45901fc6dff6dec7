"""What a replica does with its own log before it follows a master: a decision table, without I/O.

    our log            epochs                               what we do
    -----------------  -----------------------------------  ------------------------------------
    none yet           any                                  follow from the master's first byte
    all has expired    its last >= ours, our end is common  follow from there
    all has expired    its last >= ours, it is not          follow from the master's first byte;
                                                            cut back to there first, if we were past
    no epochs          any                                  follow if ours is no longer than its
    ends in its log    its last >= ours                     follow
    has more           its last > ours                      cut back to the end of what is common
    has more           its last = ours                      refuse: it has lost the end of its log
    any                its last < ours                      refuse: it is an older master
    any                none in common                       refuse: these are different logs
    ends before, or would be cut before, the master's or our own first byte    refuse

"Common" is what `epochs.common_end` finds.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.broker.ha.epochs import Epochs, common_end
from aerobee.broker.ha.wire import StreamError


@dataclass(frozen=True, slots=True)
class LogState:
    """One side's log."""

    start: int
    end: int
    epochs: Epochs

    @property
    def is_empty(self) -> bool:
        return self.end == self.start


@dataclass(frozen=True, slots=True)
class Follow:
    """Continue at this offset; these are the epochs of what we have."""

    epochs: Epochs
    position: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut our log here, then plan again."""

    end: int


_START_EMPTY = "keep this folder if you need its messages, and start with an empty one"


def plan_rejoin(ours: LogState, master: LogState) -> Follow | Cut:
    """StreamError says why we cannot follow."""
    if ours.is_empty and not (ours.end and ours.epochs):
        return _anew(ours, master)
    if master.epochs.last < ours.epochs.last:
        raise StreamError(
            f"the master is in epoch {master.epochs.last}, we have one of epoch "
            f"{ours.epochs.last}: it was a master before; promote this broker, or the one that "
            f"was master last"
        )
    if ours.is_empty:
        return _expired(ours, master)
    common = _common(ours, master)
    if common < max(master.start, ours.start):
        raise StreamError(
            f"our log is the master's up to {common} only, and the logs begin at {ours.start} "
            f"and {master.start} by now: {_START_EMPTY}"
        )
    if common == ours.end:
        # Including one that begins at our end: else, when promoted, we might reuse its number.
        return Follow(master.epochs.within(ours.end), ours.end)
    if master.epochs.last == ours.epochs.last:
        raise StreamError(
            f"our log ends at {ours.end}, the master's at {master.end} in the same epoch "
            f"{master.epochs.last}: it has lost the end of its log; promote this broker to keep "
            f"what is here, or begin with an empty folder"
        )
    return Cut(common)


def _expired(ours: LogState, master: LogState) -> Follow | Cut:
    """Retention has removed everything; only the end offset of our log is left. We may be recorded
    as in sync up to there, so that it is kept."""
    common = common_end(ours.epochs, ours.end, master.epochs, master.end)
    if common != ours.end or common < master.start:
        return _anew(ours, master)
    return Follow(master.epochs.within(ours.end), ours.end)


def _anew(ours: LogState, master: LogState) -> Follow | Cut:
    """From its first byte. Our queues, and what counts as flushed and dispatched, are those of our
    expired log: none of it may be past that."""
    return Cut(master.start) if master.start < ours.end else Follow(Epochs(), master.start)


def _common(ours: LogState, master: LogState) -> int:
    if not ours.epochs:  # copied from a master that had none
        if ours.end > master.end:
            raise StreamError(
                f"our log ends at {ours.end}, the master's at {master.end}: this is not a copy of "
                f"it; send to this broker as a master, or begin with an empty folder"
            )
        return ours.end
    common = common_end(ours.epochs, ours.end, master.epochs, master.end)
    if common is None:
        raise StreamError(
            f"no epoch of our log ({ours.epochs!r}) is in the master's ({master.epochs!r}): these "
            f"are different logs; {_START_EMPTY}"
        )
    return common
