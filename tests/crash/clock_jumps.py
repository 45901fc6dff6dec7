"""A clock that is set again and again under a working broker: `python -m crash.clock_jumps N SEED`.

The time of day jumps by an hour or by ten years, forward and back, while clients of the SDK send,
consume, delay messages and set timers; files may expire at any hour, and now and then the broker is
stopped and started, whatever the clock says. What must hold:

- after each jump sends are answered and consumers get them, and a delay of a second is over soon;
- in the end everything that was acknowledged was consumed, delayed messages exactly once, and is
  still in the log: no file has expired by a wrong clock;
- queues have no gap, and the broker is still registered with its name service.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from crash.run import quiet
from peers.in_process import Client, send_ext
from services.services_world import SetClock
from waiting import until

from aerobee import ConsumerOptions
from aerobee.broker.store.retention import clean
from aerobee.protocol.files import properties
from aerobee.protocol.files.record import decode_records
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.testing import EmbeddedBroker

HOUR_MS: Final = 3_600_000
YEARS_MS: Final = 10 * 365 * 24 * HOUR_MS
FAR_MS: Final = 3 * YEARS_MS  # from the true time, at most
PATIENCE_S: Final = 60.0
RESTART_EVERY: Final = 10
SETTINGS: Final[dict[str, Any]] = {
    "mappedFileSizeCommitLog": 1 << 16,
    "deleteWhen": ";".join(str(hour) for hour in range(24)),
    "cleanResourceInterval": 100,
    "flushDiskType": "SYNC_FLUSH",  # what is not flushed does not expire
    "flushIntervalConsumeQueue": 100,
    "flushConsumeQueueThoroughInterval": 300,
    "flushDelayOffsetInterval": 200,
    "timerFlushIntervalMs": 100,
    "channelExpiredTimeout": 120_000,
    "scanNotActiveBrokerInterval": 500,
    "messageDelayLevel": "1s 5s",
}


class Run:
    def __init__(self, broker: EmbeddedBroker, clock: SetClock, seed: int) -> None:
        self.broker = broker
        self.clock = clock
        self.rng = random.Random(seed)
        self.sent: set[bytes] = set()
        self.delayed: set[bytes] = set()
        self.got: Counter[bytes] = Counter()
        self.problems: list[str] = []
        self.slowest = 0.0
        self.jumps = 0

    async def go(self, jumps: int) -> None:
        for number in range(jumps):
            self.jump()
            await self.round(number)
            if number % RESTART_EVERY == RESTART_EVERY - 1:
                await self.broker.restart()
            if self.problems:
                return
        # Set right, then a day later: everything scheduled for a time of day runs.
        for ahead_ms in (0, 24 * HOUR_MS, FAR_MS + 24 * HOUR_MS):
            self.clock.set_by_ms = ahead_ms
            await asyncio.sleep(3.0)  # expired files get removed
        await self.broker.restart()  # twice with a clock that is wrong from the start on
        await self.broker.restart()
        await asyncio.sleep(3.0)
        await self.wait_for(self.sent | self.delayed, "in the end")

    def jump(self) -> None:
        by_ms = self.rng.choice((HOUR_MS, -HOUR_MS, YEARS_MS, -YEARS_MS))
        if abs(self.clock.set_by_ms + by_ms) > FAR_MS:
            by_ms = -by_ms
        self.clock.set_by_ms += by_ms
        self.jumps += 1

    async def round(self, number: int) -> None:
        async with self.broker.connect(timeout=30) as mq:
            plain = {b"%d-%d %s" % (number, n, self.rng.randbytes(3500)) for n in range(12)}
            for body in plain:
                await mq.send("T", body)
            self.sent |= plain
            level, timer, later = (
                b"%d %s" % (number, name) for name in (b"level", b"timer", b"later")
            )
            await self.send_level(level)
            await mq.send("T", timer, delay=1.0)
            await mq.send("T", later, delay=self.rng.choice((5.0, 1800.0)))
            self.delayed |= {level, timer, later}
            await self.wait_for(plain | {level, timer}, f"jump {number}")

    async def send_level(self, body: bytes) -> None:
        client = await Client.connect(self.broker.app)
        text = properties.encode({"DELAY": "1", "UNIQ_KEY": body.decode()}).removesuffix("\x02")
        answer = await client.request(RequestCode.SEND_MESSAGE_V2, send_ext("T", i=text), body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await client.close()

    async def wait_for(self, bodies: set[bytes], when: str) -> None:
        began = time.monotonic()
        with suppress(AssertionError):
            await until(lambda: bodies <= self.got.keys(), PATIENCE_S)
        self.slowest = max(self.slowest, time.monotonic() - began)
        for body in sorted(bodies - self.got.keys())[:3]:
            self.problems.append(
                f"{when}, the clock is {self.clock.set_by_ms / HOUR_MS:+.0f} h: {body[:20]!r} does "
                f"not come"
            )

    async def consume(self) -> None:
        options = ConsumerOptions(commit_interval=0.2)
        async with (
            self.broker.connect() as mq,
            mq.consumer("T", group="g", options=options) as inbox,
        ):
            async for message in inbox:
                self.got[bytes(message.body)] += 1

    def check(self) -> None:
        app = self.broker.app
        store = app.broker.store
        if store.min_physical_offset:
            self.problems.append(f"the log begins at {store.min_physical_offset}: files are gone")
        stored: Counter[bytes] = Counter()
        for queue_id in store.queues().get("T", ()):
            for at in range(store.max_offset("T", queue_id)):
                entry = store.queue_entry("T", queue_id, at)
                record = store.record_at(entry[0]) if entry is not None else None
                stored.update(bytes(m.body) for m in decode_records(bytes(record or b"")))
        if lost := (self.sent | self.delayed) - stored.keys():
            self.problems.append(f"{len(lost)} are not in the log any more")
        self.problems += [
            f"{body[:20]!r} was delivered {stored[body]} times"
            for body in sorted(self.delayed)
            if stored[body] > 1
        ]


async def run(jumps: int, seed: int) -> Run:
    early = patch.object(clean, "FIRST_DELAY_S", 0.1)  # cleaning runs from the first jump on
    with tempfile.TemporaryDirectory() as folder, early:
        broker = EmbeddedBroker(Path(folder), **SETTINGS)
        clock = broker.clock = SetClock()  # type: ignore[assignment]
        async with broker:
            done = Run(broker, clock, seed)
            consuming = asyncio.create_task(done.consume())
            await done.go(jumps)
            done.check()
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
    return done


def main(arguments: Sequence[str]) -> int:
    jumps = int(arguments[0]) if arguments else 100
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    quiet()
    began = time.monotonic()
    done = asyncio.run(run(jumps, seed))
    for problem in done.problems:
        print(f"VIOLATION {problem}")
    print(
        f"{done.jumps} jumps of an hour or ten years, {len(done.sent)} sent and "
        f"{len(done.delayed)} delayed, all consumed; slowest after a jump {done.slowest:.1f} s; "
        f"violations: {len(done.problems)}; {time.monotonic() - began:.0f} s, seed {seed}"
    )
    return 1 if done.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
