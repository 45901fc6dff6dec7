"""SYNC_FLUSH: the log's blocks are written, as zeros, before messages need them.

Blocks that are only allocated are marked as written by the first sync that reaches them. That takes
a commit of the file system's journal, so each sync is slower; and while a file system shuts down it
can fail without an error, so that a sync succeeds for data that is gone after the next mount
(docs/durability.md). A thread keeps a window after the last message written. It never delays a put:
if it is late, messages go to blocks that are only allocated.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from aerobee.broker.store.files.mapped_file import MappedFile
    from aerobee.broker.store.files.mapped_file_queue import MappedFileQueue

log = structlog.get_logger("aerobee.store")

PAGE: Final = 4096
WINDOW: Final = 8 << 20  # bytes that are written ahead; a recovery has to read them
CHUNK: Final = 256 << 10  # ... at a time: a sync of the log waits for no more than this
FIRST_BYTES: Final = 4 << 20  # of the next file, in advance
BYTES_PER_S: Final = 32 << 20  # at most: more would slow down the messages
PAUSE_S: Final = 0.5  # when messages arrive faster than that
_NEVER: Final = 1 << 63


class Prewriter:
    def __init__(self, files: MappedFileQueue, *, ready: bool = False) -> None:
        """`ready`: what is written ahead is then written through the map."""
        self._files = files
        self._ready = ready
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: end
        self._thread: threading.Thread | None = None
        self.wake_at = _NEVER  # call `wake` when the log's end is past this

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="aerobee-prewrite", daemon=True)
        self._thread.start()
        self.wake()

    def wake(self) -> None:
        self.wake_at = _NEVER
        self._asked.put(True)

    def stop(self) -> None:
        if self._thread is not None:
            self._asked.put(False)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        try:
            while self._asked.get():
                while (pause := self.step()) > 0:
                    with suppress(queue.Empty):
                        if not self._asked.get(timeout=pause):
                            return
        except OSError as error:
            log.warning(
                "the log is not written ahead any more: syncs may be slower",
                reason=str(error),
                setting="warmMapedFileEnable",
            )

    def step(self) -> float:
        """Write one chunk; seconds to pause before the next, 0 when enough is written for now."""
        mapped = self._files.last
        if mapped is None:
            self.wake_at = 0
            return 0.0
        self._make_ready(mapped)  # what was written ahead when the file was created
        wrote, written = mapped.wrote, mapped.file.prewritten
        start = max(written, wrote - wrote % PAGE)
        room = min(mapped.size, wrote + WINDOW) - start
        if room < min(CHUNK, mapped.size - start) or room <= 0:
            is_whole = start >= mapped.size
            self.wake_at = mapped.end if is_whole else mapped.start + start - WINDOW // 2
            return 0.0
        mapped.file.prewrite(start, -(-min(room, CHUNK) // PAGE) * PAGE)
        self._make_ready(mapped)
        is_overtaken = 0 < written < wrote
        return PAUSE_S if is_overtaken else CHUNK / BYTES_PER_S

    def _make_ready(self, mapped: MappedFile) -> None:
        start, end = mapped.wrote - mapped.wrote % PAGE, mapped.file.prewritten
        if self._ready and max(start, mapped.file.ready) < end:
            mapped.file.make_ready(start, end - start)
