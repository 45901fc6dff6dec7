"""clean: removes expired files, and guards against a full disk.

    at hour deleteWhen          files older than fileReservedTime
    disk above 75 %             files older than fileReservedTime, at any hour
    disk above 85 %             the oldest files whatever their age
    disk above 90 %             ... and puts are refused, until it is at 85 % or below

The ratios count only while less than diskReservedBytes is free as well; 0 lets them act alone.
Queue and index files are removed after the log files that they point to; the current file is never
removed. Pending messages in a file (timers, delayed and half messages) are stored again before it
is removed: see `keepers`. A slave cannot do that: it keeps a file for as long as its master does.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.reports import Reports
from aerobee.broker.base.trusted_time import TrustedTime
from aerobee.broker.base.wake import Wake
from aerobee.broker.base.worker import Worker
from aerobee.broker.store.files.disk import Disk, DiskSpace
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.index.index_service import IndexService
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.queues import queue_start
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.refusals import Cause, Refusals
from aerobee.broker.store.retention.keepers import Keepers
from aerobee.broker.store.settings import StoreSettings

log = structlog.get_logger("aerobee.store")

FIRST_DELAY_S: Final = 60.0
MANUAL_ROUNDS: Final = 20
HOUR_MS: Final = 3_600_000
CARRY_PAUSE_S: Final = 0.02  # between two pieces of pending messages
COVER_PAUSE_S: Final = 1.0  # until the checkpoint that an expired file waits for
TURN: Final = 32  # queues checked per turn of the loop


class Files(Protocol):
    """A stream or the index: the oldest file goes first."""

    files: list[Any]
    folder: str

    def remove(self, file: Any) -> None: ...


Chosen = tuple[Files, Any]
# Of a removed log file: start, end, last write (ms), reason.
Removed = Callable[[int, int, int, str], None]


@dataclass(frozen=True, slots=True)
class DiskState:
    """What the disks' fill level requires."""

    reclaim: bool = False  # remove expired files now
    force: bool = False  # remove the oldest files whatever their age


class Clean:
    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        commit_log: CommitLog,
        index: IndexService | None,
        refusals: Refusals,
        clock: Clock,
        covered_to: Callable[[], int],
        cover: Callable[[], None],
        reports: Reports,
        trusted_time: TrustedTime,
    ) -> None:
        self.settings = settings  # replaced when an operator changes settings
        self._disk = disk
        self._log = commit_log
        self._index = index
        self._refusals = refusals
        self._clock = clock
        self._time = trusted_time
        self._covered_to = covered_to  # log, queues and index are on disk up to here
        self._cover = cover  # has a checkpoint made soon
        self.awaits_cover = False  # an expired file waits for that
        self._reports = reports
        self.keepers = Keepers(
            refusals, reports, lambda: (commit_log.max_offset, commit_log.flushed_offset)
        )
        # At a slave: its master keeps what is pending from here on. None: our keepers do.
        self.kept_by_master: int | None = 0 if settings.is_slave else None
        self.on_removed: Removed | None = None
        self._reason = ""  # why the chosen file is removed
        self._written_ms = 0  # when it was written last
        self._manual = 0
        self.is_running = False
        self.wake = Wake()
        self._unmeasurable: set[str] = set()
        self._removed_in_round = 0
        self._stuck_logged = False

    # -- the disk

    def measure(self) -> DiskState:
        """Measure both disks; refuse puts or accept them again."""
        if not self.settings.disk_guard_enable:
            return DiskState()
        settings = self.settings
        reclaim = force = unknown = False
        worst: tuple[str, DiskSpace] | None = None
        for path in (settings.layout.commitlog, settings.layout.consumequeue):
            space = self._space(path)
            if space is None:
                reclaim = unknown = True
                continue
            used = space.used_ratio * 100
            if 0 < settings.disk_reserved_bytes <= space.free:
                continue
            reclaim = reclaim or used > settings.disk_max_used_space_ratio
            force = force or used > settings.disk_space_clean_forcibly_ratio
            if worst is None or used > worst[1].used_ratio * 100:
                worst = path, space
        if worst is not None or not unknown:  # else keep the last state
            self._guard(worst)
        return DiskState(reclaim, force and settings.clean_file_forcibly_enable)

    def _space(self, path: str) -> DiskSpace | None:
        while not self._disk.exists(path) and os.path.dirname(path) != path:
            path = os.path.dirname(path)
        try:
            space = self._disk.space(path)
        except OSError as error:
            if path not in self._unmeasurable:
                self._unmeasurable.add(path)
                log.warning("the disk of a path cannot be measured", path=path, reason=str(error))
            return None
        self._unmeasurable.discard(path)
        return space

    def _guard(self, worst: tuple[str, DiskSpace] | None) -> None:
        settings = self.settings
        used = worst[1].used_ratio * 100 if worst is not None else 0.0
        if worst is not None and used > settings.disk_space_warning_level_ratio:
            path, space = worst
            self._refusals.set(
                Cause.DISK_FULL,
                f"the disk of {path} is {used:.1f} % full ({space.free} bytes free), above "
                f"diskSpaceWarningLevelRatio={settings.disk_space_warning_level_ratio} %: free "
                f"space, or lower fileReservedTime; sends resume automatically at "
                f"{settings.disk_space_clean_forcibly_ratio} % or below",
            )
        elif used <= settings.disk_space_clean_forcibly_ratio:
            self._refusals.clear(Cause.DISK_FULL)

    # -- files

    def trigger(self) -> None:
        """Remove expired files at the next steps whatever the hour."""
        self._manual = MANUAL_ROUNDS

    def _is_time(self) -> bool:
        hour = time.localtime(self._clock.now_ms() / 1000).tm_hour
        return any(
            word.strip().isdigit() and int(word) == hour
            for word in self.settings.delete_when.split(";")
        )

    def choose(self) -> Chosen | None:
        """The next file to remove, detached from its stream; None when there is none."""
        state = self.measure()
        now_ms = self._time.now_ms()  # each time, to notice a step of the clock
        files = self._log.files
        self.keepers.busy = self.awaits_cover = False
        if not state.force:
            self.keepers.relax()
        begun = bool(files.files) and not files.files[0].usable  # closed to readers already
        if not (state.reclaim or state.force or begun or self._manual > 0 or self._is_time()):
            return None
        keep_ms = self.settings.file_reserved_time * HOUR_MS

        def is_expired(file: MappedFile) -> bool:
            if state.force or not file.usable:
                return True
            try:
                return self._disk.modified_ms(file.path) + keep_ms <= now_ms
            except FileNotFoundError:  # already removed by an operator
                return True

        first = files.files[0] if len(files.files) > 1 else None  # the last is being written
        # Without its log a queue that lost its last entries would use their offsets again.
        if first is not None and first.end > self._covered_to():
            if is_expired(first):
                self.awaits_cover = True
                self._cover()
            return None
        asked = first is not None and first.usable and is_expired(first)
        if first is not None and asked and not state.force and self._master_has(first):
            return None
        if first is not None and asked and not self.keepers.is_clear(first, state.force):
            return None
        force_after_ms = self.settings.destroy_maped_file_interval_forcibly
        file = files.expired(is_expired, now_ms, force_after_ms)
        if file is None:
            if state.reclaim and not self._removed_in_round and not self._stuck_logged:
                self._stuck_logged = True
                log.warning("the disk fills up but no commitlog file may be removed yet")
            return None
        self._stuck_logged = False
        files.files.pop(0)
        self._reason = "disk full" if state.force else "requested" if self._manual else "age"
        with suppress(FileNotFoundError):
            self._written_ms = self._disk.modified_ms(file.path)
        log.info("a commitlog file is removed", path=file.path, forced=state.force)
        return files, file

    def _master_has(self, file: MappedFile) -> bool:
        if self.kept_by_master is None or file.end <= self.kept_by_master:
            return False
        event = "an expired file is kept: the master has not removed it yet, or is not known"
        self._reports.log(event, level="info", path=file.path)
        return True

    def choose_derived(self) -> Iterator[Chosen | None]:
        """Queue and index files that point only to removed log, each detached when it is yielded.
        Yields None now and then: there may be many queues."""
        if self.keepers.busy:
            return  # nothing was removed, and this runs again soon
        low = self._log.files.min_offset
        for number, queue in enumerate(self._log.queues):
            if number % TURN == TURN - 1:
                yield None
            try:
                yield from _expired_of(queue, low)
            except OSError as error:  # an operator may have removed the topic's folder
                self._report("a queue cannot be searched for expired files", error, "read")
        if self._index is not None:
            yield from _taken_out(self._index, partial(self._index.is_first_expired, low))

    def remove(self, chosen: Chosen) -> bool:
        """Delete the file; False when that failed and it still exists."""
        files, file = chosen
        try:
            files.remove(file)
        except OSError as error:
            self._report("a file could not be removed", error, "unlink", file.path)
            return False
        try:
            with suppress(FileNotFoundError):  # its topic may have been deleted meanwhile
                self._disk.syncdir(files.folder)
        except OSError as error:
            self._report("a folder could not be synced", error, "syncdir", files.folder)
        return True

    def _report(self, event: str, error: OSError, call: str, path: str = "") -> None:
        wait_s = self.settings.clean_resource_interval / 1000
        then = f"retried every {wait_s:g} s; the disk is not freed until it works"
        self._reports.disk_error(event, error, call=call, path=path, then=then)

    def _log_settled(self, chosen: Chosen, removed: bool) -> bool:
        """As `_settled`, for a file of the log; notifies listeners."""
        _, file = chosen
        if removed and self.on_removed is not None:
            self.on_removed(file.start, file.end, self._written_ms, self._reason)
        return _settled(chosen, removed)

    def step(self) -> float:
        """Remove at most one log file and what points to it; seconds until the next step."""
        chosen = self.choose()
        removed = chosen is not None and self._log_settled(chosen, self.remove(chosen))
        for derived in self.choose_derived():
            if derived is not None:
                _settled(derived, self.remove(derived))
        return self.pause(removed)

    def pause(self, removed: bool) -> float:
        """Seconds to wait: short between two files, the interval between two rounds."""
        if self.keepers.busy:
            return CARRY_PAUSE_S
        if self.awaits_cover:
            return COVER_PAUSE_S
        self._removed_in_round += removed
        if removed and self._removed_in_round < self.settings.delete_file_batch_max:
            return self.settings.delete_commit_log_files_interval / 1000
        self._removed_in_round = 0
        self._manual = max(self._manual - 1, 0)
        return self.settings.clean_resource_interval / 1000

    async def run(self, worker: Worker) -> None:
        """Remove what expires, in the thread of `worker`, until cancelled."""
        self.is_running = True
        try:
            await self.wake.wait_at_most(self._clock, FIRST_DELAY_S)
            while True:
                removed = await self._round(worker)
                await self.wake.wait_at_most(self._clock, self.pause(removed))
        finally:
            self.is_running = False

    async def _round(self, worker: Worker) -> bool:
        """As `step`; whether a log file was removed."""
        removed = False
        try:
            chosen = self.choose()
            if chosen is not None:
                removed = self._log_settled(chosen, await worker.run(self.remove, chosen))
            for derived in self.choose_derived():
                if derived is None:
                    await asyncio.sleep(0)
                else:
                    _settled(derived, await worker.run(self.remove, derived))
        except OSError as error:
            self._report("the store cannot be searched for expired files", error, "read")
        return removed


def _expired_of(queue: ConsumeQueue, low: int) -> Iterator[Chosen]:
    """The files of one queue that point only to log before `low`."""
    if queue_start.begins_before(queue, low):
        queue_start.correct_min_offset(queue, low)
    yield from _taken_out(queue.files, partial(queue_start.is_file_expired, queue, low))
    if queue.ext is not None and len(queue.ext.files.files) > 1:
        units = queue.ext.files
        yield from _taken_out(units, partial(_first_ends_by, units, queue_start.ext_begin(queue)))


def _taken_out(files: Files, first_may_go: Callable[[], bool]) -> Iterator[Chosen]:
    """The first files of a stream, one after the other, never the last."""
    while len(files.files) > 1 and first_may_go():
        file = files.files.pop(0)
        yield files, file
        if files.files and files.files[0] is file:  # it could not be removed
            return


def _first_ends_by(files: Files, byte: int) -> bool:
    return bool(files.files[0].end <= byte)


def _settled(chosen: Chosen, removed: bool) -> bool:
    """A file that could not be removed stays the first of its stream: removing the next one would
    leave a hole, and the next start would be refused."""
    files, file = chosen
    if not removed:
        files.files.insert(0, file)
    return removed
