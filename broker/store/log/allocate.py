"""Commitlog files created ahead of need, in a thread beside the loop.

Creating a file and allocating all its blocks can take a while; a put must not wait for that. So
while one file is written the next one is created here. In SYNC_FLUSH its first blocks are written,
not only allocated: see `prewrite`, which continues from there. Without a thread (`ahead=False`, a
simulated disk) a file is created when it is needed.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import structlog

from aerobee.broker.store.files.disk import Disk, DiskFile, make_folder
from aerobee.broker.store.files.layout import offset_name
from aerobee.broker.store.files.mapped_file import PAGE
from aerobee.broker.store.log.prewrite import FIRST_BYTES

log = structlog.get_logger("aerobee.store")

READY_STEP: Final = 4 << 20  # per call: the system blocks other maps meanwhile


class FileMaker:
    def __init__(
        self,
        disk: Disk,
        folder: str,
        size: int,
        *,
        ahead: bool,
        prewrite: bool = False,
        ready: bool = False,
    ) -> None:
        """`ready`: the files are written through their maps."""
        self._disk = disk
        self._folder = folder
        self._size = size
        self._prewritten = min(size, FIRST_BYTES) if prewrite else 0
        self._ready = ready
        self._stopping = False
        self._thread = ThreadPoolExecutor(1, "aerobee-allocate") if ahead else None
        self._next: tuple[int, Future[DiskFile]] | None = None

    def prepare(self, start: int) -> None:
        """Start creating the file that begins here, unless one is being created."""
        if self._thread is not None and self._next is None and not self._stopping:
            made = self._thread.submit(self._make_ahead, start)
            self._next = start, made
            if self._ready:
                self._thread.submit(lambda: self._make_ready(made.result(), 0))

    def take(self, start: int) -> DiskFile:
        """The file that begins here, created ahead or now. OSError when the disk refuses."""
        made = self._next
        if made is None or made[0] != start:
            self.discard()
            file = self._make(start)
            self.make_ready(file, 0)
            return file
        self._next = None
        return made[1].result()

    def _make_ahead(self, start: int) -> DiskFile:
        file = self._make(start)
        if self._prewritten:
            try:
                file.prewrite(0, self._prewritten)
            except OSError:
                log.debug("a file was not written ahead", path=file.path)  # `prewrite` logs why
        return file

    def _make(self, start: int) -> DiskFile:
        path = os.path.join(self._folder, offset_name(start))
        make_folder(self._disk, self._folder)
        if self._disk.exists(path):  # left over by a failed `take`
            self._disk.unlink(path)
        file = self._disk.create(path, self._size)
        try:
            file.allocate(0, self._size)
            self._disk.syncdir(self._folder)
        except OSError:
            file.close()
            self._disk.unlink(path)
            raise
        return file

    def make_ready(self, file: DiskFile, written: int) -> None:
        """Prepare an allocated file for writes through its map from here on, in the background."""
        if self._ready and not self._stopping:
            if self._thread is not None:
                self._thread.submit(self._make_ready, file, written)
            else:
                self._make_ready(file, written)

    def _make_ready(self, file: DiskFile, written: int) -> None:
        """In steps. Sends do not wait for it: what is not ready is written with pwrite."""
        try:
            for start in range(written - written % PAGE, self._size, READY_STEP):
                if self._stopping:
                    return
                file.make_ready(start, min(READY_STEP, self._size - start))
        except OSError as error:
            log.warning(
                "a file is not written through its map, but by calls",
                path=file.path,
                reason=str(error),
                setting="writeWithoutMmap",
            )

    def discard(self) -> None:
        """Remove the file that was created ahead."""
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
