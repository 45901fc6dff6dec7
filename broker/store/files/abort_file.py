"""`abort`: a file that exists while the broker runs, so that the next start detects a kill.

Its content is for people, except for one word: a sync failed, so the page cache may hold data that
never reached the disk.
"""

from __future__ import annotations

import os
from typing import Final

import structlog

from aerobee.broker.store.errors import is_no_space
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.layout import Layout

log = structlog.get_logger("aerobee.store")

SYNC_FAILED: Final = b"a sync failed"


class AbortFile:
    __slots__ = ("_disk", "_folder", "path")

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._folder = layout.root
        self.path = layout.abort

    @property
    def exists(self) -> bool:
        return self._disk.exists(self.path)

    @property
    def says_sync_failed(self) -> bool:
        return self.exists and self._disk.read_small(self.path) == SYNC_FAILED

    def mark_running(self) -> None:
        try:
            self._disk.write_small(self.path, b"%d" % os.getpid())
        except OSError as error:
            if not is_no_space(error) or not self.exists:
                raise
        self._disk.syncdir(self._folder)

    def mark_sync_failed(self) -> None:
        try:
            self._disk.write_small(self.path, SYNC_FAILED)
        except OSError as error:
            log.error("the failed sync could not be noted for the next start", reason=str(error))

    def remove(self) -> None:
        """The stop is clean."""
        if self.exists:
            self._disk.unlink(self.path)
            self._disk.syncdir(self._folder)
