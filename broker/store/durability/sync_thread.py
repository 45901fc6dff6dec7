"""`GroupCommit` with its thread in C (`broker.compiled`), which needs no interpreter lock.

The loop takes the jobs and passes their descriptors; the thread syncs the last one passed and
signals the loop through a pipe. So neither waits for the other to release the GIL.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Final

from aerobee.broker.compiled import compiled
from aerobee.broker.store.durability.log_job import LogJob
from aerobee.broker.store.files.real_disk import RealFile

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

_PIPE_READ: Final = 64  # more than the pipe ever holds
_REMOVED: Final = -1  # instead of a descriptor: the file was removed, nothing to sync


class SyncThread:
    def __init__(
        self, take: Callable[[], LogJob | None], complete: Callable[[LogJob], None]
    ) -> None:
        """Both are called on the loop. A job covers one file of a `RealDisk`."""
        self._take = take
        self._complete = complete
        self._loop = asyncio.get_running_loop()
        self._wake_read, self._wake_write = os.pipe()
        self._syncs: _hot.Syncs = compiled().Syncs(self._wake_write)
        self._thread = threading.Thread(target=self._syncs.run, name="aerobee-flush", daemon=True)
        self._tickets = count(1)
        self._requested: deque[tuple[int, LogJob]] = deque()
        self._held: LogJob | None = None  # waits for the sync of another file

    def __enter__(self) -> SyncThread:
        self._loop.add_reader(self._wake_read, self._on_signal)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Return when the current sync has ended; its `complete` then runs on the loop."""
        self._syncs.end()
        self._thread.join()
        self._loop.remove_reader(self._wake_read)
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._loop.call_soon(self._finish)

    def wake(self) -> None:
        """Request a sync."""
        while (job := self._held or self._take()) is not None:
            file, ticket = _file_of(job), next(self._tickets)
            try:
                descriptor = file.use()
            except OSError as error:
                file.end_use()
                job.error = error
                self._loop.call_soon(self._complete, job)
                return
            if not self._syncs.request(_REMOVED if descriptor is None else descriptor, ticket):
                file.end_use()
                self._held = job
                return
            self._requested.append((ticket, job))
            self._held = None

    def _on_signal(self) -> None:
        os.read(self._wake_read, _PIPE_READ)
        try:
            self._finish()
        finally:
            self.wake()

    def _finish(self) -> None:
        """Complete what is finished: of each file the last job, which covers those before it. After
        an error all jobs not yet synced have failed; one is completed with the error for all."""
        done, took_s, error = self._syncs.finished()
        requested = self._requested
        if error:
            self._held = None
        try:
            while requested and (error or requested[0][0] <= done):
                ticket, job = requested.popleft()
                _file_of(job).end_use()
                follower = requested[0] if requested else None
                if ticket > done:
                    if follower is not None:
                        continue
                    job.error = OSError(error, os.strerror(error))
                elif follower and follower[0] <= done and follower[1].files == job.files:
                    continue
                job.took_ms = took_s * 1000
                self._complete(job)
        finally:
            if requested and (error or requested[0][0] <= done):
                self._loop.call_soon(self._finish)  # `complete` failed: complete the others


def _file_of(job: LogJob) -> RealFile:
    [mapped] = job.files
    assert isinstance(mapped.file, RealFile)
    return mapped.file
