"""The power-loss simulator: the real store code on a simulated disk, every choice by one seed.

A run is a chain of lives. In each one a store is opened, random work is done, and the life ends by
a power cut, a SIGKILL or a clean stop. After a cut several images are made of the same moment; each
is recovered, some of them losing power again in the middle of it, and checked; the last one is
where the next life goes on. What must hold is in `Ledger.check`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from crash.sim_disk import PowerLoss, SimDisk
from waiting import finish

from aerobee.broker.clock import Clock
from aerobee.broker.store.disk import make_folder
from aerobee.broker.store.json_file import load_json, save_json
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.results import PutStatus, ReadStatus
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.record import Message, StoredMessage, decode_records

ROOT = "/store"
OFFSETS = f"{ROOT}/config/consumerOffset.json"
TOPICS = ("Orders", "Payments")
QUEUES = 2
IMAGES_PER_CUT = 6


class Broken(AssertionError):
    """A promise of the store that an image does not keep."""


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
    """Small files, so that every kind of edge is met often."""
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
    )


@dataclass
class Sent:
    """A message the store took, and where it said it put it."""

    key: str
    topic: str
    queue_id: int
    body: bytes
    queue_offset: int
    physical_offset: int
    end: int


@dataclass
class Ledger:
    """What was sent over all lives, and what of it the store has promised to keep."""

    sent: dict[str, Sent] = field(default_factory=dict)
    attempted: dict[str, Message] = field(default_factory=dict)  # may be there without an answer
    promised: set[str] = field(default_factory=set)
    offset_saved: int = 0  # the consumer offset whose save returned
    offset_asked: int = 0  # the newest that was ever tried

    def check(self, store: MessageStore, disk: SimDisk) -> None:
        """Everything that must hold after a recovery."""
        found = self._check_queues(store)
        lowest = store.min_physical_offset
        for key in sorted(self.promised):
            sent = self.sent[key]
            if sent.physical_offset >= lowest and key not in found:
                raise Broken(f"promised {key} at {sent.physical_offset} is gone")
        self._check_index(store, found)
        self._check_offsets(disk)

    def _check_queues(self, store: MessageStore) -> dict[str, StoredMessage]:
        found: dict[str, StoredMessage] = {}
        for topic, queue_ids in store.queues().items():
            for queue_id in queue_ids:
                for message in read_all(store, topic, queue_id):
                    self._check_message(message)
                    found[message.body[:16].decode()] = message
        if store.reput.dispatched_offset != store.max_physical_offset:
            raise Broken(
                f"the queues end at {store.reput.dispatched_offset}, the log at "
                f"{store.max_physical_offset}"
            )
        return found

    def _check_message(self, message: StoredMessage) -> None:
        key = message.body[:16].decode(errors="replace")
        attempt, sent = self.attempted.get(key), self.sent.get(key)
        if attempt is None:
            raise Broken(f"{message.topic}/{message.queue_id}: {key!r} was never sent")
        if message.body != attempt.body or message.topic != attempt.topic:
            raise Broken(f"{key}: its content differs from what was sent")
        if message.properties.partition("__CRC32#")[0] != attempt.properties:
            raise Broken(f"{key}: its properties differ from what was sent")
        if sent is None:  # the power went before the answer came
            return
        place = (message.queue_id, message.queue_offset, message.physical_offset)
        if place != (sent.queue_id, sent.queue_offset, sent.physical_offset):
            raise Broken(f"{key}: it was stored elsewhere than the store said: {place}, {sent}")

    def _check_index(self, store: MessageStore, found: dict[str, StoredMessage]) -> None:
        for key, message in found.items():
            hits = finish(store.search(message.topic, key, 32, 0, 2**62))
            offsets = [hit.physical_offset for view in hits.views for hit in decode_records(view)]
            if offsets != [message.physical_offset]:
                raise Broken(f"{key}: the index finds {offsets}, not {message.physical_offset}")

    def _check_offsets(self, disk: SimDisk) -> None:
        table = load_json(OFFSETS, disk=disk)
        value = table["offset"] if table else 0
        if not self.offset_saved <= value <= self.offset_asked:
            raise Broken(f"consumer offset {value}; saved was {self.offset_saved}")

    def settle(self, store: MessageStore, disk: SimDisk) -> None:
        """After a recovery all that is there is promised, and what is not there is not."""
        end = store.max_physical_offset
        self.sent = {key: sent for key, sent in self.sent.items() if sent.end <= end}
        self.promised = set(self.sent)
        table = load_json(OFFSETS, disk=disk)
        self.offset_saved = self.offset_asked = table["offset"] if table else 0


def read_all(store: MessageStore, topic: str, queue_id: int) -> list[StoredMessage]:
    """Every message of a queue; its offsets must be gapless."""
    offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    messages: list[StoredMessage] = []
    while offset < end:
        result = store.read_queue(topic, queue_id, offset, 32, max_bytes=1 << 20)
        where = f"{topic}/{queue_id} at {offset} of {end}"
        if result.status is not ReadStatus.FOUND:
            raise Broken(f"{where}: {result.status.name}")
        batch = [message for view in result.views for message in decode_records(bytes(view))]
        result.release()
        for message in batch:
            if (message.topic, message.queue_id, message.queue_offset) != (topic, queue_id, offset):
                raise Broken(f"{where}: finds {message.topic}/{message.queue_id} {message!r}")
            offset += 1
        messages += batch
    return messages


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
        self.store.add_arrival_listener(self._on_arrival)
        self._numbers = 0

    def _on_arrival(self, arrivals: list[object]) -> None:
        if self.store.sync_flush:  # what a consumer has seen must stay
            for arrival in arrivals:
                offset = arrival.physical_offset  # type: ignore[attr-defined]
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
        )
        calls = [action for action, weight in actions for _ in range(weight)]
        for _ in range(steps):
            self.disk.time_ms = self.clock.ms
            self.rng.choice(calls)()

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
    recovery_cuts: int = 0


def run_seed(seed: int, *, lives: int = 3) -> Report:
    """One chain of lives; Broken (with the seed in its text) when a promise is not kept."""
    report = Report()
    try:
        _run(random.Random(seed), lives, report)
    except (Broken, AssertionError) as error:
        raise Broken(f"seed {seed}, image {report.images}, life {report.lives}: {error}") from error
    return report


def _run(rng: random.Random, lives: int, report: Report) -> None:
    settings = sim_settings(rng)
    disk = SimDisk()
    make_folder(disk, f"{ROOT}/config")
    ledger = Ledger()
    now = 1_700_000_000_000
    for _ in range(lives):
        report.lives += 1
        life = Life(disk, ledger, settings, rng, now)
        ledger.settle(life.store, disk)
        if rng.random() < 0.15:
            disk.failing_syncs = {disk.syncs + rng.randint(1, 12)}
        disk.power_left = rng.randint(1, 120) if rng.random() < 0.8 else None
        try:
            life.work(rng.randint(5, 60))
            disk.power_left = None
            if rng.random() < 0.4:
                life.close()
        except PowerLoss:
            pass
        now = life.clock.ms + rng.choice((0, 5, 10_000))
        image = _next_disk(disk, ledger, settings, rng, now, report)
        # After a SIGKILL the page cache lives on: the next life sees what no disk has yet.
        disk = disk.stop_process() if rng.random() < 0.3 else image


def _next_disk(
    disk: SimDisk,
    ledger: Ledger,
    settings: StoreSettings,
    rng: random.Random,
    now: int,
    report: Report,
) -> SimDisk:
    """Recover and check several images of this moment; the disk to go on with."""
    for _ in range(IMAGES_PER_CUT):
        image = disk.lose_power(rng)
        if rng.random() < 0.3:
            image = _cut_recovery(image, ledger, settings, rng, now, report)
        report.images += 1
        _recover_and_check(image, ledger, settings, rng, now)
    return disk.lose_power(rng)


def _cut_recovery(
    image: SimDisk,
    ledger: Ledger,
    settings: StoreSettings,
    rng: random.Random,
    now: int,
    report: Report,
) -> SimDisk:
    """Lose power once more, in the middle of the recovery."""
    image.power_left = rng.randint(0, 25)
    try:
        Life(image, ledger, settings, rng, now)
    except PowerLoss:
        report.recovery_cuts += 1
    image.power_left = None
    return image.lose_power(rng)


def _recover_and_check(
    image: SimDisk, ledger: Ledger, settings: StoreSettings, rng: random.Random, now: int
) -> None:
    life = Life(image, ledger, settings, rng, now)
    ledger.check(life.store, image)
