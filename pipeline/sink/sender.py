"""Sends messages in batches over TCP, a few batches in flight; every batch is stored or resent."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

import numpy as np

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.outage import Outage
from aerobee.pipeline.sink.encode import Group
from aerobee.pipeline.sink.places import Places, Target
from aerobee.pipeline.wire import TRANSIENT, Answer, BrokerError, Cluster, Link
from aerobee.protocol.names import TEMPLATE_TOPIC
from aerobee.protocol.wire.codecs import ProtocolError
from aerobee.protocol.wire.codes import RequestCode, ResponseCode

DEPTH: Final = 4
ROWS_MAX: Final = 4096
_STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    )
)
# Refusals that may pass within seconds: a route that is not known everywhere yet.
_WORTH_A_TRY: Final = frozenset((ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST))


@dataclass(slots=True)
class Pile:
    """Rows that go to the same place, not yet sent."""

    target: Target
    parts: list[memoryview] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    def body(self) -> bytes | memoryview:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


@dataclass(slots=True)
class Flight:
    """A sent batch whose answer is awaited."""

    pile: Pile
    link: Link
    answer: Answer


class Piles:
    """Gathers encoded rows by their targets and hands out full piles."""

    def __init__(self, batch_bytes: int, send: Callable[[Pile], None]) -> None:
        self._batch_bytes = batch_bytes
        self._send = send
        self._piles: dict[Target, Pile] = {}

    def add(self, groups: Iterable[Group]) -> None:
        """Full piles go in turns: two that follow each other to one queue would wait in between."""
        for turn in zip_longest(*[list(self._full(group)) for group in groups]):
            for pile in turn:
                if pile is not None:
                    self._send(pile)

    def _full(self, group: Group) -> Iterator[Pile]:
        key = group.target
        at, count = 0, len(group)
        while at < count:
            pile = self._piles.setdefault(key, Pile(key))
            upto = int(group.offsets[at]) + self._batch_bytes - pile.size
            end = int(np.searchsorted(group.offsets, upto, side="right")) - 1
            if end <= at and pile.rows:  # not even one more fits
                yield self._piles.pop(key)
                continue
            end = min(max(end, at + 1), at + ROWS_MAX - pile.rows, count)
            part = group.slice(at, end)
            pile.parts.append(part)
            pile.rows += end - at
            pile.size += len(part)
            at = end
            if at < count or pile.rows >= ROWS_MAX:
                yield self._piles.pop(key)

    def finish(self) -> None:
        piles, self._piles = self._piles, {}
        for pile in piles.values():
            self._send(pile)


class BatchSender:
    """`add` rows, then `finish`: on return all are stored (some perhaps twice, after a retry)."""

    def __init__(self, cluster: Cluster, group: str, batch_bytes: int, first_turn: int = 0) -> None:
        self.cluster = cluster
        self.group = group
        self.sent = 0
        self._piles = Piles(batch_bytes, self._send)
        self.places = Places(cluster, first_turn)
        self._in_flight: deque[Flight] = deque()

    def add(self, groups: Iterable[Group]) -> None:
        self._piles.add(groups)

    def finish(self) -> int:
        """How many rows were stored."""
        self._piles.finish()
        while self._in_flight:
            self._settle(self._in_flight.popleft())
        return self.sent

    def _send(self, pile: Pile) -> None:
        while self._in_flight and (len(self._in_flight) >= DEPTH or self._would_overtake(pile)):
            self._settle(self._in_flight.popleft())
        address, queue_id = self.places.choose(pile.target)
        try:
            self._in_flight.append(self._ask(pile, address, queue_id))
        except (OSError, ProtocolError):
            self.cluster.drop(address)
            self._settle(self._send_again(pile, self.cluster.outage()))

    def _would_overtake(self, pile: Pile) -> bool:
        """Whether earlier rows of the same keys, or of the same queue, may still be sent again."""
        target = pile.target
        return target.is_ordered and any(one.pile.target == target for one in self._in_flight)

    def _ask(self, pile: Pile, address: str, queue_id: int) -> Flight:
        ext = {
            "a": self.group,
            "b": pile.target.topic,
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

    def _settle(self, flight: Flight) -> None:
        """Waits until the flight's rows are stored, sending them again as often as it takes."""
        outage = self.cluster.outage()
        refusals = Outage(self.cluster.access.first_patience, self.cluster.access.retry_interval)
        what = f"writing {flight.pile.rows} messages to {flight.pile.target.topic}"
        while True:
            address = flight.link.address
            try:
                answer = flight.link.take(flight.answer)
            except (OSError, ProtocolError) as error:
                flight.link.close()
                if self.cluster.is_current(flight.link):
                    self.cluster.drop(address)
                outage.wait(f"{what}: {address}", error)
                flight = self._send_again(flight.pile, outage)
                continue
            if answer.code in _STORED:
                self.sent += flight.pile.rows
                self.cluster.note_wait(address, outage.over(f"{what}: {address}"))
                return
            refused = BrokerError(what, address, answer.code, answer.remark)
            if answer.code not in TRANSIENT | _WORTH_A_TRY:
                raise refused
            (outage if answer.code in TRANSIENT else refusals).wait(what, refused)
            flight = self._send_again(flight.pile, outage)

    def _send_again(self, pile: Pile, outage: Outage) -> Flight:
        """Sent once more, to the next place that takes it."""
        while True:
            self.places.forget(pile.target.topic)
            address = "the name server"
            try:
                address, queue_id = self.places.choose(pile.target)
                return self._ask(pile, address, queue_id)
            except (OSError, ProtocolError, OptionError) as error:  # the route may be back soon
                self.cluster.drop(address)
                outage.wait(f"writing to {pile.target.topic}: {address}", error)
