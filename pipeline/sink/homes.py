"""The brokers that keep ledgers of the exactly-once sink, by name: their masters may change between
two requests."""

from dataclasses import dataclass
from typing import Final

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.wire import Answer, BrokerError, Cluster, Link, checked
from aerobee.protocol.names import TEMPLATE_TOPIC
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.sink_codes import SINK_STATE

PERM_WRITE: Final = 2


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

    def newest_batch(self, query: str) -> int:
        """The query's newest committed batch; OptionError when the broker keeps no ledger."""
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
        return int(answer.ext["batch"])


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
