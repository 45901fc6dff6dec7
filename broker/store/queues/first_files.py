"""The first files of new queues, made in one thread beside the loop.

To make a folder and a file in it can wait for the disk, and many topics may be new at once. So the
first file of a queue is begun when the queue is, and dispatch takes it when it needs it. Without a
thread (before the start, on a simulated disk) a file is made at the moment it is needed.
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
    """By the folder of the queue."""

    def __init__(self, disk: Disk, reports: Reports, size: int, allocated: int) -> None:
        self._disk = disk
        self._reports = reports
        self._size = size
        self.allocated = min(size, allocated)  # the bytes that have blocks
        self._thread: Executor | None = None
        self._begun: dict[str, Future[DiskFile]] = {}
        self._last: Future[DiskFile] | None = None

    def start(self, thread: Executor) -> None:
        """Make files ahead from now on, in this one thread."""
        self._thread = thread

    def prepare(self, folder: str) -> None:
        """Begin to make the file of a queue that is new."""
        if self._thread is not None:
            self._last = self._begun[folder] = self._thread.submit(self._make, folder)

    @property
    def are_made(self) -> bool:
        """Whether none is in the making."""
        return self._last is None or self._last.done()

    def is_in_making(self, folder: str) -> bool:
        begun = self._begun.get(folder)
        return begun is not None and not begun.done()

    async def made(self, folder: str) -> None:
        """Return when the file is not in the making any more."""
        begun = self._begun.get(folder)
        if begun is not None:
            waited = asyncio.wrap_future(begun)
            waited.add_done_callback(lambda done: done.cancelled() or done.exception())  # logged
            await asyncio.wait((waited,))

    def take(self, folder: str, start: int) -> DiskFile | None:
        """The queue's file that starts here, if it was made ahead. What is still in the making is
        waited for; what has failed is to be made again, and then tells the reason."""
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
        """The queue is gone: remove its file, if nobody has taken it."""
        begun = self._begun.pop(folder, None)
        if begun is not None and not begun.cancel() and begun.exception() is None:
            self._remove(begun.result())

    def stop(self) -> None:
        """Make no more files ahead; those that are made can still be taken."""
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
        except OSError as error:  # told here: the next try may work, or never come
            self._reports.disk_error(
                "the first file of a queue could not be made",
                error,
                call="create",
                path=folder,
                then="it is tried again when the queue's first message is dispatched",
            )
            raise

    def _make_at(self, folder: str) -> DiskFile:
        self._disk.makedirs(folder)  # the taker of the file notes that the folder is to be synced
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
