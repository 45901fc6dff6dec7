"""Group commit: a thread that syncs the log again and again while anything is asked for.

It takes its next job itself, without waiting for the loop between two syncs, so what the loop puts
during one sync is what the next one makes durable. The loop only answers those who waited.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, TypeVar

Job = TypeVar("Job")

# A thread whose sync is done gets its turn from a busy loop after this long at most, not after
# Python's 5 ms: a disk would be idle for most of the time.
SWITCH_INTERVAL_S: Final = 0.0005


class GroupCommit(Generic[Job]):
    def __init__(
        self,
        take: Callable[[], Job | None],
        sync: Callable[[Job], Job],
        complete: Callable[[Job], None],
    ) -> None:
        """`take` and `sync` are called in the thread, `complete` on the loop."""
        self._take = take
        self._sync = sync
        self._complete = complete
        self._loop = asyncio.get_running_loop()
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: end
        self._is_idle = False
        self._finished: deque[Job] = deque()
        self._is_looking = False  # the loop looks at `_finished` before it sleeps
        self._thread = threading.Thread(target=self._work, name="aerobee-flush", daemon=True)
        self._interval = sys.getswitchinterval()

    def __enter__(self) -> GroupCommit[Job]:
        sys.setswitchinterval(min(self._interval, SWITCH_INTERVAL_S))
        self._thread.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Return when the sync under way has ended; its `complete` is then due on the loop."""
        self._asked.put(False)
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def wake(self) -> None:
        """Something is there to sync. Nearly free while the thread is at work."""
        if self._is_idle:
            self._is_idle = False
            self._asked.put(True)
        elif not self._is_looking:
            # The loop is awake, so it need not be woken for what is finished before it sleeps:
            # that spares the thread a system call, after which a busy loop would let it wait.
            self._is_looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """On the loop: complete what is finished."""
        self._is_looking = False  # first, so that what is finished after the look is told of
        finished = self._finished
        try:
            while finished:
                self._complete(finished.popleft())
        finally:
            if finished:  # somebody's answer has failed: the others get theirs all the same
                self._loop.call_soon(self._look)

    def _work(self) -> None:
        while True:
            self._is_idle = True  # first, so that what comes after the look below wakes it
            job = self._take()
            if job is None:
                if not self._asked.get():
                    return
                continue
            self._is_idle = False
            self._finished.append(self._sync(job))
            if not self._is_looking:
                if self._loop.is_closed():
                    return
                self._loop.call_soon_threadsafe(self._look)
