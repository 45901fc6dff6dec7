"""The brokers that keep ledgers of the exactly-once sink, by name: their masters may change between
two requests.

A query's batches are committed by one broker, its home. Every ledger that may be asked for the
query is told which one that is, so that none takes over while the home is missing.
"""

import logging
import zlib
from dataclasses import dataclass
from typing import Final

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.outage import Unreachable
from aerobee.pipeline.wire import Answer, BrokerError, Cluster, Link, checked
from aerobee.protocol.names import TEMPLATE_TOPIC
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.sink_codes import SINK_HOME, SINK_STATE

log = logging.getLogger("aerobee.pipeline")

PERM_WRITE: Final = 2


@dataclass(frozen=True, slots=True)
class State:
    """What one ledger knows of a query."""

    batch: int  # the newest that was committed there; -1: none
    home: str | None  # the broker that commits its batches


@dataclass(slots=True)
class Asked:
    """A request whose answer is awaited."""

    what: str
    code: int
    ext: dict[str, str]
    body: bytes | memoryview
    link: Link | None = None
    answer: Answer | None = None


class Home:
    """A broker by name; requests go to the current address of its master."""

    def __init__(self, cluster: Cluster, name: str, address: str, topic: str | None = None) -> None:
        self.name = name
        self.cluster = cluster
        self.address = address
        self._topic = topic  # whose route has the address; without one the list of brokers

    def request(
        self, what: str, code: int, ext: dict[str, str], body: bytes | memoryview = b""
    ) -> Command:
        return self.take(self.ask(what, code, ext, body))

    def ask(
        self, what: str, code: int, ext: dict[str, str], body: bytes | memoryview = b""
    ) -> Asked:
        """Sent now, if the master can be reached now."""
        asked = Asked(what, code, ext, body)
        try:
            asked.link = self.cluster.link(self.address)
            asked.answer = asked.link.ask(code, dict(ext), body)
        except OSError:
            self.cluster.drop(self.address)
        return asked

    def take(self, asked: Asked) -> Command:
        """The answer; the request is repeated to the current master until there is one."""

        def attempt(link: Link) -> Command:
            answer, asked.answer = asked.answer, None
            if answer is not None and asked.link is link:
                return checked(link.take(answer), asked.what, link.address)
            command = link.request(asked.code, dict(asked.ext), asked.body)
            return checked(command, asked.what, link.address)

        return self.cluster.retrying(asked.what, (self.address,), attempt, self._moved)

    def _moved(self) -> str:
        self.address = self.cluster.address_now(self._topic, self.name) or self.address
        return self.address

    def state(self, query: str) -> State:
        """What its ledger knows of the query; OptionError when the broker keeps no ledger."""
        try:
            answer = self.request("asking the ledger", SINK_STATE, {"query": query})
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise OptionError(
                f"deliveryGuarantee=exactly-once needs an Aerobee broker, which keeps a ledger of "
                f"committed batches; the broker at {self.address} has none. Use "
                "deliveryGuarantee=at-least-once, and drop repeats by messageId where you read"
            ) from None
        return State(int(answer.ext["batch"]), answer.ext.get("home"))


def all_homes(cluster: Cluster) -> list[Home]:
    return [Home(cluster, name, address) for name, address in cluster.masters().items()]


def homes_of(cluster: Cluster, topic: str | None) -> list[Home]:
    """The brokers that may take a batch, by name: those of the topic, else those that make topics;
    for topics by column all brokers, where none creates topics automatically."""
    own = cluster.route(topic) if topic else None
    homes = [
        Home(cluster, share.broker, share.address, topic)
        for share in own or cluster.route(TEMPLATE_TOPIC) or ()
        if share.perm & PERM_WRITE
    ]
    if not homes and topic is None:
        homes = all_homes(cluster)
    if not homes:
        raise OptionError(f"no broker takes messages for {topic or 'any topic'}; create it first")
    return homes


class QueryLedgers:
    """The ledgers that may know a query: those of the brokers that take its rows, and of the home
    that one of them names."""

    def __init__(self, cluster: Cluster, query: str, takers: list[Home]) -> None:
        self.query = query
        self._takers = takers
        self._states = {home: home.state(query) for home in takers}
        while missing := self._named() - {home.name for home in self._states}:
            for name in sorted(missing):
                home = _registered(cluster, name, query)
                self._states[home] = home.state(query)
        self.home = self._chosen()

    @property
    def newest_batch(self) -> int:
        return max(state.batch for state in self._states.values())

    def _named(self) -> set[str]:
        return {state.home for state in self._states.values() if state.home is not None}

    def _chosen(self) -> Home:
        """The home that is noted if it takes rows, else the one of the newest batch, else any."""
        noted = [home for home in self._takers if home.name in self._named()]
        if noted:
            return noted[0]
        newest = max(self._takers, key=lambda home: self._states[home].batch)
        if self._states[newest].batch >= 0:
            return newest
        return self._takers[zlib.crc32(self.query.encode()) % len(self._takers)]

    def note_home(self, batch: int, topic: str) -> None:
        """Before the batch can be committed: tells each ledger that does not know the home yet. A
        former home comes first: once it knows, it commits no more."""
        former = self._named()
        for ledger in sorted(self._states, key=lambda one: one.name not in former):
            known = self._states[ledger].home
            if known == self.home.name:
                continue
            ext = {"query": self.query, "batch": str(batch), "topic": topic, "home": self.home.name}
            if known is not None:
                ext["instead"] = known
            what = f"telling the ledger of {ledger.name} that {self.home.name} has {self.query}"
            try:
                ledger.request(what, SINK_HOME, ext)
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                log.warning("%s: its version keeps no such notes; update it", what)


def _registered(cluster: Cluster, name: str, query: str) -> Home:
    """The broker, once a name server knows it."""
    outage = cluster.outage()
    missing = LookupError("no name server knows that broker")
    while (address := cluster.masters().get(name)) is None:
        try:
            outage.wait(f"the ledger of query {query}, at the broker {name}", missing)
        except Unreachable as error:
            raise Unreachable(
                f"the broker {name} commits the batches of query {query}, and no name server knows "
                "it now. Only its ledger tells whether this batch is out already: start it again. "
                f"If it is gone for good, `aerobee pipeline ledger forget {query}` lets another "
                "broker go on, which may publish the last batch a second time"
            ) from error
    outage.over(f"the broker {name}")
    return Home(cluster, name, address)
