"""`aerobee broker` with a watch on its event loop: how long was the longest turn?

    python -m bench.watched_broker [--set key=value ...]

A timer of 1 ms notes how late it comes. Each line on stdin is answered by one on stdout: the
longest delay since the line before in ms, as `wall cpu`. The CPU time is that of the loop's thread
alone: neighbours on a busy machine lengthen the first figure, not the second.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.daemon.process import run_daemon
from aerobee.broker.settings import load_settings

_STEP_S = 0.001


class LoopWatch:
    """The longest time that the loop's thread took between two turns."""

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._wall_at = self._cpu_at = 0.0
        self._arm()

    def _arm(self) -> None:
        self._wall_at, self._cpu_at = time.perf_counter(), time.thread_time()
        self._timer = self._loop.call_later(_STEP_S, self._look)

    def _look(self) -> None:
        self.wall_s = max(self.wall_s, time.perf_counter() - self._wall_at - _STEP_S)
        self.cpu_s = max(self.cpu_s, time.thread_time() - self._cpu_at)
        self._arm()

    def take(self) -> tuple[float, float]:
        """Both figures since the last call, in ms."""
        taken = self.wall_s * 1000, self.cpu_s * 1000
        self.wall_s = self.cpu_s = 0.0
        return taken


class WatchedBroker(AppBroker):
    """A broker that says on stdout how long its loop was kept."""

    async def start(self) -> None:
        await super().start()
        self._watch = LoopWatch()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._tell)

    def _tell(self) -> None:
        if not sys.stdin.readline():
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            return
        wall, cpu = self._watch.take()
        print(f"{wall:.2f} {cpu:.2f}", flush=True)


if __name__ == "__main__":
    sets = [word for word in sys.argv[1:] if word != "--set"]
    sys.exit(run_daemon(WatchedBroker, partial(load_settings, None, sets)))
