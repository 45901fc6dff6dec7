"""Sends messages in batches over TCP, a few batches in flight; every batch is stored or resent."""

import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from aerobee.pipeline.encode import Group
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.queues import shares
from aerobee.pipeline.wire import BrokerError, BrokerQueues, Cluster, Link, Unreachable
from aerobee.protocol.codecs import ProtocolError
from aerobee.protocol.codes import RequestCode, ResponseCode

DEPTH: Final = 4
ROWS_MAX: Final = 4096
TEMPLATE_TOPIC: Final = "TBW102"
_STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    )
)
_WORTH_A_RETRY: Final = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.FLOW_CONTROL,
    )
)


@dataclass(slots=True)
class Pile:
    """Rows that go to the same place, not yet sent."""

    topic: str
    queue_id: int | None
    parts: list[bytes] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def body(self) -> bytes:
        return b"".join(self.parts)


@dataclass(slots=True)
class Flight:
    """A sent batch whose answer is awaited."""

    pile: Pile
    link: Link
    opaque: int


def writable_route(cluster: Cluster, topic: str) -> list[BrokerQueues]:
    """Where to write the topic; for a new one where brokers would make it (4 queues at most)."""
    route = cluster.route(topic)
    if route is not None:
        return route
    template = cluster.route(TEMPLATE_TOPIC)
    if template is None:
        raise OptionError(
            f"topic {topic} does not exist, and no broker makes topics by itself "
            "(autoCreateTopicEnable=false); create it first"
        )
    return [
        BrokerQueues(
            one.broker, one.address, min(4, one.read_queues), min(4, one.write_queues), one.perm
        )
        for one in template
    ]


class Piles:
    """Gathers encoded rows by topic and queue and hands out full piles."""

    def __init__(self, batch_bytes: int, send: Callable[[Pile], None]) -> None:
        self._batch_bytes = batch_bytes
        self._send = send
        self._piles: dict[tuple[str, int | None], Pile] = {}

    def add(self, group: Group) -> None:
        key = group.topic, group.queue_id
        at, count = 0, len(group)
        while at < count:
            pile = self._piles.setdefault(key, Pile(*key))
            upto = int(group.offsets[at]) + self._batch_bytes - pile.size
            end = int(np.searchsorted(group.offsets, upto, side="right")) - 1
            if end <= at and pile.rows:  # not even one more fits
                self._send(self._piles.pop(key))
                continue
            end = min(max(end, at + 1), at + ROWS_MAX - pile.rows, count)
            part = group.slice(at, end)
            pile.parts.append(part)
            pile.rows += end - at
            pile.size += len(part)
            at = end
            if at < count or pile.rows >= ROWS_MAX:
                self._send(self._piles.pop(key))

    def finish(self) -> None:
        piles, self._piles = self._piles, {}
        for pile in piles.values():
            self._send(pile)


class BatchSender:
    """`add` rows, then `finish`: on return all are stored (some perhaps twice, after a retry)."""

    def __init__(self, cluster: Cluster, group: str, batch_bytes: int) -> None:
        self.cluster = cluster
        self.group = group
        self.sent = 0
        self._piles = Piles(batch_bytes, self._send)
        self._routes: dict[str, list[tuple[BrokerQueues, int]]] = {}
        self._turns = itertools.count()
        self._in_flight: deque[Flight] = deque()

    def add(self, group: Group) -> None:
        self._piles.add(group)

    def finish(self) -> int:
        """How many rows were stored."""
        self._piles.finish()
        while self._in_flight:
            self._settle(self._in_flight.popleft())
        return self.sent

    def _send(self, pile: Pile) -> None:
        while len(self._in_flight) >= DEPTH:
            self._settle(self._in_flight.popleft())
        share, queue_id = self._place(pile)
        try:
            self._in_flight.append(self._ask(pile, share.address, queue_id))
        except (OSError, ProtocolError):
            self.cluster.drop(share.address)
            self._again(pile, 0)

    def _place(self, pile: Pile) -> tuple[BrokerQueues, int]:
        if pile.topic not in self._routes:
            self._routes[pile.topic] = shares(writable_route(self.cluster, pile.topic))
        places = self._routes[pile.topic]
        if pile.queue_id is not None:
            places = [place for place in places if place[1] == pile.queue_id]
        if not places:
            where = "no queue" if pile.queue_id is None else f"no queue {pile.queue_id}"
            raise OptionError(f"topic {pile.topic} has {where} that can be written")
        return places[next(self._turns) % len(places)]

    def _ask(self, pile: Pile, address: str, queue_id: int) -> Flight:
        ext = {
            "a": self.group,
            "b": pile.topic,
            "c": TEMPLATE_TOPIC,
            "d": "4",
            "e": str(queue_id),
            "f": "0",
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": "",
            "j": "0",
            "k": "false",
            "m": "true",
        }
        link = self.cluster.link(address)
        return Flight(pile, link, link.ask(RequestCode.SEND_BATCH_MESSAGE, ext, pile.body()))

    def _settle(self, flight: Flight, tries: int = 0) -> None:
        try:
            answer = flight.link.take(flight.opaque)
        except (OSError, ProtocolError):
            flight.link.close()
            if self.cluster.is_current(flight.link):
                self.cluster.drop(flight.link.address)
            self._again(flight.pile, tries)
            return
        if answer.code in _STORED:
            self.sent += flight.pile.rows
        elif answer.code in _WORTH_A_RETRY and tries < self.cluster.access.retries:
            self._again(flight.pile, tries)
        else:
            what = f"writing {flight.pile.rows} messages to {flight.pile.topic}"
            raise BrokerError(what, flight.link.address, answer.code, answer.remark)

    def _again(self, pile: Pile, tries: int) -> None:
        """Sends once more, to the next place."""
        if tries >= self.cluster.access.retries:
            raise Unreachable(f"writing to {pile.topic} failed {tries + 1} times; giving up")
        time.sleep(self.cluster.access.retry_interval)
        self._routes.pop(pile.topic, None)
        share, queue_id = self._place(pile)
        try:
            flight = self._ask(pile, share.address, queue_id)
        except (OSError, ProtocolError):
            self.cluster.drop(share.address)
            self._again(pile, tries + 1)
        else:
            self._settle(flight, tries + 1)
