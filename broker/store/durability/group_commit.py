"""Group commit: a thread that syncs the log as long as syncs are requested.

It takes its next job without waiting for the loop, so one sync covers everything that was put
during the sync before it. The loop only answers the waiting puts.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Job = TypeVar("Job")

# How long a busy loop may keep the GIL from the thread when a sync is done. With Python's 5 ms the
# disk would be idle most of the time.
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
        self._will_check = False  # the loop will check `_finished` before it sleeps
        self._thread = threading.Thread(target=self._work, name="aerobee-flush", daemon=True)
        self._interval = sys.getswitchinterval()

    def __enter__(self) -> GroupCommit[Job]:
        sys.setswitchinterval(min(self._interval, SWITCH_INTERVAL_S))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Return when the current sync has ended; its `complete` then runs on the loop."""
        self._asked.put(False)
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def wake(self) -> None:
        """Request a sync. Nearly free while the thread is busy."""
        if self._is_idle:
            self._is_idle = False
            self._asked.put(True)
        elif not self._will_check:
            # The loop is awake and checks `_finished` before it sleeps. That saves the thread the
            # system call that wakes the loop, and the wait for the GIL after it.
            self._will_check = True
            self._loop.call_soon(self._complete_finished)

    def _complete_finished(self) -> None:
        """On the loop: complete what is finished."""
        self._will_check = False  # first: a sync that finishes after the check wakes the loop
        finished = self._finished
        try:
            while finished:
                self._complete(finished.popleft())
        finally:
            if finished:  # an answer failed: send the others
                self._loop.call_soon(self._complete_finished)

    def _work(self) -> None:
        while True:
            self._is_idle = True  # first: a request after the check below wakes it
            job = self._take()
            if job is None:
                if not self._asked.get():
                    return
                continue
            self._is_idle = False
            self._finished.append(self._sync(job))
            if not self._will_check:
                if self._loop.is_closed():
                    return
                self._loop.call_soon_threadsafe(self._complete_finished)
