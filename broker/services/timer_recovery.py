"""What is pending at a start: the timer log is read whole, cut where it is not sound, and the wheel
is built from it.

The log may come from a Java broker with another precision, whose chains are of other slots, or hold
a timer twice after a kill there. Then the pending units are appended anew, each once, in chains of
seconds.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from aerobee.broker.services.timer_log import MAGIC_DELETE, NONE, TimerLog, Units
from aerobee.broker.services.timer_slot import Place
from aerobee.broker.services.timer_wheel import EMPTY_SLOT, Slot, TimerWheel

log = structlog.get_logger("aerobee.timers")

Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Pending:
    position: Numbers
    second: Numbers
    previous: Numbers
    physical_offset: Numbers
    magic: Numbers
    deliver_ms: Numbers

    def __getitem__(self, index: npt.NDArray[np.intp]) -> "_Pending":
        return _Pending(
            self.position[index],
            self.second[index],
            self.previous[index],
            self.physical_offset[index],
            self.magic[index],
            self.deliver_ms[index],
        )


class Progress(NamedTuple):
    """What config/timerProgress says: exact, if nothing was lost since."""

    fired: Place
    queue_offset: int
    log_end: int  # of the timer log

    @property
    def second(self) -> int:
        """In which the last timer fired."""
        return (self.fired[0] - 1) // 1000


@dataclass(slots=True)
class Recovered:
    """What was found."""

    timers: int  # that wait
    read_second: int  # the first with timers that may wait
    progress: Progress | None  # None: not to be believed
    last_physical_offset: int  # of the record of the log's last unit; -1: no unit


def recover(
    timer_log: TimerLog,
    wheel: TimerWheel,
    *,
    read_second: int,
    max_physical_offset: int,
    progress: Progress | None,
) -> Recovered:
    """Cut the log where its records are not in the store any more; fill the wheel from it."""
    pieces, last = _scan(timer_log, read_second, max_physical_offset)
    wheel.create()
    if progress is not None and progress.log_end > timer_log.end:
        progress = None
    if progress is not None:
        read_second = max(read_second, progress.second)
    if not pieces:
        return Recovered(0, read_second, progress, last)
    names = _Pending.__slots__
    found = _Pending(
        *(np.concatenate([getattr(piece, name) for piece in pieces]) for name in names)
    )
    found = found[np.flatnonzero(found.second >= read_second)]
    found = _once_each(found)
    if _is_chained(found):
        _fill(wheel, found)
    else:
        log.warning("the timers' chains are written anew", timers=len(found.position))
        _rechain(timer_log, wheel, found)
    return Recovered(_count(found, progress), read_second, progress, last)


def _scan(
    timer_log: TimerLog, read_second: int, max_physical_offset: int
) -> tuple[list[_Pending], int]:
    """The units of seconds from `read_second` on, and where the last unit's record is."""
    pieces: list[_Pending] = []
    last = NONE
    cut_at: int | None = None
    for position, units in timer_log.scan():
        lost = units["physical_offset"] + units["record_size"] > max_physical_offset
        if lost.any():
            count = int(np.argmax(lost))
            cut_at = position + count * units.dtype.itemsize
            units = units[:count]
        if len(units):
            last = int(units["physical_offset"][-1])
            pieces.append(_pending(position, units, read_second))
        if cut_at is not None:
            break
    timer_log.cut(timer_log.end if cut_at is None else cut_at)
    return pieces, last


def _count(found: _Pending, progress: Progress | None) -> int:
    """How many timers wait: without recalls, and without those that have fired."""
    waits = found.magic & MAGIC_DELETE == 0
    if progress is not None:
        deliver_ms, position = progress.fired
        earlier = found.deliver_ms < deliver_ms
        same = (found.deliver_ms == deliver_ms) & (found.position <= position)
        waits &= ~((found.second == progress.second) & (found.deliver_ms > 0) & (earlier | same))
    return int(np.count_nonzero(waits))


def _pending(position: int, units: Units, read_second: int) -> _Pending:
    seconds = (units["written_ms"] + units["delay_ms"]).astype(np.int64) // 1000
    index = np.flatnonzero(seconds >= read_second)
    return _Pending(
        (position + index * units.dtype.itemsize).astype(np.int64),
        seconds[index],
        units["previous"][index].astype(np.int64),
        units["physical_offset"][index].astype(np.int64),
        units["magic"][index].astype(np.int64),
        units["deliver_ms"][index].astype(np.int64),
    )


def _once_each(found: _Pending) -> _Pending:
    """The last unit of each record, in the order of the seconds and of the log in each."""
    _, from_end = np.unique(found.physical_offset[::-1], return_index=True)
    index = len(found.position) - 1 - from_end
    index = index[np.lexsort((found.position[index], found.second[index]))]
    return found[index]


def _starts(found: _Pending) -> npt.NDArray[np.bool_]:
    """Where the next second begins."""
    starts = np.ones(len(found.second), bool)
    starts[1:] = found.second[1:] != found.second[:-1]
    return starts


def _is_chained(found: _Pending) -> bool:
    inside = ~_starts(found)[1:]
    return bool((found.previous[1:][inside] == found.position[:-1][inside]).all())


def _fill(wheel: TimerWheel, found: _Pending) -> None:
    begins = np.flatnonzero(_starts(found))
    ends = np.append(begins, len(found.second))[1:]
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        slot = Slot(int(found.position[begin]), int(found.position[end - 1]), end - begin)
        wheel.put(int(found.second[begin]), slot)


def _rechain(timer_log: TimerLog, wheel: TimerWheel, found: _Pending) -> None:
    for position in found.position.tolist():
        unit = timer_log.read(position)
        assert unit is not None  # it was scanned a moment ago
        second = unit.slot_ms // 1000
        slot = wheel.get(second)
        new = timer_log.add(
            slot.last,
            unit.magic,
            unit.written_ms,
            unit.slot_ms,
            unit.physical_offset,
            unit.record_size,
            0,
            unit.deliver_ms,
        )
        timer_log.write()
        first = new if slot == EMPTY_SLOT else slot.first
        wheel.put(second, Slot(first, new, slot.number + 1))
