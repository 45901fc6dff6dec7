"""The first files of new queues, created in a thread beside the loop.

Creating a folder and a file can wait for the disk, and many topics may be new at once. So the first
file of a queue is requested together with the queue, and dispatch takes it when it needs it.
Without a thread (before the start, on a simulated disk) a file is created when it is needed.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import CancelledError, Executor, Future

import structlog

from aerobee.broker.base.reports import Reports
from aerobee.broker.store.files.disk import Disk, DiskFile
from aerobee.broker.store.files.layout import offset_name

log = structlog.get_logger("aerobee.store")


class FirstFiles:
    """The files that are being created or are ready, by the folder of their queue."""

    def __init__(self, disk: Disk, reports: Reports, size: int, allocated: int) -> None:
        self._disk = disk
        self._reports = reports
        self._size = size
        self.allocated = min(size, allocated)  # allocated bytes of each
        self._thread: Executor | None = None
        self._begun: dict[str, Future[DiskFile]] = {}
        self._last: Future[DiskFile] | None = None

    def start(self, thread: Executor) -> None:
        """Create files ahead from now on, in this thread."""
        self._thread = thread

    def prepare(self, folder: str) -> None:
        """Start creating the file of a new queue."""
        if self._thread is not None:
            self._last = self._begun[folder] = self._thread.submit(self._make, folder)

    @property
    def are_made(self) -> bool:
        """Whether no file is being created."""
        return self._last is None or self._last.done()

    def is_in_making(self, folder: str) -> bool:
        begun = self._begun.get(folder)
        return begun is not None and not begun.done()

    async def made(self, folder: str) -> None:
        """Return when the file is created, or has failed."""
        begun = self._begun.get(folder)
        if begun is not None:
            waited = asyncio.wrap_future(begun)
            waited.add_done_callback(lambda done: done.cancelled() or done.exception())  # logged
            await asyncio.wait((waited,))

    def take(self, folder: str, start: int) -> DiskFile | None:
        """The queue's file that begins here, if it was created ahead. Waits for one that is being
        created; None for one that failed: creating it again raises the reason."""
        begun = self._begun.pop(folder, None)
        if begun is None:
            return None
        try:
            file = begun.result()
        except (OSError, CancelledError):
            return None
        if start:
            self._remove(file)
            return None
        return file

    def discard(self, folder: str) -> None:
        """The queue is gone: remove its file unless it was taken."""
        begun = self._begun.pop(folder, None)
        if begun is not None and not begun.cancel() and begun.exception() is None:
            self._remove(begun.result())

    def stop(self) -> None:
        """Create no more files ahead; finished ones can still be taken."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None

    def close(self) -> None:
        self.stop()
        for folder in list(self._begun):
            self.discard(folder)

    def _make(self, folder: str) -> DiskFile:
        try:
            return self._make_at(folder)
        except OSError as error:  # logged here: there may be no next try
            self._reports.disk_error(
                "the first file of a queue could not be made",
                error,
                call="create",
                path=folder,
                then="it is retried when the queue's first message is dispatched",
            )
            raise

    def _make_at(self, folder: str) -> DiskFile:
        self._disk.makedirs(folder)  # `take`'s caller notes that the folder needs a sync
        file = self._disk.create(os.path.join(folder, offset_name(0)), self._size)
        try:
            file.allocate(0, self.allocated)
        except OSError:
            self._remove(file)
            raise
        return file

    def _remove(self, file: DiskFile) -> None:
        file.close()
        try:
            self._disk.unlink(file.path)
        except OSError as error:
            log.warning("a file made ahead could not be removed", reason=str(error))
