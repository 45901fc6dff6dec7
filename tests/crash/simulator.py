"""The power-loss simulator: the real store code on a simulated disk, every choice by one seed.

A run is a chain of lives. In each one a store is opened, random work is done, and the life ends by
a power cut, a SIGKILL or a clean stop. Then several images are made of the same moment, all but one
of them as a power cut leaves it, one as a kill does. Each is recovered and checked; some of the
starts are cut off or killed themselves, once or several times, before one comes to its end. The
last image is where the next life goes on. What must hold is in `Ledger.check` (`ledger.py`).

`run_every_kill` ends a start at each of its disk calls in turn.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from crash.ledger import OFFSETS, ROOT, Broken, Ledger, Sent
from crash.sim_disk import PowerLoss, SimDisk

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.config_files.json_file import save_json
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.files.abort_file import AbortFile
from aerobee.broker.store.files.disk import make_folder
from aerobee.broker.store.log.prewrite import Prewriter
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.refusals import Cause
from aerobee.broker.store.results import Arrival, PutStatus
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files.record import Message

TOPICS = ("Orders", "Payments")
QUEUES = 2
IMAGES_PER_CUT = 6
CALLS_OF_A_START = 40  # disk calls among which the end of a start is picked


class SimClock(Clock):
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("the simulation calls steps, it never sleeps")


def sim_settings(rng: random.Random) -> StoreSettings:
    """Small files, so that boundaries are hit often."""
    return StoreSettings(
        store_path_root_dir=ROOT,
        mapped_file_size_commit_log=rng.choice((8192, 16384, 32768)),
        mapped_file_size_consume_queue=20 * rng.choice((16, 64)),
        max_hash_slot_num=rng.choice((10, 50)),
        max_index_num=rng.choice((40, 200)),
        flush_disk_type=rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
        transient_store_pool_enable=rng.random() < 0.25,
        transient_store_pool_size=5,
        disk_guard_enable=False,
        # A separate generator, so that seeds known to find something still do.
        write_without_mmap=random.Random(rng.getstate()[1][0]).random() < 0.5,
    )


class InPlace(Executor):
    """Runs a thread's work inline."""

    def submit(self, call: Any, /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args))
        except OSError as error:
            future.set_exception(error)
        return future


class Life:
    """One process: from opening the store to its end."""

    def __init__(
        self, disk: SimDisk, ledger: Ledger, settings: StoreSettings, rng: random.Random, ms: int
    ) -> None:
        self.disk = disk
        self.ledger = ledger
        self.rng = rng
        self.clock = SimClock()
        self.clock.ms = ms
        self.store = MessageStore(settings, clock=self.clock, disk=disk)
        self.store.load()
        self.store.commit_log.prepare_first_file()  # the last life's is written through its map
        self._prewriter = Prewriter(
            self.store.commit_log.files, ready=not settings.write_without_mmap
        )
        if rng.random() < 0.5:
            self.store.queue_table.first_files.start(InPlace())
        self.store.add_arrival_listener(self._on_arrival)
        self._numbers = 0

    def _on_arrival(self, arrivals: list[Arrival]) -> None:
        if self.store.sync_flush:  # what a consumer has read must not be lost
            for arrival in arrivals:
                offset = arrival.physical_offset
                for sent in self.ledger.sent.values():
                    if sent.physical_offset == offset:
                        self.ledger.promised.add(sent.key)

    def work(self, steps: int) -> None:
        actions = (
            (self._put, 10),
            (self._put_batch, 2),
            (self._flush, 6),
            (self._commit, 4),
            (self._dispatch, 6),
            (self._flush_queues, 3),
            (self._checkpoint, 2),
            (self._save_offset, 2),
            (self._let_time_pass, 2),
            (self._clean, 1),
            (self._prepare, 1),
        )
        calls = [action for action, weight in actions for _ in range(weight)]
        for _ in range(steps):
            self.disk.time_ms = self.clock.ms
            self.rng.choice(calls)()

    @property
    def trusts_the_cache_wrongly(self) -> bool:
        """Whether it ended between a failed sync and the note of that for the next start, which
        cannot know then that the page cache is no proof (docs/durability.md)."""
        failed = Cause.SYNC_FAILED in self.store.refusals
        return failed and not AbortFile(self.disk, self.store.settings.layout).says_sync_failed

    def close(self) -> None:
        """A clean stop: all that was put is on disk then."""
        self.store.close()
        if not (self.store.flush.failed or self.store.queue_flush.failed):
            self.ledger.promised |= set(self.ledger.sent)

    def _message(self) -> Message:
        self._numbers += 1
        key = f"{self.rng.getrandbits(64):016x}"
        body = key.encode() + bytes(
            self.rng.choice(b"abcdefgh") for _ in range(self.rng.choice((0, 3, 40, 400, 900)))
        )
        topic, queue_id = self.rng.choice(TOPICS), self.rng.randrange(QUEUES)
        message = Message(topic, queue_id, body, f"KEYS\x01{key}\x02TAGS\x01t{len(body) % 3}\x02")
        self.ledger.attempted[key] = message
        return message

    def _put(self) -> None:
        messages = [self._message() for _ in range(self.rng.randint(1, 6))]
        results = self.store.put(messages)
        for message, result in zip(messages, results, strict=True):
            if result.ok:
                self._took(message, result.queue_offset, result.physical_offset, result.size)

    def _put_batch(self) -> None:
        first = self._message()
        messages = [first]
        for _ in range(self.rng.randint(0, 5)):
            other = self._message()
            other.topic, other.queue_id = first.topic, first.queue_id
            messages.append(other)
        result = self.store.put_batch(messages)
        if result.ok:
            assert result.physical_offsets is not None
            ends = [*result.physical_offsets[1:], result.end_offset]
            for number, message in enumerate(messages):
                start = result.physical_offsets[number]
                self._took(message, result.queue_offset + number, start, ends[number] - start)

    def _took(self, message: Message, queue_offset: int, physical_offset: int, size: int) -> None:
        body = bytes(message.body)
        key = body[:16].decode()
        end = physical_offset + size
        self.ledger.sent[key] = Sent(
            key, message.topic, message.queue_id, body, queue_offset, physical_offset, end
        )
        if self.store.sync_flush:
            self.store.when_durable(end, lambda status: self._answered(key, status))

    def _answered(self, key: str, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            self.ledger.promised.add(key)

    def _flush(self) -> None:
        if self.store.sync_flush:
            self._prewriter.step()
        self.store.flush.step()
        self._promise_flushed()

    def _promise_flushed(self) -> None:
        flushed = self.store.flushed_offset
        for sent in self.ledger.sent.values():
            if sent.end <= flushed:
                self.ledger.promised.add(sent.key)

    def _commit(self) -> None:
        if self.store.commit is not None:
            self.store.commit.step()

    def _dispatch(self) -> None:
        self.store.reput.step()

    def _prepare(self) -> None:
        """As before a first send to a new queue, which may never follow."""
        self.store.prepare_queue(self.rng.choice(TOPICS), self.rng.randrange(QUEUES + 1))

    def _flush_queues(self) -> None:
        self.store.queue_flush.step(thorough=False)

    def _checkpoint(self) -> None:
        self.store.queue_flush.step(thorough=True)

    def _save_offset(self) -> None:
        value = self.ledger.offset_asked + 1
        self.ledger.offset_asked = value
        save_json(OFFSETS, {"offset": value, "pad": "x" * self.rng.randint(0, 900)}, disk=self.disk)
        self.ledger.offset_saved = value

    def _let_time_pass(self) -> None:
        self.clock.ms += self.rng.choice((1, 10, 500, 4000))

    def _clean(self) -> None:
        if self.rng.random() < 0.2:
            self.clock.ms += 80 * 3_600_000
            self.store.clean_expired()


@dataclass
class Report:
    images: int = 0
    lives: int = 0
    recovery_cuts: int = 0  # starts that a power cut ended
    start_kills: int = 0  # starts that a kill ended

    def add(self, other: Report) -> None:
        self.images += other.images
        self.lives += other.lives
        self.recovery_cuts += other.recovery_cuts
        self.start_kills += other.start_kills


def run_seed(seed: int, *, lives: int = 3) -> Report:
    """One chain of lives; Broken (with the seed in its text) when a promise is not kept."""
    report = Report()
    with _named(seed, report):
        _run(random.Random(seed), lives, report)
    return report


def run_every_kill(seed: int) -> Report:
    """One life, then a start that ends at each of its disk calls in turn, by a cut and by a kill;
    the next one must come to its end and keep every promise."""
    report = Report(lives=1)
    rng = random.Random(seed)
    with _named(seed, report):
        start = _begin(rng)
        life = Life(start.disk, start.ledger, start.settings, rng, start.now)
        _live(life, start.disk, rng, clean=0.2)
        start.now = life.clock.ms
        killed = start.disk.copy().stop_process()
        origin = killed if rng.random() < 0.5 else start.disk.lose_power(rng)
        for calls in itertools.count():
            image = origin.copy()
            if not _is_ended(image, start, calls):
                return report
            for after in (image.lose_power(rng), image.copy().stop_process()):
                report.images += 1
                _recover_and_check(after, start)
            report.recovery_cuts += 1
            report.start_kills += 1
    return report


@contextmanager
def _named(seed: int, report: Report) -> Iterator[None]:
    try:
        yield
    except (AssertionError, StoreError, OSError) as error:
        where = f"seed {seed}, image {report.images}, life {report.lives}"
        raise Broken(f"{where}: {type(error).__name__}: {error}") from error


@dataclass
class _Chain:
    """What one life leaves to the next."""

    settings: StoreSettings
    rng: random.Random
    disk: SimDisk = field(default_factory=SimDisk)
    ledger: Ledger = field(default_factory=Ledger)
    now: int = 1_700_000_000_000


def _begin(rng: random.Random) -> _Chain:
    chain = _Chain(sim_settings(rng), rng)
    make_folder(chain.disk, f"{ROOT}/config")
    return chain


def _run(rng: random.Random, lives: int, report: Report) -> None:
    chain = _begin(rng)
    for _ in range(lives):
        report.lives += 1
        life = Life(chain.disk, chain.ledger, chain.settings, rng, chain.now)
        chain.ledger.settle(life.store, chain.disk)
        _live(life, chain.disk, rng, clean=0.4)
        chain.now = life.clock.ms + rng.choice((0, 5, 10_000))
        only_cuts = life.trusts_the_cache_wrongly
        image = _check_images(chain, report, only_cuts=only_cuts)
        # After a SIGKILL the page cache lives on: the next life sees what no disk has yet.
        killed = rng.random() < 0.3 and not only_cuts
        chain.disk = chain.disk.stop_process() if killed else image


def _live(life: Life, disk: SimDisk, rng: random.Random, *, clean: float) -> None:
    """Work until the power goes or the work is done; then, sometimes, a clean stop."""
    if rng.random() < 0.15:
        disk.failing_syncs = {disk.syncs + rng.randint(1, 12)}
    disk.power_left = rng.randint(1, 150) if rng.random() < 0.8 else None
    try:
        life.work(rng.randint(5, 60))
        disk.power_left = None
        if rng.random() < clean:
            life.close()
    except PowerLoss:
        disk.power_left = None


def _check_images(chain: _Chain, report: Report, *, only_cuts: bool) -> SimDisk:
    """Recover and check several images of this moment; the disk to continue with."""
    disk, rng = chain.disk, chain.rng
    for number in range(IMAGES_PER_CUT):
        cut = number > 0 or only_cuts
        image = disk.lose_power(rng) if cut else disk.copy().stop_process()
        if rng.random() < 0.4:
            image = _interrupt_starts(image, chain, report)
        report.images += 1
        _recover_and_check(image, chain)
    return disk.lose_power(rng)


def _interrupt_starts(image: SimDisk, chain: _Chain, report: Report) -> SimDisk:
    """Starts that are cut off; the disk after them."""
    rng = chain.rng
    for _ in range(rng.choice((1, 1, 2, 3))):
        _is_ended(image, chain, rng.randint(0, CALLS_OF_A_START))
        if rng.random() < 0.5:
            image = image.lose_power(rng)
            report.recovery_cuts += 1
        else:
            image = image.stop_process()
            report.start_kills += 1
    return image


def _is_ended(image: SimDisk, chain: _Chain, calls: int) -> bool:
    """Start and end after so many disk calls; False when the start was over before."""
    image.power_left = calls
    try:
        Life(image, chain.ledger, chain.settings, chain.rng, chain.now)
    except PowerLoss:
        return True
    finally:
        image.power_left = None
    return False


def _recover_and_check(image: SimDisk, chain: _Chain) -> None:
    life = Life(image, chain.ledger, chain.settings, chain.rng, chain.now)
    chain.ledger.check(life.store, image)
