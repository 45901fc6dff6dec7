"""Keeps timers when the log files with their messages are removed.

Far timers roll before their file expires. Others may still be in a file that is to be removed:
after a setting was lowered, in a Java broker's store, or when the disk is full. Then:

    1  their messages are put to the timer topic again, marked as copies: no timers of their own
    2  once the checkpoint says that these were read, and so are on disk, a journal is written
    3  the timers' units in the timer log are made to point to the copies
    4  once the timer log is on disk, the file may go

A unit is the only thing that fires, so a timer fires once wherever a crash comes. A power failure
in step 3 may tear a unit, or lose its change after it has fired: a start finds it in the journal.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.timers.checkpoint import Checkpoints
from aerobee.broker.services.timers.enqueue import Enqueue
from aerobee.broker.services.timers.messages import carried, message_of
from aerobee.broker.services.timers.moves_journal import Journal, Move
from aerobee.broker.services.timers.passed import Passed, has_passed
from aerobee.broker.services.timers.timer_log import (
    MAGIC_NOTED,
    UNIT_SIZE,
    TimerLog,
    Unit,
    Units,
)
from aerobee.broker.store.retention.keepers import Standing
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import Message, StoredMessage
from aerobee.protocol.names import TIMER_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

PUT_AT_ONCE: Final = 64
MOVES_MAX: Final = 65_536  # timers carried before their units are changed
REPOINTED_AT_ONCE: Final = 1000
BEHIND_S: Final = 30.0  # without progress: the timers before the file's end cannot be read now

_ENDED: Final = object()


class TimerKeeper:
    """Carries timers out of files that are to be removed."""

    kind = "timer"

    def __init__(
        self,
        store: "MessageStore",
        timer_log: TimerLog,
        enqueue: Enqueue,
        checkpoints: Checkpoints,
        first_second: Callable[[], int],
        passed: Callable[[], Sequence[Passed]],
        journal_path: str,
        clock: Clock,
    ) -> None:
        self._store = store
        self._log = timer_log
        self._enqueue = enqueue
        self._checkpoints = checkpoints
        self._first_second = first_second  # earlier seconds are done
        self._passed = passed  # other ranges that are done
        self._journal = Journal(journal_path, store.disk)
        self._clock = clock
        self._end = -1  # the offset of the last call
        self._scan_at = 0
        self._firing = False  # some were skipped because their second is running
        self._todo: deque[int] = deque()  # positions of units
        self._moves: list[Move] = []
        self._last_copy = -1  # its queue offset
        self._settling: Iterator[None] | None = None  # changes the units by `_moves`, step by step
        self._journal_due = False  # for `sync`, in a thread
        self._journal_failed = ""
        self._behind: tuple[int, float] = (-1, 0.0)
        self.is_held_up = False  # a file that is to be removed waits for timers that are due
        self.carried = self.carried_bytes = 0
        self.problem = ""

    def load(self, fired: set[int]) -> set[int]:
        """Finish what a crash interrupted; the timer log must be open. Returns records whose timers
        fired from another copy, which is in `fired`."""
        also_fired: set[int] = set()
        moves = self._journal.read()
        for move in moves:
            was, new = (move.was_offset, move.was_size), (move.offset, move.size)
            has_fired = [place for place in (was, new) if place[0] in fired]
            if has_fired:
                also_fired.update((move.was_offset, move.offset))
            unit = self._log.read(move.position)
            if unit is None or unit.slot_ms != move.slot_ms:
                continue
            # It must point to the copy that fired: the next start has no journal. A torn unit gets
            # the new copy.
            place = (unit.physical_offset, unit.record_size)
            if place not in (has_fired or (was, new)):
                self._log.repoint(unit, *(has_fired or [new])[0])
        if moves:
            self._log.sync()
        self._journal.remove()
        return also_fired

    def save(self) -> None:
        """At a clean stop, with the timer log on disk."""
        self._journal.remove()

    def sync(self) -> None:
        """Write the journal if it is due, before the timer log is synced; from any thread."""
        if self._journal_due:
            try:
                self._journal.write(self._moves)
                self._journal_due, self._journal_failed = False, ""
            except OSError as error:  # the checkpoint is written anyway
                self._journal_failed = str(error)

    def drop_files(self, read_second: int) -> None:
        """Remove files of the timer log that are not needed any more, even after a crash: what has
        fired since the checkpoint may not be on disk."""
        on_disk = min(read_second, self._checkpoints.point.read_ms // 1000)
        try:
            self._log.drop_before(self._store.min_physical_offset, on_disk)
        except OSError as error:  # the timers in other files fire all the same
            event, then = "a file of the timer log cannot be removed", "retried each second"
            self._store.reports.disk_error(event, error, call="read", then=then)

    # --- carrying

    def carry(self, end: int, may_put: bool) -> Standing:
        self.is_held_up = False
        if self._settling is not None:
            return self._continue_settling()
        if end != self._end:
            self._end = end
            self._scan_again()
        if not self._enqueue.has_read(end):
            return self._is_behind(self._enqueue.queue_offset)
        more = self._scan_at < self._log.end or bool(self._todo)
        if self._moves and (not more or len(self._moves) >= MOVES_MAX):
            self._settling = self._settle()
            return self._continue_settling()
        if not more and not self._firing:
            return Standing.CLEAR
        if not more:
            second = self._first_second()
            self._scan_again()
            return self._is_behind(second)
        if not self._todo:
            self._scan()
            return Standing.BUSY
        if not may_put:
            self.problem = "timers fill most of the file: too little would be freed"
            return Standing.STUCK
        return self._put_some()

    def _is_behind(self, reached: int) -> Standing:
        self.is_held_up = True
        now = self._clock.monotonic()
        if self._behind[0] != reached:
            self._behind = (reached, now)
        if now - self._behind[1] < BEHIND_S:
            return Standing.BUSY
        self.problem = "timers that are due cannot be delivered"
        return Standing.STUCK

    def _scan_again(self) -> None:
        self._scan_at, self._firing = self._log.start, False
        self._todo.clear()

    def _scan(self) -> None:
        """Find, in the next piece of the timer log, timers that wait before the file's end."""
        at = self._scan_at
        units, self._scan_at = self._log.piece(at)
        second = self._first_second()
        later = self._waiting(at, units, self._end, second + 1)
        firing = len(self._waiting(at, units, self._end, second)) > len(later)
        self._firing = self._firing or firing
        self._todo.extend(at + number * UNIT_SIZE for number in later)

    def _put_some(self) -> Standing:
        taken: list[tuple[Unit, Message]] = []
        size = 0
        while self._todo and len(taken) < PUT_AT_ONCE and size < put_again.BATCH_BYTES_MAX:
            try:
                unit = self._log.read(self._todo[0])
                skipped = unit is None or self._is_firing(unit)
                message = None if unit is None or skipped else message_of(self._store, unit)
            except OSError:  # a bad sector: the file is kept, and all these are tried again
                self._todo.extendleft(each.position for each, _ in reversed(taken))
                raise
            self._todo.popleft()
            if unit is not None and message is not None:
                taken.append((unit, carried(message)))
                size += message.size
        results = self._store.put_again([made for _, made in taken]) if taken else []
        for number, ((unit, _), result) in enumerate(zip(taken, results, strict=True)):
            if not result.ok:
                self.problem = result.reason
                self._todo.extendleft(each.position for each, _ in reversed(taken[number:]))
                return Standing.STUCK
            self.carried += 1
            self.carried_bytes += result.size
            self._last_copy = result.queue_offset
            was = unit.physical_offset, unit.record_size
            place = result.physical_offset, result.size
            self._moves.append(Move(unit.position, unit.slot_ms, *was, *place))
        return Standing.BUSY

    def _is_firing(self, unit: Unit) -> bool:
        """Whether its second is running: then the unit is skipped, and the file is kept for now. If
        it were changed to a copy after it has fired, a start could not tell that it has."""
        firing = unit.slot_ms // 1000 <= self._first_second()
        self._firing = self._firing or firing
        return firing

    def _continue_settling(self) -> Standing:
        assert self._settling is not None
        self._checkpoints.dirty.set()  # a checkpoint is needed to continue
        if next(self._settling, _ENDED) is _ENDED:
            self._settling, self._moves = None, []
        elif self._journal_failed:
            self.problem = f"the moves of timers cannot be noted: {self._journal_failed}"
            return Standing.STUCK
        return Standing.BUSY

    def _settle(self) -> Iterator[None]:
        """Make the units point to the copies, step by step."""
        while self._checkpoints.point.queue_offset <= self._last_copy:
            yield
        self._journal_due = True
        while self._journal_due:
            yield
        for number, move in enumerate(self._moves, 1):
            unit = self._log.read(move.position)
            if unit is not None and not self._is_firing(unit):
                self._log.repoint(unit, move.offset, move.size)
            if number % REPOINTED_AT_ONCE == 0:
                yield
        begun = self._checkpoints.rounds_begun
        while self._checkpoints.rounds_done <= begun:
            yield

    # --- naming

    def waiting(self, end: int) -> Iterator[StoredMessage]:
        for at, units in self._log.pieces(self._log.start):
            for number in self._waiting(at, units, end, self._first_second()):
                unit = self._log.read(at + number * UNIT_SIZE)
                message = message_of(self._store, unit) if unit is not None else None
                if message is not None and message.property(props.TIMER_DEL_UNIQKEY) is None:
                    yield message
        stop = put_again.first_at_or_after(self._store, TIMER_TOPIC, 0, end)
        offsets = range(self._enqueue.queue_offset, stop)
        yield from put_again.sound_messages(self._store, TIMER_TOPIC, 0, offsets)

    def _waiting(self, at: int, units: Units, end: int, first_second: int) -> list[int]:
        """Units of timers and recalls from this second on whose record is before `end`."""
        seconds = (units["written_ms"] + units["delay_ms"]) // 1000
        records = units["physical_offset"]
        there = (records >= self._store.min_physical_offset) & (records < end)
        waits = (seconds >= first_second) & (units["magic"] != MAGIC_NOTED)
        if passed := self._passed():
            positions = at + np.arange(len(units), dtype=np.int64) * UNIT_SIZE
            waits &= ~has_passed(seconds.astype(np.int64), positions, passed)
        found: list[int] = np.flatnonzero(there & waits).tolist()
        return found
