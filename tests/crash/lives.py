"""Chains of lives of a store with a service on it, on the simulated disk, every choice by a seed.

In each life random work is done, and it ends by a power cut, a SIGKILL or a clean stop. Then
several images are made of the same moment, all but one of them as a power cut leaves it, one as a
kill does. Each is started, sometimes after other lives that ended early, and checked. The last
image is where the next life goes on. What must hold is in the `check` of each kind of life.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from crash.ledger import ROOT, Broken
from crash.sim_disk import PowerLoss, SimDisk
from crash.simulator import Report, SimClock

from aerobee.broker.store.files.disk import make_folder
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.results import PutResult
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files.record import Message, StoredMessage, decode_record

IMAGES_PER_CUT = 4


class SetClock(SimClock):
    """`ms` is the time that passes; the time of day is set beside it."""

    def __init__(self, ms: int, set_by_ms: int) -> None:
        super().__init__()
        self.ms = ms
        self.set_by_ms = set_by_ms

    def now_ms(self) -> int:
        return self.ms + self.set_by_ms


@dataclass
class Chain:
    """What one life leaves to the next; subclasses add what was sent and promised."""

    settings: StoreSettings
    rng: random.Random
    disk: SimDisk = field(default_factory=SimDisk)
    now: int = 1_700_000_000_000
    set_by_ms: int = 0


ChainT = TypeVar("ChainT", bound=Chain)


class ServiceLife:
    """One process: a store and, by a subclass, a service on it."""

    # What `work` picks from, with its weight; and what a life does that is to end early.
    actions: ClassVar[dict[str, int]]
    early: ClassVar[tuple[str, ...]]

    def __init__(self, disk: SimDisk, chain: Chain) -> None:
        self.disk, self.rng = disk, chain.rng
        self.clock = SetClock(chain.now, chain.set_by_ms)
        self.store = MessageStore(chain.settings, clock=self.clock, disk=disk)
        self.store.load()

    def settle(self) -> None:
        """Continue from what a power cut left: what the log has kept counts as promised."""
        raise NotImplementedError

    def check(self) -> None:
        """Deliver everything pending, then count; Broken when a promise is not kept."""
        raise NotImplementedError

    def close(self) -> None:
        """A clean stop."""
        raise NotImplementedError

    def work(self, steps: int) -> None:
        names = [name for name, weight in self.actions.items() for _ in range(weight)]
        for _ in range(steps):
            getattr(self, self.rng.choice(names))()

    # --- what most lives do

    def put(self, message: Message) -> PutResult:
        return self.store.put([message])[0]

    def send_plain(self) -> None:
        self.put(Message("Other", 0, bytes(self.rng.choice((10, 900))), ""))

    def let_time_pass(self) -> None:
        self.clock.ms += self.rng.choice((10, 700, 4_000, 60_000))

    def sync(self) -> None:
        if self.store.commit is not None:
            self.store.commit.step()
        self.store.flush.step()

    def dispatch(self) -> None:
        while self.store.reput.step():
            pass

    def checkpoint(self) -> None:
        self.store.queue_flush.step(thorough=True)

    def messages(self, topic: str, queue_id: int, start: int = 0) -> list[StoredMessage]:
        found = []
        for at in range(start, self.store.max_offset(topic, queue_id)):
            entry = self.store.queue_entry(topic, queue_id, at)
            record = self.store.record_at(*entry[:2]) if entry else None
            if record is None:
                raise Broken(f"{topic} has no message at {at}")
            found.append(decode_record(record, check=True))
        return found


def run_lives(
    name: str, seed: int, chain: ChainT, life: Callable[[SimDisk, ChainT], ServiceLife], lives: int
) -> Report:
    """One chain; Broken (with the seed in its text) when a promise is not kept."""
    report = Report()
    make_folder(chain.disk, f"{ROOT}/config")
    try:
        for _ in range(lives):
            report.lives += 1
            _live(chain, life(chain.disk, chain))
            image = _check_images(chain, life, report)
            chain.disk = chain.disk.stop_process() if chain.rng.random() < 0.4 else image
    except AssertionError as error:
        where = f"{name}, seed {seed}, image {report.images}, life {report.lives}"
        raise Broken(f"{where}: {error}") from error
    return report


def _live(chain: Chain, life: ServiceLife) -> None:
    rng = chain.rng
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


def _check_images(
    chain: ChainT, life: Callable[[SimDisk, ChainT], ServiceLife], report: Report
) -> SimDisk:
    rng = chain.rng
    for number in range(IMAGES_PER_CUT):
        own = replace(chain)  # each image has its own chain
        image = chain.disk.lose_power(rng) if number else chain.disk.copy().stop_process()
        for _ in range(rng.choice((0, 0, 1, 2))):
            image = _interrupt(image, own, life, report)
        report.images += 1
        life(image, own).check()
    return chain.disk.lose_power(rng)


def _interrupt(
    image: SimDisk,
    chain: ChainT,
    make_life: Callable[[SimDisk, ChainT], ServiceLife],
    report: Report,
) -> SimDisk:
    """A life that lasts for a while and ends."""
    rng = chain.rng
    image.power_left = rng.randint(0, 60)
    try:
        life = make_life(image, chain)
        life.settle()
        for _ in range(rng.randint(0, 6)):
            life.clock.ms = chain.now = chain.now + rng.choice((10, 2_000, 60_000))
            getattr(life, rng.choice(life.early))()
    except PowerLoss:
        pass
    image.power_left = None
    if rng.random() < 0.5:
        report.recovery_cuts += 1
        return image.lose_power(rng)
    report.start_kills += 1
    return image.stop_process()
