"""A small blocking client: Spark's workers are processes that pull or push and do nothing else."""

import base64
import hashlib
import hmac
import itertools
import logging
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from aerobee.protocol import fastjson
from aerobee.protocol.codecs import ProtocolError, decode_command
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.command import Command
from aerobee.protocol.frame import FRAME_SIZE_MAX, encode_frame_head

log: Final = logging.getLogger("aerobee.pipeline")
_LENGTHS: Final = struct.Struct(">iI")
T = TypeVar("T")


class BrokerError(Exception):
    """A broker or name server said no."""

    def __init__(self, what: str, address: str, code: int, remark: str | None) -> None:
        name = ResponseCode(code).name if code in set(ResponseCode) else "an unknown code"
        super().__init__(f"{what}: {address} answered {code} ({name}): {remark or 'no reason'}")
        self.code = code


class Unreachable(ConnectionError):
    """Nobody answers at any of the addresses."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach and convince the servers; goes to the workers with the plan."""

    namesrv: tuple[str, ...]
    timeout: float = 10.0
    retries: int = 5
    retry_interval: float = 0.3
    access_key: str | None = None
    secret_key: str | None = None
    security_token: str | None = None
    tls: bool = False
    ca_file: str | None = None

    @classmethod
    def of(cls, options: Any) -> "Access":
        return cls(
            options["namesrv"],
            options["timeoutMs"] / 1000,
            options["fetchOffset.numRetries"],
            options["fetchOffset.retryIntervalMs"] / 1000,
            options["accessKey"],
            options["secretKey"],
            options["securityToken"],
            options["useTLS"],
            options["tlsCaFile"],
        )

    def __repr__(self) -> str:  # never the secrets: this ends up in logs and plans
        return f"Access({';'.join(self.namesrv)})"


def sign(command: Command, access: Access) -> None:
    """RocketMQ's signature: HMAC-SHA1 over the ext values in the order of their names, and body."""
    if access.access_key is None or access.secret_key is None:
        return
    command.ext["AccessKey"] = access.access_key
    if access.security_token:
        command.ext["SecurityToken"] = access.security_token
    values = "".join(command.ext[name] for name in sorted(command.ext) if name != "Signature")
    digest = hmac.new(access.secret_key.encode(), values.encode() + command.body, hashlib.sha1)
    command.ext["Signature"] = base64.b64encode(digest.digest()).decode()


class Link:
    """One connection. `ask` sends without waiting, `take` waits for a given answer."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self.access = access
        host, _, port = address.rpartition(":")
        self._opaques = itertools.count(1)
        self._answers: dict[int, Command] = {}
        self._socket = socket.create_connection((host.strip("[]"), int(port)), access.timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if access.tls:
            context = ssl.create_default_context(cafile=access.ca_file)
            self._socket = context.wrap_socket(self._socket, server_hostname=host.strip("[]"))
        self._file = self._socket.makefile("rb", 1 << 16)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        command = Command(code, ext, body, opaque=next(self._opaques))
        sign(command, self.access)
        self._socket.sendall(encode_frame_head(command, len(body)) + body)
        return command.opaque

    def take(self, opaque: int) -> Command:
        while opaque not in self._answers:
            if self._file.closed:
                raise ConnectionError(f"the connection to {self.address} was given up")
            answer = self._receive()
            if answer.is_response:
                self._answers[answer.opaque] = answer
        return self._answers.pop(opaque)

    def request(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        return self.take(self.ask(code, ext, body))

    def _receive(self) -> Command:
        length, mark = _LENGTHS.unpack(self._exactly(8))
        header_size = mark & 0xFFFFFF
        if not 4 + header_size <= length <= FRAME_SIZE_MAX:
            raise ProtocolError(f"{self.address} sent a frame of {length} bytes; is it a broker?")
        header = self._exactly(header_size)
        return decode_command(mark >> 24, bytes(header), self._exactly(length - 4 - header_size))

    def _exactly(self, count: int) -> bytes:
        data: bytes = self._file.read(count)
        if len(data) < count:
            raise ConnectionError(f"{self.address} closed the connection")
        return data


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
        """Closes the link; what was asked on it and not taken yet is lost."""
        if link := self._links.pop(address, None):
            link.close()

    def retrying(self, what: str, address: str, attempt: Callable[[Link], T]) -> T:
        """`attempt` on the address, again on a new connection when that breaks."""
        for tries_left in range(self.access.retries, -1, -1):
            try:
                return attempt(self.link(address))
            except (OSError, ProtocolError) as error:
                self.drop(address)
                if not tries_left:
                    raise Unreachable(
                        f"{what}: {address} cannot be reached: {error}; is it up, and can this "
                        "host reach that address?"
                    ) from error
                time.sleep(self.access.retry_interval)
        raise AssertionError("the loop returns or raises")

    def request(
        self, what: str, address: str, code: int, ext: dict[str, str], body: bytes = b""
    ) -> Command:
        answer = self.retrying(what, address, lambda link: link.request(code, dict(ext), body))
        return checked(answer, what, address)

    def ask_name_server(self, what: str, code: int, ext: dict[str, str]) -> Command:
        """The first name server that can be reached answers."""
        failures = []
        for address in self.access.namesrv:
            try:
                return self.retrying(what, address, lambda link: link.request(code, dict(ext)))
            except Unreachable as error:
                failures.append(str(error))
        raise Unreachable("; ".join(failures))

    def route(self, topic: str) -> list[BrokerQueues] | None:
        """Where the topic's queues are, sorted by broker; None when nobody has the topic."""
        what = f"asking for the route of {topic}"
        code, ext = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
        answer = self.ask_name_server(what, code, ext)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        body = fastjson.loads(checked(answer, what, ";".join(self.access.namesrv)).body)
        addresses = {
            broker["brokerName"]: _master(broker["brokerAddrs"])
            for broker in body.get("brokerDatas") or ()
        }
        return sorted(
            (
                BrokerQueues(
                    queues["brokerName"],
                    addresses[queues["brokerName"]],
                    int(queues["readQueueNums"]),
                    int(queues["writeQueueNums"]),
                    int(queues["perm"]),
                )
                for queues in body.get("queueDatas") or ()
                if addresses.get(queues["brokerName"])
            ),
            key=lambda queues: queues.broker,
        )

    def topics(self) -> list[str]:
        what, code = "listing the topics", RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        answer = self.ask_name_server(what, code, {})
        body = fastjson.loads(checked(answer, what, ";".join(self.access.namesrv)).body)
        return sorted(body.get("topicList") or ())

    def masters(self) -> list[str]:
        """The addresses of all brokers that the name servers know."""
        what, code = "listing the brokers", RequestCode.GET_BROKER_CLUSTER_INFO
        answer = self.ask_name_server(what, code, {})
        body = fastjson.loads(checked(answer, what, ";".join(self.access.namesrv)).body)
        brokers = (body.get("brokerAddrTable") or {}).values()
        return sorted(_master(broker["brokerAddrs"]) for broker in brokers)


def _master(addresses: dict[Any, str]) -> str:
    """The master's address, or the first slave's when there is no master."""
    return min((int(number), address) for number, address in addresses.items())[1]
