"""Opening a store's directory: lock it, load it, recover it.

A store opens on a full disk, too: reads are served, puts are refused, and the rest of the start is
done as soon as there is room.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from aerobee.broker.store.errors import StoreError, StoreLocked, is_no_space, remedy_for
from aerobee.broker.store.files.disk import Disk, DiskLock, make_folder
from aerobee.broker.store.parts import StoreParts
from aerobee.broker.store.recovery.plan import Mode
from aerobee.broker.store.recovery.recovery import Progress, Recovery, cut_log, gather_facts
from aerobee.broker.store.refusals import Cause
from aerobee.protocol.files.checkpoint import StoreCheckpoint

FINISH_RETRY_S: Final = 1.0


class Opening:
    """Holds the directory from `load` to `release`."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._layout = parts.base.settings.layout
        self._lock: DiskLock | None = None
        self._deferred: list[Callable[[], None]] = []  # steps of the start deferred by a full disk
        self.was_stopped = True  # the last run on this directory was shut down cleanly

    def load(self, progress: Progress | None, cut_to: int | None = None) -> None:
        """StoreError when it cannot be opened. `cut_to`: cut the log, and what is derived from it,
        at this offset, the end of a record."""
        try:
            make_folder(self._parts.base.disk, self._layout.root)
            self._take_lock()
            self.was_stopped = not self._parts.base.abort.exists
            self._read_files()
            last = self._parts.files.commit_log.files.last
            if cut_to is not None and last is not None and cut_to < last.end:
                self._cut(cut_to)
            self._recover(progress)
        except OSError as error:
            self.release()
            remedy = remedy_for(error, "check the permissions there, and the disk")
            raise StoreError(
                f"the store in {self._layout.root} cannot be opened: {error}; {remedy}"
            ) from error
        except StoreError:
            self.release()
            raise

    def _take_lock(self) -> None:
        path = self._layout.lock
        try:
            self._lock = self._parts.base.disk.lock(path)
        except BlockingIOError as error:
            raise StoreLocked(
                f"{self._layout.root} is in use by another broker ({error.strerror}, see "
                f"{path}): stop it, or give this one another storePathRootDir"
            ) from error

    def _read_files(self) -> None:
        """Load the files: all are checked before the first is changed."""
        files = self._parts.files
        point = self._parts.durability.checkpoint.load()
        self._parts.base.trusted_time.resume(point.trusted_ms, point.doubted_ms)
        files.commit_log.files.load(point.dispatched_offset)
        files.queues.load()
        if files.index is not None:
            files.index.load()
        files.commit_log.files.complete_last()
        files.queues.complete_last()
        if point.dispatched_offset >= 0:  # the records below it are not read again
            files.commit_log.last_store_timestamp = max(
                point.physic_msg_timestamp, point.logics_msg_timestamp
            )

    def _cut(self, end: int) -> None:
        """Cut the log before the recovery. After a power cut in between the next start finds the
        log cut or not, and queues and index consistent with it: the checkpoint is lowered first.
        """
        parts, index = self._parts, self._parts.files.index
        checkpoint = parts.durability.checkpoint
        point = checkpoint.value
        if point.dispatched_offset < 0:
            raise StoreError(
                f"the log in {self._layout.root} cannot be cut at {end}: its checkpoint is not "
                f"ours; start and stop this broker once before"
            )
        parts.base.abort.mark_running()
        self.was_stopped = False
        if point.dispatched_offset > end:
            kept = [file for file in index.files if file.begin_offset < end] if index else []
            last = kept[-1] if kept else None
            checkpoint.write(
                replace(
                    point,
                    dispatched_offset=end,
                    index_file=last.number if last else 0,
                    index_count=last.count if last else 0,
                )
            )
        cut_log(parts.files.commit_log, end)

    def _recover(self, progress: Progress | None) -> None:
        parts, log, index = self._parts, self._parts.files.commit_log, self._parts.files.index
        settings, abort = parts.base.settings, parts.base.abort
        checkpoint, flush = parts.durability.checkpoint, parts.durability.flush
        point = checkpoint.value
        flush.flushed_timestamp = point.physic_msg_timestamp
        facts = gather_facts(settings, log, index, point, self.was_stopped)
        sync_failed = abort.says_sync_failed
        if self.was_stopped:
            self._do_or_defer(abort.mark_running)
        recovery = Recovery(settings, log, index, parts.dispatch.reput, progress, sync_failed)
        plan = recovery.run(facts)
        if plan.mode is Mode.EMPTY and point.dispatched_offset > 0:
            # The checkpoint is of a log that is gone. After a crash the new log would be checked
            # against it.
            checkpoint.value = StoreCheckpoint()
            self._do_or_defer(self._reset_checkpoint)
        if recovery.no_space is not None:
            self._defer(self._complete_log, recovery.no_space)
        parts.reader.check_records = recovery.found_damage
        flush.flushed_timestamp = log.last_store_timestamp
        if plan.mode is not Mode.NORMAL:
            self._settle_names()
        if sync_failed:
            queue_flush = parts.durability.queue_flush
            queue_flush.step(thorough=True)
            if not (queue_flush.failed or queue_flush.deferred):
                self._do_or_defer(abort.mark_running)

    def _reset_checkpoint(self) -> None:
        self._parts.durability.checkpoint.write(StoreCheckpoint())

    def _settle_names(self) -> None:
        """A killed run may have created folders and files whose names are not on disk yet: those of
        the log and of config are synced first, the others before the checkpoint."""
        disk, layout = self._parts.base.disk, self._layout
        for folder in (layout.root, layout.commitlog, layout.config):
            if disk.exists(folder):
                disk.syncdir(folder)
        self._parts.base.unsynced.update(all_folders(disk, layout.root))
        # Until then the next start repeats this.
        self._parts.durability.queue_flush.expedite()

    def release(self) -> None:
        """Close and unlock without a flush, as a killed process does: `abort` stays."""
        self._parts.files.close()
        self._parts.durability.checkpoint.close()
        self._parts.files.maker.stop()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- a start without room on the disk

    @property
    def is_finished(self) -> bool:
        return not self._deferred

    def _do_or_defer(self, part: Callable[[], None]) -> None:
        """Run a step of the start, or defer it on a full disk: reads work without it."""
        try:
            part()
        except OSError as error:
            if not is_no_space(error):
                raise
            self._defer(part, error)

    def _defer(self, part: Callable[[], None], error: OSError) -> None:
        self._deferred.append(part)
        self._parts.base.refusals.set(
            Cause.START_UNFINISHED,
            f"the disk of {self._layout.root} had no room when the broker started "
            f"({error}): free space; sends resume automatically then",
        )

    def _complete_log(self) -> None:
        """Allocate the current file, and dispatch what the queues lack."""
        last = self._parts.files.commit_log.files.last
        if last is not None:
            last.allocate_to(last.size, last.size)
        reput = self._parts.dispatch.reput
        while reput.facts.behind and reput.step():
            pass

    def finish(self) -> bool:
        """Run the steps that a full disk has deferred; whether all are done."""
        while self._deferred:
            try:
                self._deferred[0]()
            except OSError as error:
                self._parts.base.reports.disk_error(
                    "the start is not finished: puts are refused",
                    error,
                    call=self._deferred[0].__name__.strip("_"),
                    then="retried every second; " + remedy_for(error, "repair the disk"),
                )
                return False
            self._deferred.pop(0)
        self._parts.base.refusals.clear(Cause.START_UNFINISHED)
        return True

    async def run_finish(self) -> None:
        while not self.finish():
            await self._parts.base.clock.sleep(FINISH_RETRY_S)


def all_folders(disk: Disk, folder: str) -> Iterator[str]:
    yield folder
    for name in disk.listdir(folder):
        path = os.path.join(folder, name)
        if disk.is_folder(path):
            yield from all_folders(disk, path)
