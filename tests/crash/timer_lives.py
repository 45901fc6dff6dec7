"""Timers on the simulated disk: timer log, wheel, checkpoint and the keeper's journal, by a seed.

Lives as in `lives.py`. Files of the log are removed at any moment, so timers that wait in them are
stored again; far ones roll. What must hold once all time has passed:

- a timer that was promised (its record was flushed) is delivered once,
- no other is delivered twice: no log has two copies of it,
- none is delivered before its time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest.mock import patch

from crash.ledger import ROOT, Broken
from crash.lives import Chain, ServiceLife, run_lives
from crash.sim_disk import SimDisk
from crash.simulator import Report, sim_settings

from aerobee.broker.services.put_hooks import PutHooks
from aerobee.broker.services.timers import far as timer_far
from aerobee.broker.services.timers import firing as timers
from aerobee.broker.services.timers import wheel as timer_wheel
from aerobee.broker.services.timers.firing import Timers
from aerobee.broker.settings import Settings
from aerobee.protocol.files.record import Message

TOPIC = "Orders"
DELAYS_MS = (300, 2_500, 20_000, 60_000, 900_000)
WINDOW_S = 300  # timers farther ahead roll
SLOTS = 8192  # the wheel of two weeks would be most of the disk
REACH_S = 4096


@dataclass
class Sent:
    end: int  # of its record in the log
    due_ms: int


@dataclass
class TimerChain(Chain):
    timer_file: int = 4096
    sent: dict[bytes, Sent] = field(default_factory=dict)
    promised: set[bytes] = field(default_factory=set)
    read: list[bytes] = field(default_factory=list)  # what a consumer has read, by queue offset


class TimerLife(ServiceLife):
    """Store and timers."""

    actions: ClassVar = {
        "send": 8,
        "send_plain": 8,
        "fire": 8,
        "let_time_pass": 5,
        "flush": 5,
        "dispatch": 4,
        "save_point": 4,
        "checkpoint": 2,
        "clean": 6,
    }
    early: ClassVar = ("fire", "fire", "sync", "save_point", "clean")

    def __init__(self, disk: SimDisk, chain: TimerChain) -> None:
        super().__init__(disk, chain)
        self.chain = chain
        settings = Settings(
            store_path_root_dir=ROOT,
            mapped_file_size_timer_log=chain.timer_file,
            timer_roll_window_slot=WINDOW_S,
        )
        self.timers = Timers(self.store, settings, self.clock, ROOT)
        self.store.add_keeper(self.timers.keeper)
        self.timers.load()
        self.hooks = PutHooks(settings, self.clock)
        self.read = chain.read = chain.read[: self.store.max_offset(TOPIC, 0)]
        self.read += self.keys(len(self.read))

    def settle(self) -> None:
        end, chain = self.store.max_physical_offset, self.chain
        if lost := [key for key in chain.promised if chain.sent[key].end > end]:
            raise Broken(f"promised {min(lost)!r} is gone")
        chain.sent = {key: s for key, s in chain.sent.items() if s.end <= end}
        chain.promised = set(chain.sent)

    def send(self) -> None:
        for _ in range(self.rng.choice((1, 2, 6))):
            self._send_one()

    def _send_one(self) -> None:
        due_ms = self.clock.ms + self.rng.randint(1, self.rng.choice(DELAYS_MS))
        body = f"{self.rng.getrandbits(64):016x}".encode() + bytes(self.rng.choice((0, 40, 400)))
        text = f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01{body[:16].decode()}\x02"
        result = self.put(self.hooks.apply(Message(TOPIC, 0, body, text)))
        if result.ok:
            self.chain.sent[body[:16]] = Sent(result.physical_offset + result.size, due_ms)

    def fire(self) -> None:
        now_ms = self.clock.now_ms()
        for _ in range(1000):
            due_ms = self.timers.step(now_ms)
            self.dispatch()
            if due_ms is None or due_ms > now_ms:
                break
        else:
            raise Broken("timers that are due do not come to an end")
        self.follow()

    def follow(self) -> None:
        for key in self.keys(len(self.read)):
            self.read.append(key)
            sent = self.chain.sent.get(key)
            if sent is not None and self.clock.ms < sent.due_ms:
                raise Broken(f"{key!r} came {sent.due_ms - self.clock.ms} ms before its time")

    def keys(self, start: int) -> list[bytes]:
        return [bytes(message.body[:16]) for message in self.messages(TOPIC, 0, start)]

    def flush(self) -> None:
        self.sync()
        flushed, chain = self.store.flushed_offset, self.chain
        kept = {key for key, sent in chain.sent.items() if sent.end <= flushed}
        chain.promised = chain.promised | kept  # not in place: other images share the old set

    def save_point(self) -> None:
        self.timers.checkpoints.step()

    def clean(self) -> None:
        """Remove a file of the log, or come closer to it: all of them count as old. The queues of a
        file that is hours old have been synced long ago."""
        self.dispatch()
        self.flush()
        self.checkpoint()
        for _ in range(self.rng.choice((1, 3, 12))):
            self.dispatch()
            self.follow()
            self.store.clean.trigger()
            self.store.clean.step()
            self.rng.choice((self.flush, self.save_point, self.fire))()

    def close(self) -> None:
        self.timers.end()
        self.store.close()
        self.timers.save()
        self.chain.promised = set(self.chain.sent)

    def check(self) -> None:
        for _ in range(25):
            self.clock.ms += 40_000
            self.fire()
            self.sync()
        counts = Counter(self.read)
        for key in sorted(self.chain.promised | counts.keys()):
            if counts[key] != 1:
                kind = "promised " if key in self.chain.promised else ""
                raise Broken(f"{kind}{key!r} came {counts[key]} times")


@contextmanager
def small_wheel() -> Iterator[None]:
    places: tuple[tuple[Any, str, int], ...] = (
        (timer_wheel, "SLOTS", SLOTS),
        (timer_wheel, "REACH_S", REACH_S),
        (timers, "REACH_S", REACH_S),
        (timer_far, "REACH_S", REACH_S),
        (timer_far, "REACH_MS", REACH_S * 1000),
    )
    with ExitStack() as stack:
        for module, name, value in places:
            stack.enter_context(patch.object(module, name, value))
        yield


def run_timer_seed(seed: int, *, lives: int = 4) -> Report:
    """One chain of lives; Broken (with the seed in its text) when a promise is not kept."""
    rng = random.Random(seed)
    chain = TimerChain(sim_settings(rng), rng, timer_file=rng.choice((500, 1000, 4096)))
    chain.disk.time_ms = 0  # so that every file has expired
    with small_wheel():
        return run_lives("timers", seed, chain, TimerLife, lives)
