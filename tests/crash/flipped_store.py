"""A store folder with some of everything for `bit_flips`, and all that a start makes of one."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from peers.in_process import SMALL
from services.services_world import HandClock

from aerobee.broker.daemon.roles import Roles
from aerobee.broker.daemon.service_life import ServiceLife
from aerobee.broker.daemon.wiring import make_broker
from aerobee.broker.ha.epochs import Epochs
from aerobee.broker.ha.role import Role
from aerobee.broker.handlers.context import Broker
from aerobee.broker.services.batch_ledger import BatchLedger
from aerobee.broker.services.groups.config import GroupConfig
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.settings import Settings
from aerobee.protocol.files import properties
from aerobee.protocol.files.epoch_file import Epoch
from aerobee.protocol.files.record import Message, StoredMessage, decode_records
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

STOPPED: Final = "stopped"
TOPICS: Final = ("Orders", "Payments")
QUEUES: Final = 2
MESSAGES: Final = 48
LATER: Final = "Later"  # what timers and delay levels deliver
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
SETTINGS: Final[dict[str, Any]] = SMALL | {
    "mapped_file_size_commit_log": 8192,
    "mapped_file_size_consume_queue": 20 * 40,
    "mapped_file_size_timer_log": 4096,
    "max_hash_slot_num": 50,
    "max_index_num": 50,
    "message_delay_level": "1s 10s 2m",
    "flush_disk_type": "SYNC_FLUSH",
}
Place = tuple[str, int, int]


class Served(NamedTuple):
    """What a reader gets of a message."""

    topic: str
    body: bytes
    properties: str
    store_timestamp: int
    physical_offset: int

    @property
    def key(self) -> str:
        return properties.get(self.properties, "KEYS") or ""


@dataclass
class Observed:
    """All that a start has made of a folder."""

    messages: dict[Place, Served] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)  # places where a reader's check failed
    delivered: Counter[bytes] = field(default_factory=Counter)  # by timers and delay levels
    early: set[bytes] = field(default_factory=set)
    state: dict[str, Any] = field(default_factory=dict)
    keys: Sequence[tuple[str, str]] = ()


def open_broker(root: Path) -> tuple[Broker, HandClock, Roles]:
    """Loaded as `aerobee broker` loads it; no coroutine runs."""
    clock = HandClock()
    settings = Settings(**SETTINGS, store_path_root_dir=str(root))
    broker = make_broker(settings, clock)
    roles = Roles(settings, broker.store.disk)
    roles.choose()
    life = ServiceLife(broker)
    life.load(lambda *_: None, lambda: roles.opened(broker.store, None))
    return broker, clock, roles


def settle(broker: Broker) -> None:
    store = broker.store
    store.flush.step()
    while store.reput.step():
        pass


# --- making one


def make_folder(root: Path, how: str, rng: random.Random) -> None:
    """Write it; `how` it ended."""
    live = root.with_name(f"{root.name}-live")
    broker, clock, roles = open_broker(live)
    _configure(broker)
    for number in range(MESSAGES):
        _send(broker, clock, rng, number)
        clock.at_ms += rng.choice((0, 3, 700))
        if number == MESSAGES * 2 // 3:
            settle(broker)
            broker.store.queue_flush.step(thorough=True)
            _deliver(broker, clock)
            broker.schedule.file.save()
            broker.timers.checkpoints.step()
    settle(broker)
    _remember(broker, roles)
    if how == STOPPED:
        broker.timers.end()
        broker.store.close()
        broker.schedule.save()
        broker.timers.save()
        for table in (broker.topics, broker.groups, broker.offsets, broker.name_service.kv):
            table.file.stop()
    shutil.copytree(live, root)
    shutil.rmtree(live)


def _configure(broker: Broker) -> None:
    for name in (*TOPICS, LATER):
        broker.topics.put(TopicConfig(name, QUEUES, QUEUES))
    for name in ("billing", "mail"):
        broker.groups.put(GroupConfig(name))
    broker.name_service.kv.put("ORDER", "Orders", "broker-a:2")


def _send(broker: Broker, clock: HandClock, rng: random.Random, number: int) -> None:
    key = f"{rng.getrandbits(64):016x}"
    body = key.encode() + b"." * rng.choice((0, 200, 900))
    text = f"KEYS\x01{key}\x02UNIQ_KEY\x01{key[::-1]}\x02TAGS\x01T{number % 3}\x02"
    topic = LATER
    if number % 6 == 0:
        text += f"TIMER_DELIVER_MS\x01{clock.now_ms() + rng.randint(5_000, HOUR_MS)}\x02"
    elif number % 6 == 1:
        text += f"DELAY\x01{rng.randint(1, 3)}\x02"
    elif number % 15 == 5:
        text += "TRAN_MSG\x01true\x02PGROUP\x01g\x02"
    else:
        topic = rng.choice(TOPICS)
    message = Message(topic, rng.randrange(QUEUES), body, text)
    [result] = broker.store.put([broker.put_hooks.apply(message)])
    assert result.ok, result.reason


def _deliver(broker: Broker, clock: HandClock) -> int | None:
    """Deliver what is due now; returns when more is due."""
    later: list[int] = []
    for step in (broker.schedule.step, broker.timers.step):
        for _ in range(200):
            due_ms = step(clock.now_ms())
            settle(broker)
            if due_ms is None or due_ms > clock.now_ms():
                break
        later += [] if due_ms is None else [due_ms]
    return min(later, default=None)


def _remember(broker: Broker, roles: Roles) -> None:
    broker.store.queue_flush.step(thorough=True)
    for group, topic in (("billing", "Orders"), ("mail", "Payments")):
        for queue_id in range(QUEUES):
            end = broker.store.max_offset(topic, queue_id)
            broker.offsets.commit(group, topic, queue_id, end // 2)
    broker.offsets.file.step()
    broker.offsets.commit("billing", "Payments", 0, 1)
    broker.offsets.file.step()  # to the journal
    ledger: BatchLedger = broker.batch_ledger
    ledger.book.take_over([{"query": "q", "batch": 7, "committedAt": 5, "committing": False}], 0)
    asyncio.run(ledger.book.save())
    third = broker.store.max_physical_offset // 3
    roles.epoch_file.save(Epochs([Epoch(1, 0), Epoch(4, third)]))
    roles._role_file.save(Role("ASYNC_MASTER", "ASYNC_MASTER", 4))


# --- reading one


def observe(root: Path, keys: Sequence[tuple[str, str]] = ()) -> Observed:
    """`keys`: to query; by default some of the messages found."""
    broker, clock, roles = open_broker(root)
    found = Observed()
    try:
        settle(broker)
        _read_all(broker, found, (*TOPICS, LATER, SCHEDULE_TOPIC, TIMER_TOPIC))
        found.state = dict(_state(broker, roles))
        found.keys = keys or [(m.topic, m.key) for m in found.messages.values() if m.key][::3]
        found.state["by key"] = {key: _by_key(broker, *key, found) for key in found.keys}
        _let_all_come(broker, clock, found)
    finally:
        broker.store.close()
        broker.timers.close()
    return found


def _read_all(broker: Broker, found: Observed, topics: tuple[str, ...]) -> None:
    store = broker.store
    queues = store.queues()
    for topic in topics:
        for queue_id in queues.get(topic, ()):
            at, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            while at < end:
                at = _pull(broker, found, topic, queue_id, at)


def _pull(broker: Broker, found: Observed, topic: str, queue_id: int, at: int) -> int:
    """Some messages, as an SDK client pulls them: one by one when a batch cannot be decoded.
    Returns the next offset."""
    for count in (8, 1):
        data, following = _read(broker, topic, queue_id, at, count)
        try:
            messages = decode_records(data)
        except CorruptRecord as error:
            problem = str(error)
            continue
        for message in messages:
            _note(found, (topic, queue_id, message.queue_offset), message)
        if not data:
            found.unread.append(f"{topic} {queue_id} {at}: nothing is found")
        return following
    found.unread.append(f"{topic} {queue_id} {at}: {problem}")
    return following


def _read(broker: Broker, topic: str, queue_id: int, at: int, count: int) -> tuple[bytes, int]:
    store = broker.store
    queue = store.queue_table.get(topic, queue_id)
    plain = None if queue is None else store.read_plain(queue, at, count, 1 << 20)
    if plain is not None:
        return b"".join(plain[3]), at + plain[5]
    result = store.read_queue(topic, queue_id, at, count, max_bytes=1 << 20)
    data = b"".join(result.views)
    result.release()
    return data, max(result.next_offset, at + 1)


def _note(found: Observed, place: Place, message: StoredMessage) -> None:
    found.messages[place] = Served(
        message.topic,
        bytes(message.body),
        message.properties,
        message.store_timestamp,
        message.physical_offset,
    )


def _state(broker: Broker, roles: Roles) -> Iterator[tuple[str, Any]]:
    store = broker.store
    yield "topics", broker.topics.table_json()["topicConfigTable"]
    yield "groups", broker.groups.table_json()["subscriptionGroupTable"]
    yield "offsets", broker.offsets.table_json()["offsetTable"]
    yield "key-values", broker.name_service.kv.namespace("ORDER")
    yield "ledger", broker.batch_ledger.book.entries()
    yield "epochs", roles.epochs.entries
    yield "role", (roles._settings.broker_role, roles._role_file.saved)
    yield "open transactions", broker.transactions.open_count
    yield "pending timers", broker.timers.pending
    yield (
        "ends",
        {
            (topic, queue_id): (
                store.min_offset(topic, queue_id),
                store.max_offset(topic, queue_id),
            )
            for topic in TOPICS
            for queue_id in range(QUEUES)
        },
    )
    yield (
        "by time",
        [
            store.offset_by_time("Orders", 0, HandClock().at_ms + ms)
            for ms in range(0, MESSAGES * 230, 500)
        ],
    )


def _by_key(broker: Broker, topic: str, key: str, found: Observed) -> int:
    """How many messages a query finds; they are served, too."""
    search = broker.store.search(topic, key, 32, 0, 2**62)
    while True:
        try:
            next(search)
        except StopIteration as end:
            views = end.value.views
            break
    for view in views:
        try:
            for message in decode_records(bytes(view)):
                _note(found, (topic, message.queue_id, message.queue_offset), message)
        except CorruptRecord as error:
            found.unread.append(f"{key}: {error}")
    return len(views)


def _let_all_come(broker: Broker, clock: HandClock, found: Observed) -> None:
    """Timers and delays, whenever the services say that some are due, to the minute."""
    before = _ends(broker)
    due = _due(broker)
    over_ms = clock.at_ms + 70 * MINUTE_MS
    due_ms: int | None = clock.at_ms
    while clock.at_ms < over_ms:
        following_ms = over_ms if due_ms is None else max(clock.at_ms + MINUTE_MS, due_ms)
        clock.at_ms = min(over_ms, following_ms)
        due_ms = _deliver(broker, clock)
        after = _ends(broker)
        for body in _bodies(broker, before, after):
            found.delivered[body] += 1
            if clock.at_ms < due.get(body, 0):
                found.early.add(body)
        before = after


def _ends(broker: Broker) -> dict[int, int]:
    return {queue_id: broker.store.max_offset(LATER, queue_id) for queue_id in range(QUEUES)}


def _bodies(broker: Broker, begin: dict[int, int], end: dict[int, int]) -> Iterator[bytes]:
    store = broker.store
    for queue_id, at in begin.items():
        for queue_offset in range(at, end[queue_id]):
            entry = store.queue_entry(LATER, queue_id, queue_offset)
            record = store.record_at(*entry[:2]) if entry else None
            if record is not None:
                yield from (bytes(message.body) for message in decode_records(bytes(record)))


def _due(broker: Broker) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    store = broker.store
    for at in range(store.min_offset(TIMER_TOPIC, 0), store.max_offset(TIMER_TOPIC, 0)):
        entry = store.queue_entry(TIMER_TOPIC, 0, at)
        record = store.record_at(*entry[:2]) if entry else None
        try:
            for message in decode_records(bytes(record or b"")):
                found[bytes(message.body)] = int(message.property("TIMER_DELIVER_MS") or 0)
        except CorruptRecord:
            continue
    return found
