"""A small blocking client for Spark's workers: processes that only pull or push."""

import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BufferedReader
from typing import Any, Final, TypeVar, cast

from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.outage import Outage, Unreachable
from aerobee.protocol.json import fastjson
from aerobee.protocol.names import is_users_topic
from aerobee.protocol.tls import client_context
from aerobee.protocol.wire.codecs import ProtocolError, decode_command
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.conversation import Conversation
from aerobee.protocol.wire.frame import FRAME_SIZE_MAX, frame_sizes
from aerobee.protocol.wire.signing import Credentials

__all__ = ["Access", "BrokerError", "BrokerQueues", "Cluster", "Link", "Unreachable", "checked"]

T = TypeVar("T")
MASTER_ID: Final = 0
_JOINED_MAX: Final = 1 << 16  # a larger body is not copied to join its head
# Retriable answers: the broker is starting, stopping or overloaded.
TRANSIENT: Final = frozenset(
    (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL)
)


class BrokerError(Exception):
    """A broker or name server refused a request."""

    def __init__(self, what: str, address: str, code: int, remark: str | None) -> None:
        name = ResponseCode(code).name if code in set(ResponseCode) else "an unknown code"
        super().__init__(f"{what}: {address} answered {code} ({name}): {remark or 'no reason'}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Access:
    """Addresses, credentials and timeouts; sent to the workers with the plan."""

    namesrv: tuple[str, ...]
    timeout: float = 10.0
    retry_interval: float = 0.3  # the first pause; the next ones grow
    patience: float = 300.0  # seconds for which a running query waits for a server
    first_patience: float = 1.5  # the same for a query that starts: the address may be wrong
    credentials: Credentials | None = None
    tls: bool = False
    ca_file: str | None = None

    @classmethod
    def of(cls, options: Any) -> "Access":
        key, secret = options["accessKey"], options["secretKey"]
        return cls(
            options["namesrv"],
            options["timeoutMs"] / 1000,
            options["fetchOffset.retryIntervalMs"] / 1000,
            options["timeout.broker"] / 1000,
            options["fetchOffset.numRetries"] * options["fetchOffset.retryIntervalMs"] / 1000,
            None if None in (key, secret) else Credentials(key, secret, options["securityToken"]),
            options["useTLS"],
            options["tlsCaFile"],
        )

    def at_start(self) -> "Access":
        """For the first contact of a query: a wrong address fails early."""
        return replace(self, patience=min(self.patience, self.first_patience))

    def __repr__(self) -> str:  # never the secrets: this ends up in logs and plans
        return f"Access({';'.join(self.namesrv)})"


@dataclass(slots=True)
class Answer:
    """A response that may not have arrived yet."""

    command: Command | None = None

    def done(self) -> bool:
        return self.command is not None

    def set_result(self, answer: Command, /) -> None:
        self.command = answer


class Link:
    """One connection. `ask` sends without waiting, `take` waits for a given answer."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self._conversation = Conversation[Answer](access.credentials)
        context = _tls_context(access.ca_file) if access.tls else None
        self._socket = socket.create_connection((host.strip("[]"), int(port)), access.timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname=host.strip("[]"))
        self._file = cast(BufferedReader, self._socket.makefile("rb", 1 << 16))

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, code: int, ext: dict[str, str], body: bytes | memoryview = b"") -> Answer:
        answer = Answer()
        parts = self._conversation.request(Command(code, ext, body), answer)
        if len(body) < _JOINED_MAX:
            parts = (b"".join(parts),)
        for part in parts:
            self._socket.sendall(part)
        return answer

    def take(self, answer: Answer, room: Callable[[int], memoryview] | None = None) -> Command:
        """Waits for the answer. `room` gives the memory for the bodies that come until then."""
        while answer.command is None:
            if self._file.closed:
                raise ConnectionError(f"the connection to {self.address} was closed")
            self._receive(room)
        return answer.command

    def request(self, code: int, ext: dict[str, str], body: bytes | memoryview = b"") -> Command:
        return self.take(self.ask(code, ext, body))

    def _receive(self, room: Callable[[int], memoryview] | None) -> None:
        """One frame, read in exact sizes: answers are large, and this does not copy them."""
        codec, header_size, body_size = frame_sizes(self._exactly(8))
        length = 4 + header_size + body_size
        if body_size < 0 or length > FRAME_SIZE_MAX:
            raise ProtocolError(f"{self.address} sent a frame of {length} bytes; is it a broker?")
        header = self._exactly(header_size)
        body = self._fill(room(body_size)) if room and body_size else self._exactly(body_size)
        command = decode_command(codec, header, body)
        if command.is_response:
            self._conversation.answered(command)

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        self._check(len(data), count)
        return data

    def _fill(self, body: memoryview) -> memoryview:
        self._check(self._file.readinto(body), len(body))
        return body

    def _check(self, got: int, wanted: int) -> None:
        if got < wanted:
            raise ConnectionError(f"{self.address} closed the connection")


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return client_context(ca_file)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"option tlsCaFile: {ca_file} cannot be used: {error}; name a PEM file of CA "
            "certificates that the driver and every worker can read"
        ) from None


def checked(answer: Command, what: str, address: str) -> Command:
    """`answer`, or BrokerError when it is not a success."""
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(what, address, answer.code, answer.remark)
    return answer


@dataclass(frozen=True, slots=True)
class BrokerQueues:
    """A topic's share of one broker."""

    broker: str
    address: str
    read_queues: int
    write_queues: int
    perm: int


class Cluster:
    """The name servers and the brokers behind them; connections are made when needed and kept."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.waited: dict[str, float] = {}  # seconds without an answer, by address
        self.retries = 0
        self._links: dict[str, Link] = {}

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def link(self, address: str) -> Link:
        if address not in self._links:
            self._links[address] = Link(address, self.access)
        return self._links[address]

    def is_current(self, link: Link) -> bool:
        return self._links.get(link.address) is link

    def drop(self, address: str) -> None:
        """Closes the link; pending answers are lost."""
        if link := self._links.pop(address, None):
            link.close()

    def retrying(
        self,
        what: str,
        addresses: Sequence[str],
        attempt: Callable[[Link], T],
        moved: Callable[[], str | None] = lambda: None,
    ) -> T:
        """`attempt` on the first address that answers, repeated until the patience is over.

        `moved` may name another address between two rounds: a replica that took over."""
        outage = self.outage()
        while True:
            for address in addresses:
                label = f"{what}: {address}"
                try:
                    result = attempt(self.link(address))
                except BrokerError as error:
                    if error.code not in TRANSIENT:
                        raise
                    failure: Exception = error
                except (OSError, ProtocolError) as error:
                    self.drop(address)
                    failure = error
                else:
                    self.note_wait(address, outage.over(label))
                    return result
            outage.wait(f"{what}: {';'.join(addresses)}", failure)
            addresses = (new,) if (new := moved()) else addresses

    def outage(self) -> Outage:
        return Outage(self.access.patience, self.access.retry_interval, self._count_retry)

    def _count_retry(self) -> None:
        self.retries += 1

    def note_wait(self, address: str, seconds: float) -> None:
        if seconds:
            self.waited[address] = self.waited.get(address, 0.0) + seconds

    def request(
        self,
        what: str,
        address: str,
        code: int,
        ext: dict[str, str],
        body: bytes | memoryview = b"",
    ) -> Command:
        def attempt(link: Link) -> Command:
            return checked(link.request(code, dict(ext), body), what, address)

        return self.retrying(what, (address,), attempt)

    def ask_name_server(self, what: str, code: int, ext: dict[str, str]) -> Command:
        """The first name server that can be reached answers."""
        return self.retrying(what, self.access.namesrv, lambda link: link.request(code, dict(ext)))

    def address_now(self, topic: str | None, broker: str) -> str | None:
        """Where the broker's master is by now, by the topic's route or by the list of brokers; None
        when no server knows it at once. A slave may lack what was read already, so it is no
        substitute."""
        with Cluster(replace(self.access, patience=0.0)) as impatient:
            try:
                found = impatient._brokers() if topic is None else impatient._route(topic)
            except (OSError, BrokerError):
                return None
        number, address = _places(found or {}).get(broker, (None, None))
        return address if number == MASTER_ID else None

    def route(self, topic: str) -> list[BrokerQueues] | None:
        """Where the topic's queues are, sorted by broker; None when no broker has the topic."""
        found = self._route(topic)
        if found is None:
            return None
        addresses = _places(found)
        return sorted(
            (
                BrokerQueues(
                    queues["brokerName"],
                    addresses[queues["brokerName"]][1],
                    int(queues["readQueueNums"]),
                    int(queues["writeQueueNums"]),
                    int(queues["perm"]),
                )
                for queues in found.get("queueDatas") or ()
                if queues["brokerName"] in addresses
            ),
            key=lambda queues: queues.broker,
        )

    def _route(self, topic: str) -> dict[str, Any] | None:
        """The route by the first name server that knows the topic: a restarted one knows none."""
        what = f"asking for the route of {topic}"
        code, ext = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
        answer = self.ask_name_server(what, code, ext)
        for other in self.access.namesrv[1:]:
            if answer.code != ResponseCode.TOPIC_NOT_EXIST:
                break
            try:
                answer = self.link(other).request(code, dict(ext))
            except (OSError, ProtocolError):
                self.drop(other)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        found = fastjson.loads(checked(answer, what, ";".join(self.access.namesrv)).body)
        return cast(dict[str, Any], found)

    def topics(self) -> list[str]:
        code = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        return sorted(self._listed("listing the topics", code).get("topicList") or ())

    def users_topics(self) -> list[str]:
        """The topics that lists show: without system topics."""
        info = self._brokers()
        servers = {*(info.get("brokerAddrTable") or ()), *(info.get("clusterAddrTable") or ())}
        return [topic for topic in self.topics() if is_users_topic(topic, servers)]

    def masters(self) -> dict[str, str]:
        """The addresses of all brokers that the name servers know, by their names."""
        return {name: address for name, (_, address) in sorted(_places(self._brokers()).items())}

    def _brokers(self) -> dict[str, Any]:
        return self._listed("listing the brokers", RequestCode.GET_BROKER_CLUSTER_INFO)

    def _listed(self, what: str, code: int) -> dict[str, Any]:
        answer = checked(self.ask_name_server(what, code, {}), what, ";".join(self.access.namesrv))
        found: dict[str, Any] = fastjson.loads(answer.body)
        return found


def _places(found: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """brokerId and address of each broker's master, or of its first slave when there is no master;
    from a route or the list of brokers."""
    brokers = found.get("brokerDatas") or (found.get("brokerAddrTable") or {}).values()
    return {
        broker["brokerName"]: min((int(no), at) for no, at in broker["brokerAddrs"].items())
        for broker in brokers
        if broker["brokerAddrs"]
    }
