"""commit: moves what the transient store pool's buffers hold into the commitlog's files."""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.store.base import StoreBase
from aerobee.broker.store.files.mapped_file import PAGE
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.log.transient_store_pool import TransientStorePool
from aerobee.broker.store.refusals import Cause


class PoolCommit:
    def __init__(
        self,
        base: StoreBase,
        commit_log: CommitLog,
        pool: TransientStorePool,
        on_committed: Callable[[], None],
    ) -> None:
        self._settings = base.settings
        self._log = commit_log
        self._pool = pool
        self._clock = base.clock
        self._refusals = base.refusals
        self._on_committed = on_committed
        self._last_thorough = base.clock.monotonic()

    def try_step(self, least_pages: int = 0) -> None:
        """A step; when the disk refuses, puts are refused until a later step succeeds: the pending
        messages are only in the pool."""
        try:
            self.step(least_pages)
        except OSError as error:
            self._refusals.set(
                Cause.COMMIT_FAILED,
                f"messages could not be moved from the transient store pool to "
                f"{self._log.files.folder} ({error}): repair the disk; sends resume automatically "
                f"when it can be written again",
            )
        else:
            if Cause.COMMIT_FAILED in self._refusals:
                self._refusals.clear(Cause.COMMIT_FAILED)

    def step(self, least_pages: int = 0) -> bool:
        """Commit if this many pages are pending (a full file: always); whether anything was
        committed."""
        moved = 0
        for file in self._log.files.files:
            waiting = file.wrote - file.committed
            if file.buffer is None or not (file.is_full or waiting >= least_pages * PAGE):
                continue
            moved += file.commit()
            if file.is_full:
                self._pool.release(file.buffer)
                file.buffer = None
        if moved:
            self._on_committed()
        return moved > 0

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._settings.commit_interval_commit_log / 1000)
            self.try_step(self._least_pages())

    def _least_pages(self) -> int:
        now = self._clock.monotonic()
        interval = self._settings.commit_commit_log_thorough_interval
        if (now - self._last_thorough) * 1000 >= interval:
            self._last_thorough = now
            return 0
        return self._settings.commit_commit_log_least_pages
