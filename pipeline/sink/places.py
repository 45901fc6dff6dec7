"""Where rows go: a key always to the same queue, rows without a key to one queue after another."""

import zlib
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.wire import BrokerQueues, Cluster
from aerobee.protocol.files.java_hash import java_hash
from aerobee.protocol.names import TEMPLATE_TOPIC

PERM_WRITE: Final = 2
BROKERS_CHOICE: Final = -1  # as a queue: the exactly-once sink's home decides

Place = tuple[str, int]  # a broker's address (the name of a home) and a queue there


@dataclass(frozen=True, slots=True)
class Target:
    """What the rows of a pile have in common: the topic, and what decides about the queue."""

    topic: str
    queue_id: int | None = None  # by the column partition: that queue, of any broker
    lane: int | None = None  # by the key: an index into all writable queues

    @property
    def is_ordered(self) -> bool:
        return self.queue_id is not None or self.lane is not None


def writable_route(cluster: Cluster, topic: str) -> list[BrokerQueues]:
    """Where to write the topic; for a new one where brokers would make it (4 queues at most)."""
    route = cluster.route(topic)
    if route is not None:
        return route
    template = cluster.route(TEMPLATE_TOPIC)
    if template is None:
        raise OptionError(
            f"topic {topic} does not exist, and no broker creates topics automatically "
            "(autoCreateTopicEnable=false); create it first"
        )
    return [
        replace(one, read_queues=min(4, one.read_queues), write_queues=min(4, one.write_queues))
        for one in template
    ]


class Places:
    """The writable queues of topics: of all brokers, or of one that takes everything."""

    def __init__(self, cluster: Cluster, first_turn: int = 0, home: str | None = None) -> None:
        self._cluster = cluster
        self._first_turn = first_turn  # tasks of a few rows each must not all begin with queue 0
        self._home = home  # the one broker's name
        self._known: dict[str, list[Place]] = {}
        self._turns: dict[str, int] = {}

    def of(self, topic: str) -> list[Place]:
        if topic not in self._known:
            self._known[topic] = [
                (share.address, queue_id)
                for share in writable_route(self._cluster, topic)
                if share.perm & PERM_WRITE and self._home in (None, share.broker)
                for queue_id in range(share.write_queues)
            ]
        return self._known[topic]

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)

    def count(self, topic: str) -> int:
        return len(self.of(topic))

    def choose(self, target: Target) -> Place:
        places = self.of(target.topic)
        if self._home is not None and target.queue_id is not None:
            return self._home, target.queue_id  # the home itself knows which queues it has
        if self._home is not None and not places:
            return self._home, BROKERS_CHOICE
        if target.queue_id is not None:
            places = [place for place in places if place[1] == target.queue_id]
        if not places:
            where = "no queue" if target.queue_id is None else f"no queue {target.queue_id}"
            raise OptionError(f"topic {target.topic} has {where} that can be written")
        if target.lane is not None:
            return places[target.lane % len(places)]
        turn = self._turns.get(target.topic, self._first_turn)
        self._turns[target.topic] = turn + 1
        return places[turn % len(places)]


def first_turn(query: str, batch: int, partition: int) -> int:
    """Another one for each batch, task and query, and the same when a batch is run again."""
    return zlib.crc32(query.encode()) + batch + partition


def key_hashes(keys: Any) -> Any:
    """Java's String.hashCode of each key without its sign, as SelectMessageQueueByHash takes it;
    -1 where there is no key."""
    keys = keys.fill_null(b"") if keys.null_count else keys
    lengths = pc.binary_length(keys).to_numpy(zero_copy_only=False)
    _valid, offsets, data = keys.buffers()
    starts = np.frombuffer(offsets, np.int32)[keys.offset :][: len(keys)]
    units = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    values = np.zeros(len(keys), np.uint32)
    for at in range(int(lengths.max()) if len(keys) else 0):
        rows = np.nonzero(lengths > at)[0]
        values[rows] = values[rows] * np.uint32(31) + units[starts[rows] + at]
    hashes = np.abs(values.view(np.int32).astype(np.int64))
    if len(units) and int(units.max()) > 127:  # Java hashes UTF-16 units, not bytes
        for row, key in enumerate(keys.to_pylist()):
            if not key.isascii():
                hashes[row] = abs(java_hash(key.decode(errors="replace")))
    hashes[lengths == 0] = -1
    return hashes
