"""Recovery at a start: read the whole timer log, cut it at the first invalid unit, build the wheel.

The log may come from a Java broker with another precision, whose chains belong to other slots, or
have a timer twice after a kill. Then the pending units are appended again, each once, in chains by
second.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import structlog
from numpy.typing import NDArray

from aerobee.broker.services.timers.passed import Numbers, Passed, has_passed
from aerobee.broker.services.timers.timer_log import (
    MAGIC_CARRIED,
    MAGIC_DELETE,
    MAGIC_NOTED,
    NONE,
    TimerLog,
    Units,
)
from aerobee.broker.services.timers.wheel import EMPTY_SLOT, Slot, TimerWheel

log = structlog.get_logger("aerobee.timers")


@dataclass(slots=True)
class _Pending:
    position: Numbers
    second: Numbers
    previous: Numbers
    physical_offset: Numbers
    magic: Numbers
    written_ms: Numbers

    def __getitem__(self, index: NDArray[np.intp]) -> "_Pending":
        return _Pending(
            self.position[index],
            self.second[index],
            self.previous[index],
            self.physical_offset[index],
            self.magic[index],
            self.written_ms[index],
        )


@dataclass(slots=True)
class Recovered:
    """What was found."""

    timers: int  # pending
    read_second: int  # the first that may have pending timers
    noted: set[int]  # records from `unread_from` on that already have units
    far_clock_ms: int  # time of the newest unit beyond the wheel's range; 0: none
    last_physical_offset: int  # of the newest record that was read from the topic; -1: none


def recover(
    timer_log: TimerLog,
    wheel: TimerWheel,
    *,
    passed: Sequence[Passed],
    unread_from: int,
    max_physical_offset: int,
    fired: set[int],
    is_record: Callable[[int, int], bool],
) -> Recovered:
    """Cut the log where its records are not in the store any more; fill the wheel from it.

    `passed`: the checkpoint's first, then those of clocks that were set back since. `unread_from`:
    the first record of the timer topic that is going to be read again. `fired`: records whose
    timers have fired. `is_record`: whether a record of the store has this offset and size. Units
    after the checkpoint are cut from the first one without a record: they were never synced, so
    a power failure may have torn them."""
    noted: set[int] = set()
    pieces: list[_Pending] = []
    last = NONE
    for position, units in _scan(timer_log, max_physical_offset, passed[0].log_end, is_record):
        offsets = units["physical_offset"].astype(np.int64)
        noted.update(offsets[offsets >= unread_from].tolist())
        # The record of a carried unit is a copy; that of a noted one was read, but set no timer.
        read = (units["magic"] & MAGIC_CARRIED == 0) | (units["magic"] == MAGIC_NOTED)
        last = max(last, int(offsets[read].max(initial=NONE)))
        pieces.append(_pending(position, units, passed))
    wheel.create()
    if not pieces:
        return Recovered(0, passed[0].end, noted, 0, last)
    names = _Pending.__slots__
    found = _Pending(
        *(np.concatenate([getattr(piece, name) for piece in pieces]) for name in names)
    )
    found = _once_each(found)
    if _is_chained(found):
        _fill(wheel, found)
    else:
        log.warning("the timers' chains are rewritten", timers=len(found.position))
        _rechain(timer_log, wheel, found)
    first = int(found.second.min(initial=passed[0].end))
    far = found.written_ms[found.second >= wheel.far_from]
    return Recovered(_count(found, fired), first, noted, int(far.max(initial=0)), last)


def noted_records(timer_log: TimerLog) -> set[int]:
    """The records whose timers have a unit."""
    noted: set[int] = set()
    for _, units in timer_log.pieces(timer_log.start):
        noted.update(units["physical_offset"][units["magic"] != MAGIC_NOTED].tolist())
    return noted


def _scan(
    timer_log: TimerLog,
    max_physical_offset: int,
    synced_end: int,
    is_record: Callable[[int, int], bool],
) -> Iterator[tuple[int, Units]]:
    """Position and units, in pieces, up to the first whose record is gone; cuts the log there."""
    cut_at: int | None = None
    for position, units in timer_log.scan():
        lost = units["physical_offset"] + units["record_size"] > max_physical_offset
        for number in range(max(0, synced_end - position) // units.dtype.itemsize, len(units)):
            unit = units[number]
            if not is_record(int(unit["physical_offset"]), int(unit["record_size"])):
                lost[number] = True
                break
        if lost.any():
            count = int(np.argmax(lost))
            cut_at = position + count * units.dtype.itemsize
            units = units[:count]
        if len(units):
            yield position, units
        if cut_at is not None:
            break
    timer_log.cut(timer_log.end if cut_at is None else cut_at)


def _count(found: _Pending, fired: set[int]) -> int:
    """How many timers are pending, without recalls."""
    waits = found.magic & MAGIC_DELETE == 0
    if fired:
        waits &= ~np.isin(found.physical_offset, np.fromiter(fired, np.int64, len(fired)))
    return int(np.count_nonzero(waits))


def _pending(position: int, units: Units, passed: Sequence[Passed]) -> _Pending:
    seconds = (units["written_ms"] + units["delay_ms"]).astype(np.int64) // 1000
    positions = position + np.arange(len(units), dtype=np.int64) * units.dtype.itemsize
    waits = ~has_passed(seconds, positions, passed) & (units["magic"] != MAGIC_NOTED)
    index = np.flatnonzero(waits)
    return _Pending(
        positions[index],
        seconds[index],
        units["previous"][index].astype(np.int64),
        units["physical_offset"][index].astype(np.int64),
        units["magic"][index].astype(np.int64),
        units["written_ms"][index].astype(np.int64),
    )


def _once_each(found: _Pending) -> _Pending:
    """The last unit of each record, in the order of the seconds and of the log in each. A recall
    may be in several seconds (`unread`): its last in each."""
    is_recall = found.magic & MAGIC_DELETE != 0
    timers = np.flatnonzero(~is_recall)
    _, from_end = np.unique(found.physical_offset[timers][::-1], return_index=True)
    recalls = {
        (int(found.physical_offset[number]), int(found.second[number])): number
        for number in np.flatnonzero(is_recall).tolist()
    }
    index = np.append(timers[len(timers) - 1 - from_end], list(recalls.values())).astype(np.intp)
    index = index[np.lexsort((found.position[index], found.second[index]))]
    return found[index]


def _starts(found: _Pending) -> NDArray[np.bool_]:
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
