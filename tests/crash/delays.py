"""Delay levels on the simulated disk: the real store and the real schedule, every choice by a seed.

Lives as in `lives.py`, with delayed messages, and with a clock that somebody sets. What must hold
after every end of a life, however often starts are cut off, once all time has passed:

- a message that was promised (its record was flushed) is there,
- each that is there is delivered once, or was before: no log has two copies of it,
- none is delivered before its time, by the time that has passed, unless the clock was set on.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import ClassVar

from crash.ledger import ROOT, Broken
from crash.lives import Chain, ServiceLife, run_lives
from crash.sim_disk import SimDisk
from crash.simulator import Report, sim_settings

from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.put_hooks import PutHooks
from aerobee.broker.settings import Settings
from aerobee.protocol.files.record import Message
from aerobee.protocol.names import SCHEDULE_TOPIC

TOPIC = "Orders"
LEVELS = "1s 5s 2m"
DELAYS_MS = (1_000, 5_000, 120_000)
HOUR_MS = 3_600_000


@dataclass
class Sent:
    end: int  # of its record in the log
    due_ms: int  # by the time that passes


@dataclass
class DelayChain(Chain):
    sent: dict[bytes, Sent] = field(default_factory=dict)
    promised: set[bytes] = field(default_factory=set)


class DelayLife(ServiceLife):
    """Store and schedule."""

    actions: ClassVar = {
        "send": 8,
        "send_plain": 3,
        "deliver": 8,
        "let_time_pass": 6,
        "flush": 4,
        "dispatch": 4,
        "save_progress": 2,
        "checkpoint": 2,
        "set_clock": 1,
    }
    early: ClassVar = ("deliver_sync", "deliver_save", "deliver_dispatch")

    def __init__(self, disk: SimDisk, chain: DelayChain) -> None:
        super().__init__(disk, chain)
        self.chain = chain
        settings = Settings(store_path_root_dir=ROOT, message_delay_level=LEVELS)
        self.schedule = Schedule(self.store, settings, self.clock, f"{ROOT}/config")
        self.schedule.load()
        self.hooks = PutHooks(settings, self.clock)
        self.seen = self.store.max_offset(TOPIC, 0)

    def work(self, steps: int) -> None:
        self.disk.time_ms = self.clock.ms
        super().work(steps)

    def send(self) -> None:
        level = self.rng.randint(1, len(DELAYS_MS))
        body = f"{self.rng.getrandbits(64):016x}".encode() + bytes(self.rng.choice((0, 40, 400)))
        result = self.put(self.hooks.apply(Message(TOPIC, 0, body, f"DELAY\x01{level}\x02")))
        if result.ok:
            due_ms = self.clock.ms + DELAYS_MS[level - 1]
            end = result.physical_offset + result.size
            self.chain.sent[body[:16]] = Sent(end, due_ms)

    def deliver(self) -> None:
        self.schedule.step(self.clock.now_ms())
        self.dispatch()
        for body in self.delivered(self.seen):
            self.seen += 1
            sent = self.chain.sent.get(body)
            if sent is not None and self.clock.ms < sent.due_ms:
                raise Broken(f"{body!r} came {sent.due_ms - self.clock.ms} ms before its time")

    def deliver_sync(self) -> None:
        self.schedule.step(self.clock.now_ms())
        self.sync()

    def deliver_save(self) -> None:
        self.schedule.step(self.clock.now_ms())
        self.save_progress()

    def deliver_dispatch(self) -> None:
        self.schedule.step(self.clock.now_ms())
        self.dispatch()

    def flush(self) -> None:
        self.sync()
        flushed, chain = self.store.flushed_offset, self.chain
        chain.promised |= {key for key, sent in chain.sent.items() if sent.end <= flushed}

    def save_progress(self) -> None:
        self.schedule.file.save()

    def set_clock(self) -> None:
        """Set right, or wrong by an hour or by years; pending messages may then be due early."""
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
        return [bytes(each.body[:16]) for each in self.messages(topic, queue_id, start)]

    def settle(self) -> None:
        """Exactly what the log has kept counts as promised from now on."""
        end, chain = self.store.max_physical_offset, self.chain
        if lost := [key for key in chain.promised if chain.sent[key].end > end]:
            raise Broken(f"promised {min(lost)!r} is gone")
        chain.sent = {key: s for key, s in chain.sent.items() if s.end <= end}
        chain.promised = set(chain.sent)

    def check(self) -> None:
        """Deliver everything pending, then count."""
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
    rng = random.Random(seed)
    settings = replace(sim_settings(rng), message_delay_level=LEVELS)
    return run_lives("delays", seed, DelayChain(settings, rng), DelayLife, lives)
