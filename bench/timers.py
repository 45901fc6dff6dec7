"""A million pending timers: what setting one costs, what memory they take, what a tick costs.

    python -m bench.timers [count]

The store and the timer service are the broker's own; the benchmark sets their clock, so that no
waiting is measured. Memory is the process's resident memory without the pages of mapped files.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from aerobee.broker.base.clock import Clock
from aerobee.broker.daemon.store_settings import store_settings
from aerobee.broker.services.put_hooks import PutHooks
from aerobee.broker.services.timers.firing import Timers
from aerobee.broker.settings import Settings
from aerobee.broker.store.message_store import MessageStore
from aerobee.protocol.files.record import Message

START_MS = 1_800_000_000_000
SPREAD_S = 36 * 3600  # the timers' times: within a day and a half
BATCH = 1000
TICKS = 2000


class HandClock(Clock):
    at_ms = START_MS

    def now_ms(self) -> int:
        return self.at_ms


def anonymous_bytes() -> int:
    """Resident memory that is no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def dispatch(store: MessageStore) -> None:
    while store.reput.step():
        pass


def set_timers(store: MessageStore, hooks: PutHooks, timers: Timers, count: int) -> float:
    """Seconds that noting the timers took, without the sends."""
    chance = random.Random(1)
    noting = 0.0
    for first in range(0, count, BATCH):
        messages = []
        for number in range(first, min(first + BATCH, count)):
            at_ms = START_MS + chance.randint(60_000, SPREAD_S * 1000)
            text = f"TIMER_DELIVER_MS\x01{at_ms}\x02UNIQ_KEY\x01{number:032d}\x02"
            messages.append(hooks.apply(Message("T", 0, b"x" * 100, text)))
        store.put(messages)
        dispatch(store)
        started = time.perf_counter()
        while timers.step(START_MS) == START_MS:
            pass
        noting += time.perf_counter() - started
    return noting


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def run_ticks(
    store: MessageStore, timers: Timers, clock: HandClock
) -> tuple[list[float], list[tuple[float, int]]]:
    """Ticks of 100 ms: times of those in which nothing fired; times and counts of the others."""
    clock.at_ms += 60_000
    idle, busy = [], []
    for _ in range(TICKS):
        clock.at_ms += 100
        before = timers.pending
        cost = timed(lambda: timers.step(clock.at_ms))
        fired = before - timers.pending
        if fired:
            busy.append((cost, fired))
        else:
            idle.append(cost)
        dispatch(store)
    return sorted(idle), busy


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder:
        settings = Settings(store_path_root_dir=folder, broker_name="bench")
        clock = HandClock()
        store = MessageStore(store_settings(settings), clock=clock, ahead=False)
        store.load()
        timers = Timers(store, settings, clock, folder)
        timers.load()
        hooks = PutHooks(settings, clock)
        set_timers(store, hooks, timers, BATCH)  # warm
        small = anonymous_bytes()
        noting = set_timers(store, hooks, timers, count)
        large = anonymous_bytes()
        print(f"pending timers              {timers.pending:>12,}")
        print(f"noting one                  {noting / count * 1e6:>12.1f} us")
        print(f"memory, {BATCH:,} timers       {small / 2**20:>12.1f} MiB")
        print(f"memory, all of them         {large / 2**20:>12.1f} MiB")
        print(f"timer log                   {timers.log.end / 2**20:>12.1f} MiB of disk")
        idle, busy = run_ticks(store, timers, clock)
        fired = sum(count for _, count in busy)
        print(f"tick, nothing due: median   {idle[len(idle) // 2] * 1e6:>12.1f} us")
        print(f"tick, nothing due: p99      {idle[len(idle) * 99 // 100] * 1e6:>12.1f} us")
        print(f"fired in {TICKS:,} ticks        {fired:>12,}")
        print(
            f"firing one                  {sum(cost for cost, _ in busy) / fired * 1e6:>12.1f} us"
        )
        timers.close()
        started = time.perf_counter()
        again = Timers(store, settings, clock, folder)
        again.load()
        print(f"restart finds them in       {time.perf_counter() - started:>12.2f} s")
        assert again.pending == timers.pending
        again.close()
        store.close()


if __name__ == "__main__":
    main()
