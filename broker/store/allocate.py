"""Commitlog files made ahead of need, in one thread beside the loop.

A new file costs a second per gigabyte when all its pages are to be in memory; a put must not wait
for that. So while one file is written the next one is created, allocated whole and populated here.
The kernel makes large pages of what is populated in large steps, which suits ASYNC_FLUSH; but a
sync writes a whole page for one message in it, so under SYNC_FLUSH pages are small.
Without a thread (`ahead=False`, a simulated disk) a file is made at the moment it is needed.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from aerobee.broker.store.disk import Disk, DiskFile, make_folder
from aerobee.broker.store.layout import offset_name

log = structlog.get_logger("aerobee.store")

POPULATE_FROM = 64 * 1024 * 1024  # smaller files are those of tests and embedded brokers
POPULATE_STEP = 8 * 1024 * 1024
WARM_STEP = 16 * 1024 * 1024  # of a file that is in use already


class FileMaker:
    def __init__(
        self,
        disk: Disk,
        folder: str,
        size: int,
        *,
        ahead: bool,
        populate: bool,
        small_pages: bool = False,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._size = size
        self._populate = populate and size >= POPULATE_FROM
        self._small_pages = small_pages or not self._populate
        self._stopping = False
        self._ahead = 0
        self._requests = 0
        self._thread = ThreadPoolExecutor(1, "aerobee-allocate") if ahead else None
        self._next: tuple[int, Future[DiskFile]] | None = None
        self.populated = 0  # how much of the file taken last is populated

    def prepare(self, start: int, *, first: bool = False) -> None:
        """Begin to make the file that starts here, if nothing is in the making."""
        if self._thread is not None and self._next is None and not self._stopping:
            made = self._thread.submit(self._make, start)
            self._ahead = WARM_STEP if first else self._size
            self._next = start, made
            self._requests += 1
            if self._populate:
                self._thread.submit(self._populate_made, made, self._ahead, self._requests)

    def take(self, start: int) -> DiskFile:
        """The file that starts here, made ahead or made now. OSError when the disk refuses."""
        made = self._next
        if made is None or made[0] != start:
            self.discard()
            self.populated = 0
            return self._make(start)
        self._next = None
        self.populated = self._ahead
        return made[1].result()

    def _make(self, start: int) -> DiskFile:
        path = os.path.join(self._folder, offset_name(start))
        make_folder(self._disk, self._folder)
        if self._disk.exists(path):  # left over by a `take` that failed half-way
            self._disk.unlink(path)
        file = self._disk.create(path, self._size)
        if self._small_pages:
            file.use_randomly()
        try:
            file.allocate(0, self._size)
            self._disk.syncdir(self._folder)
        except OSError:
            file.close()
            self._disk.unlink(path)
            raise
        return file

    def _populate_made(self, made: Future[DiskFile], end: int, request: int) -> None:
        if made.exception() is None:
            self._populate_range(made.result(), 0, end, request)

    def _populate_range(self, file: DiskFile, start: int, end: int, request: int) -> None:
        """A hint only: given up when the next file is asked for, which somebody may wait for."""
        for position in range(start, min(end, self._size), POPULATE_STEP):
            if self._stopping or request != self._requests:
                return
            file.populate(position, min(POPULATE_STEP, end - position))

    def warm(self, file: DiskFile, position: int) -> int:
        """Populate a stretch of the file in use beside the loop; where to ask for the next."""
        if self._thread is None or not self._populate or self._stopping:
            return self._size
        end = position + 2 * WARM_STEP
        self._thread.submit(self._populate_range, file, position, end, self._requests)
        return position + WARM_STEP

    def discard(self) -> None:
        """Remove the file made ahead; it is not needed."""
        made, self._next = self._next, None
        if made is None:
            return
        try:
            file = made[1].result()
            file.close()
            self._disk.unlink(file.path)
        except OSError as error:
            log.warning("the file made ahead could not be removed", reason=str(error))

    def stop(self) -> None:
        self._stopping = True
        self.discard()
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
