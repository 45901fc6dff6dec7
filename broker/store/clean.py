"""clean: removes expired files, and guards against a full disk.

    at hour deleteWhen          files older than fileReservedTime
    disk above 75 %             files older than fileReservedTime, at any hour
    disk above 85 %             the oldest files whatever their age
    disk above 90 %             ... and puts are refused, until it is at 85 % or below

The ratios count only while less than diskReservedBytes is free as well. Queue and index files go
after the log files that they point to; the file that is written is never removed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

import structlog

from aerobee.broker.clock import Clock
from aerobee.broker.store.commitlog import CommitLog
from aerobee.broker.store.disk import Disk, DiskSpace
from aerobee.broker.store.index_service import IndexService
from aerobee.broker.store.mapped_file import MappedFile
from aerobee.broker.store.mapped_file_queue import MappedFileQueue
from aerobee.broker.store.refusals import Cause, Refusals
from aerobee.broker.store.settings import StoreSettings
from aerobee.broker.store.worker import Worker

log = structlog.get_logger("aerobee.store")

FIRST_DELAY_S: Final = 60.0
MANUAL_ROUNDS: Final = 20
HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class DiskState:
    """What the disks ask for."""

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
    ) -> None:
        self.settings = settings  # replaced whole when an operator changes what may change
        self._disk = disk
        self._log = commit_log
        self._index = index
        self._refusals = refusals
        self._clock = clock
        self._manual = 0
        self._unmeasurable: set[str] = set()
        self._removed_in_round = 0
        self._said_stuck = False

    # -- the disk

    def measure(self) -> DiskState:
        """Measure both disks; refuse puts or take them again."""
        if not self.settings.disk_guard_enable:
            return DiskState()
        settings = self.settings
        reclaim = force = False
        worst: tuple[str, DiskSpace] | None = None
        for path in (settings.layout.commitlog, settings.layout.consumequeue):
            space = self._space(path)
            if space is None:
                reclaim = True
                continue
            used = space.used_ratio * 100
            if space.free >= settings.disk_reserved_bytes:
                continue
            reclaim = reclaim or used > settings.disk_max_used_space_ratio
            force = force or used > settings.disk_space_clean_forcibly_ratio
            if worst is None or used > worst[1].used_ratio * 100:
                worst = path, space
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
                f"space, or lower fileReservedTime; sends resume by themselves at "
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

    def choose(self) -> tuple[MappedFileQueue, MappedFile] | None:
        """The next file to remove, taken out of its stream; None when none may go."""
        state = self.measure()
        manual = self._manual > 0
        if not (state.reclaim or state.force or manual or self._is_time()):
            return None
        now_ms = self._clock.now_ms()
        keep_ms = self.settings.file_reserved_time * HOUR_MS

        def is_expired(file: MappedFile) -> bool:
            return state.force or self._disk.modified_ms(file.path) + keep_ms <= now_ms

        files = self._log.files
        limit = self._log.flushed_offset
        if files.files and files.files[0].end > limit:
            return None
        force_after_ms = self.settings.destroy_maped_file_interval_forcibly
        file = files.expired(is_expired, now_ms, force_after_ms)
        if file is None:
            if state.reclaim and not self._removed_in_round and not self._said_stuck:
                self._said_stuck = True
                log.warning("the disk fills up but no commitlog file may be removed yet")
            return None
        self._said_stuck = False
        files.files.pop(0)
        log.info("a commitlog file is removed", path=file.path, forced=state.force)
        return files, file

    def choose_derived(self) -> list[tuple[MappedFileQueue, MappedFile]]:
        """Queue and index files that point only to what the log no longer has, taken out."""
        low = self._log.files.min_offset
        chosen: list[tuple[MappedFileQueue, MappedFile]] = []
        for queue in self._log.queues:
            before = len(chosen)
            while len(queue.files.files) > 1 and queue.is_file_expired(low):
                chosen.append((queue.files, queue.files.files.pop(0)))
            if len(chosen) > before or queue.begins_before(low):
                queue.correct_min_offset(low)
            if queue.ext is not None and len(queue.ext.files.files) > 1:
                first = queue.ext_begin()
                while len(queue.ext.files.files) > 1 and queue.ext.files.files[0].end <= first:
                    chosen.append((queue.ext.files, queue.ext.files.files.pop(0)))
        index_files = self._index.files if self._index is not None else []
        while len(index_files) > 1 and self._index and index_files[0].end_offset < low:
            self._index.remove(index_files[0])
        return chosen

    def remove(self, chosen: tuple[MappedFileQueue, MappedFile]) -> None:
        files, file = chosen
        try:
            files.remove(file)
            self._disk.syncdir(files.folder)
        except OSError as error:
            log.error("a file could not be removed", path=file.path, reason=str(error))

    def step(self) -> float:
        """Remove at most one log file and what hangs on it; seconds until the next step."""
        chosen = self.choose()
        if chosen is not None:
            self.remove(chosen)
        for derived in self.choose_derived():
            self.remove(derived)
        return self.pause(chosen is not None)

    def pause(self, removed: bool) -> float:
        """How long to wait: a little between two files, the interval between two rounds."""
        self._removed_in_round += removed
        if removed and self._removed_in_round < self.settings.delete_file_batch_max:
            return self.settings.delete_commit_log_files_interval / 1000
        self._removed_in_round = 0
        self._manual = max(self._manual - 1, 0)
        return self.settings.clean_resource_interval / 1000

    async def run(self, worker: Worker) -> None:
        await self._clock.sleep(FIRST_DELAY_S)
        while True:
            chosen = None
            try:
                chosen = self.choose()
                if chosen is not None:
                    await worker.run(self.remove, chosen)
                for derived in self.choose_derived():
                    await worker.run(self.remove, derived)
            except OSError as error:
                log.error("expired files could not be looked for", reason=str(error))
            await self._clock.sleep(self.pause(chosen is not None))
