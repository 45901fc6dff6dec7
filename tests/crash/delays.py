"""Delay levels on the simulated disk: the real store and the real schedule, every choice by a seed.

Lives as in `simulator.py`, with delayed messages, and with a clock that somebody sets. What must
hold after every end of a life, however often starts are cut off, once all time has passed:

- a message that was promised (its record was flushed) is there,
- each that is there is delivered once, or was before: no log has two copies of it,
- none is delivered before its time, by the time that has passed, unless the clock was set on.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from crash.ledger import ROOT, Broken
from crash.sim_disk import PowerLoss, SimDisk
from crash.simulator import Report, SimClock, sim_settings

from aerobee.broker.services.names_check import SCHEDULE_TOPIC
from aerobee.broker.services.put_hooks import PutHooks
from aerobee.broker.services.schedule import Schedule
from aerobee.broker.settings import Settings
from aerobee.broker.store.disk import make_folder
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.record import Message, decode_record

TOPIC = "Orders"
LEVELS = "1s 5s 2m"
DELAYS_MS = (1_000, 5_000, 120_000)
IMAGES_PER_CUT = 4
HOUR_MS = 3_600_000


class SetClock(SimClock):
    """`ms` is the time that passes; the time of day is set beside it."""

    def __init__(self, ms: int, set_by_ms: int) -> None:
        super().__init__()
        self.ms = ms
        self.set_by_ms = set_by_ms

    def now_ms(self) -> int:
        return self.ms + self.set_by_ms


@dataclass
class Sent:
    end: int  # of its record in the log
    due_ms: int  # by the time that passes


@dataclass
class Chain:
    """What one life leaves to the next."""

    settings: StoreSettings
    rng: random.Random
    disk: SimDisk = field(default_factory=SimDisk)
    now: int = 1_700_000_000_000
    set_by_ms: int = 0
    sent: dict[bytes, Sent] = field(default_factory=dict)
    promised: set[bytes] = field(default_factory=set)


class DelayLife:
    """One process: store and schedule."""

    def __init__(self, disk: SimDisk, chain: Chain) -> None:
        self.disk, self.chain, self.rng = disk, chain, chain.rng
        self.clock = SetClock(chain.now, chain.set_by_ms)
        settings = Settings(store_path_root_dir=ROOT, message_delay_level=LEVELS)
        self.store = MessageStore(chain.settings, clock=self.clock, disk=disk)
        self.store.load()
        self.schedule = Schedule(self.store, settings, self.clock, f"{ROOT}/config")
        self.schedule.load()
        self.hooks = PutHooks(settings, self.clock)
        self.seen = self.store.max_offset(TOPIC, 0)

    def work(self, steps: int) -> None:
        actions = (
            (self._send, 8),
            (self._send_plain, 3),
            (self._deliver, 8),
            (self._let_time_pass, 6),
            (self._flush, 4),
            (self.dispatch, 4),
            (self.save_progress, 2),
            (self._checkpoint, 2),
            (self._set_clock, 1),
        )
        calls = [action for action, weight in actions for _ in range(weight)]
        for _ in range(steps):
            self.disk.time_ms = self.clock.ms
            self.rng.choice(calls)()

    def _send(self) -> None:
        level = self.rng.randint(1, len(DELAYS_MS))
        body = f"{self.rng.getrandbits(64):016x}".encode() + bytes(self.rng.choice((0, 40, 400)))
        message = Message(TOPIC, 0, body, f"DELAY\x01{level}\x02")
        result = self.store.put([self.hooks.apply(message)])[0]
        if result.ok:
            due_ms = self.clock.ms + DELAYS_MS[level - 1]
            end = result.physical_offset + result.size
            self.chain.sent[body[:16]] = Sent(end, due_ms)

    def _send_plain(self) -> None:
        self.store.put([Message("Other", 0, bytes(self.rng.choice((10, 900))), "")])

    def _deliver(self) -> None:
        self.schedule.step(self.clock.now_ms())
        self.dispatch()
        for body in self.delivered(self.seen):
            self.seen += 1
            sent = self.chain.sent.get(body)
            if sent is not None and self.clock.ms < sent.due_ms:
                raise Broken(f"{body!r} came {sent.due_ms - self.clock.ms} ms before its time")

    def _let_time_pass(self) -> None:
        self.clock.ms += self.rng.choice((10, 700, 4_000, 60_000))

    def sync(self) -> None:
        if self.store.commit is not None:
            self.store.commit.step()
        self.store.flush.step()

    def _flush(self) -> None:
        self.sync()
        flushed = self.store.flushed_offset
        self.chain.promised |= {key for key, sent in self.chain.sent.items() if sent.end <= flushed}

    def dispatch(self) -> None:
        while self.store.reput.step():
            pass

    def save_progress(self) -> None:
        self.schedule.file.save()

    def _checkpoint(self) -> None:
        self.store.queue_flush.step(thorough=True)

    def _set_clock(self) -> None:
        """Set right, or wrong by an hour or by years; what waits may be due early then."""
        before = self.clock.set_by_ms
        self.clock.set_by_ms = self.rng.choice((0, 0, HOUR_MS, -HOUR_MS, 90_000 * HOUR_MS))
        if self.clock.set_by_ms > before:
            for sent in self.chain.sent.values():
                sent.due_ms = min(sent.due_ms, self.clock.ms)

    def close(self) -> None:
        self.store.close()
        self.schedule.save()
        self.chain.promised |= set(self.chain.sent)

    def delivered(self, start: int = 0) -> list[bytes]:
        return self._keys(TOPIC, 0, start)

    def _keys(self, topic: str, queue_id: int, start: int = 0) -> list[bytes]:
        found = []
        for at in range(start, self.store.max_offset(topic, queue_id)):
            entry = self.store.queue_entry(topic, queue_id, at)
            record = self.store.record_at(*entry[:2]) if entry else None
            if record is None:
                raise Broken(f"{topic} has no message at {at}")
            found.append(bytes(decode_record(record, check=True).body[:16]))
        return found

    def settle(self) -> None:
        """What the log has kept is promised, what it has not is not."""
        end = self.store.max_physical_offset
        self.chain.sent = {key: s for key, s in self.chain.sent.items() if s.end <= end}
        self.chain.promised = set(self.chain.sent)

    def check(self) -> None:
        """Let everything come, then count."""
        levels = range(len(DELAYS_MS))
        kept = {key for level in levels for key in self._keys(SCHEDULE_TOPIC, level)}
        if lost := self.chain.promised - kept:
            raise Broken(f"promised {min(lost)!r} is gone")
        for _ in range(40):
            self.clock.ms += 10_000
            while self.schedule.step(self.clock.now_ms()) == self.clock.now_ms():
                self.sync()
                self.dispatch()
            self.sync()
            self.dispatch()
        counts = Counter(self.delivered())
        for key in sorted(kept | counts.keys()):
            if counts[key] != 1:
                raise Broken(f"{key!r} came {counts[key]} times")


def run_delay_seed(seed: int, *, lives: int = 4) -> Report:
    """One chain of lives; Broken (with the seed in its text) when a promise is not kept."""
    report = Report()
    try:
        _run(random.Random(seed), lives, report)
    except AssertionError as error:
        where = f"delays, seed {seed}, image {report.images}, life {report.lives}"
        raise Broken(f"{where}: {error}") from error
    return report


def _run(rng: random.Random, lives: int, report: Report) -> None:
    settings = replace(sim_settings(rng), message_delay_level=LEVELS)
    chain = Chain(settings, rng)
    make_folder(chain.disk, f"{ROOT}/config")
    for _ in range(lives):
        report.lives += 1
        life = DelayLife(chain.disk, chain)
        life.settle()
        chain.disk.power_left = rng.randint(1, 150) if rng.random() < 0.7 else None
        try:
            life.work(rng.randint(10, 80))
            chain.disk.power_left = None
            if rng.random() < 0.2:
                life.close()
        except PowerLoss:
            chain.disk.power_left = None
        chain.now = life.clock.ms + rng.choice((0, 5, 10_000))
        chain.set_by_ms = life.clock.set_by_ms
        image = _check_images(chain, report)
        chain.disk = chain.disk.stop_process() if rng.random() < 0.4 else image


def _check_images(chain: Chain, report: Report) -> SimDisk:
    rng = chain.rng
    for number in range(IMAGES_PER_CUT):
        image = chain.disk.lose_power(rng) if number else chain.disk.copy().stop_process()
        for _ in range(rng.choice((0, 0, 1, 2))):
            image = _interrupt(image, chain, report)
        report.images += 1
        DelayLife(image, chain).check()
    return chain.disk.lose_power(rng)


def _interrupt(image: SimDisk, chain: Chain, report: Report) -> SimDisk:
    """A life that delivers for a while and ends."""
    rng = chain.rng
    image.power_left = rng.randint(0, 60)
    try:
        life = DelayLife(image, chain)
        for _ in range(rng.randint(0, 6)):
            life.clock.ms += rng.choice((10, 2_000, 60_000))
            life.schedule.step(life.clock.now_ms())
            rng.choice((life.sync, life.save_progress, life.dispatch))()
    except PowerLoss:
        pass
    image.power_left = None
    if rng.random() < 0.5:
        report.recovery_cuts += 1
        return image.lose_power(rng)
    report.start_kills += 1
    return image.stop_process()
