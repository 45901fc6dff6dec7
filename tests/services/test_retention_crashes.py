"""Files are removed and the broker crashes at any moment: pending messages are delivered once."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from effort import examples
from services.services_world import World

from aerobee.broker.services.transactions.service import EndRequest
from aerobee.broker.store.results import PutResult

FILE_SIZE = 64 << 10
SECTOR = 512
TIMER_FILE = 16 << 10
HOUR_S = 3600


class Consumer:
    """Reads topic T as it grows; forgets what a power failure lost."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.read: list[bytes] = []

    def follow(self) -> None:
        del self.read[self._world.store.max_offset("T", 0) :]
        self.read += [bytes(each.body) for each in self._world.read("T", start=len(self.read))]


class Life:
    """A world with retention, whose disk keeps of the timer log only what was synced."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.world = World(
            root,
            log_file_size=FILE_SIZE,
            file_reserved_time=24,
            mapped_file_size_timer_log=TIMER_FILE,
        )
        self.chance = chance
        self.consumer = Consumer(self.world)
        self.accepted: dict[bytes, PutResult] = {}
        self.halves: set[bytes] = set()
        self._sent = 0
        self._synced: dict[str, bytes] = {}
        self._watch_syncs()

    def _watch_syncs(self) -> None:
        sync = self.world.timers.log.sync

        def watched() -> None:
            sync()
            self._synced = self._timer_log()

        self.world.timers.log.sync = watched  # type: ignore[method-assign]

    def _timer_log(self) -> dict[str, bytes]:
        folder = self.world.root / "timerlog"
        return (
            {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
        )

    # --- what happens

    def send(self) -> None:
        chance, world = self.chance, self.world
        self._sent += 1
        body = b"%d" % self._sent
        kind = chance.choice(["timer", "timer", "level", "half"])
        if kind == "timer":
            ahead_ms = chance.choice([500, 3_000, 60_000, 2 * HOUR_S * 1000])
            due_ms = world.clock.now_ms() + chance.randint(1, ahead_ms)
            result = world.send("T", body, TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY=body.hex())
        elif kind == "level":
            result = world.send("T", body, DELAY=chance.choice(["1", "5", "18"]))
        else:
            result = world.send("T", body, TRAN_MSG="true", PGROUP="g", UNIQ_KEY=body.hex())
            self.halves.add(body)
        self.accepted[body] = result

    def work(self) -> None:
        world = self.world
        steps: list[Callable[[], object]] = [
            self.send,
            self.send,
            lambda: world.send("filler", bytes(16 << 10)),
            lambda: world.advance(self.chance.choice([0.1, 1.1, 30])),
            world.run_schedule,
            world.run_timers,
            world.run_timers,
            world.store.flush.step,
            world.store.flush.step,
            lambda: world.store.queue_flush.step(thorough=True),
            lambda: world.store.queue_flush.step(thorough=True),
            world.timers.checkpoints.step,
            world.timers.checkpoints.step,
            world.schedule.file.save,
            self.clean,
            self.clean,
            self.clean,
        ]
        self.chance.choice(steps)()
        self.consumer.follow()

    def clean(self) -> None:
        self.world.store.clean.trigger()
        self.world.store.clean.step()

    # --- crashes

    def kill(self) -> None:
        self.world.reopen_after_kill()
        self._watch_syncs()

    def cut_power(self) -> None:
        world = self.world
        end = self.chance.choice(self._record_ends())
        world.kill()
        self._cut_log(end)
        for name, now in self._timer_log().items():
            self._tear(world.root / "timerlog" / name, self._synced.get(name, b""), now)
        world.open()
        self._watch_syncs()
        assert world.store.max_physical_offset == end
        for body in [body for body, put in self.accepted.items() if put.end_offset > end]:
            del self.accepted[body]
            self.halves.discard(body)

    def _record_ends(self) -> list[int]:
        store = self.world.store
        ends = [store.flushed_offset]
        while (record := store.record_at(ends[-1])) is not None:
            ends.append(ends[-1] + len(record))
        return ends

    def _cut_log(self, end: int) -> None:
        for path in sorted((self.world.root / "commitlog").glob("*")):
            start = int(path.name)
            if start <= end < start + FILE_SIZE:
                content = path.read_bytes()[: end - start]
                path.write_bytes(content + bytes(FILE_SIZE - len(content)))
            elif start > end:
                path.unlink()

    def _tear(self, path: Path, synced: bytes, now: bytes) -> None:
        """Of what was not synced, some sectors came to the disk."""
        synced = synced.ljust(len(now), b"\0")
        parts = []
        for at in range(0, len(now), SECTOR):
            chosen = now if self.chance.random() < 0.5 else synced
            parts.append(chosen[at : at + SECTOR])
        path.write_bytes(b"".join(parts))

    # --- the end

    def finish(self) -> None:
        world = self.world
        for _ in range(3 * 60 + 5):
            world.advance(60)
            world.run_schedule()
            world.run_timers()
            self.consumer.follow()
        assert world.transactions.prepare()
        for body in self.halves:
            put = self.accepted[body]
            request = EndRequest("g", put.queue_offset, put.physical_offset, True, body.hex())
            assert world.transactions.end(request).ok
        world.dispatch()
        self.consumer.follow()
        assert Counter(self.consumer.read) == Counter(list(self.accepted))
        assert world.timers.pending == 0 and world.transactions.open_count == 0


@pytest.mark.parametrize("how", ["kill", "power"])
@pytest.mark.parametrize("seed", range(examples(4, share=2)))
def test_what_waits_comes_once(tmp_path: Path, how: str, seed: int) -> None:
    chance = random.Random(f"{how} {seed}")
    life = Life(tmp_path / "store", chance)
    for _ in range(40):
        for _ in range(chance.randint(5, 60)):
            life.work()
        if chance.random() < 0.4:
            (life.kill if how == "kill" else life.cut_power)()
            life.consumer.follow()
    assert life.world.store.min_physical_offset > 0 and len(life.accepted) > 50
    life.finish()
    life.world.close_quietly()
