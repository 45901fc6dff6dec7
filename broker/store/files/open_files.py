"""Limits the open descriptors of files that are many but rarely used: the oldest are closed.

A file that is used again is opened again. The limit is a share of the process's limit of open
files: the rest is for connections and the log.
"""

from __future__ import annotations

import resource
import threading
from collections import deque
from typing import Final, Protocol

SHARE: Final = 8  # an eighth of the limit: connections leave a fifth of it
LEAST: Final = 16
UNLIMITED: Final = 65_536


class Closable(Protocol):
    def try_close(self) -> bool:
        """Close the descriptor; False while it is in use."""


class OpenFiles:
    """Ordered by when they were opened."""

    def __init__(self) -> None:
        self._files: deque[Closable] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: Closable) -> None:
        """Add a file that was just opened. From any thread, which must not hold another file's
        lock."""
        with self._lock:
            self._files.append(file)
            for _ in range(len(self._files) - allowed()):
                oldest = self._files.popleft()
                if oldest is file or not oldest.try_close():
                    self._files.append(oldest)


def allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else max(LEAST, soft // SHARE)


QUEUE_FILES: Final = OpenFiles()
