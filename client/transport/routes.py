"""Routes of topics: asks the name servers, caches the answers, gives queues and addresses."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aerobee.client.errors import (
    AerobeeError,
    ConnectFailed,
    NoRoute,
    NotFound,
    RequestTimeout,
    refusal,
)
from aerobee.client.transport.hedged import NobodyAnswered, first_answer
from aerobee.client.transport.remoting import Remoting, log_level
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.names import TEMPLATE_TOPIC
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

log = logging.getLogger("aerobee.routes")

AUTO_CREATE_QUEUES: Final = 4
PERM_READ: Final = 4
PERM_WRITE: Final = 2
MASTER: Final = 0


@dataclass(frozen=True, slots=True)
class BrokerQueues:
    """How many queues a topic has on one broker."""

    broker: str
    read: int
    write: int
    perm: int


@dataclass(frozen=True, slots=True)
class Route:
    """The brokers of one topic. `created` is false while only the template's route is known."""

    topic: str
    parts: tuple[BrokerQueues, ...]
    created: bool = True
    addresses: dict[str, dict[int, str]] = field(default_factory=dict, compare=False)

    def write_queues(self) -> tuple[MessageQueue, ...]:
        """The queues to send to: of writable brokers whose master is known."""
        return tuple(
            MessageQueue(self.topic, part.broker, number)
            for part in self.parts
            if part.perm & PERM_WRITE and MASTER in self.addresses.get(part.broker, {})
            for number in range(part.write)
        )

    def read_queues(self) -> tuple[MessageQueue, ...]:
        return tuple(
            MessageQueue(self.topic, part.broker, number)
            for part in self.parts
            if part.perm & PERM_READ
            for number in range(part.read)
        )


def parse_route(topic: str, body: bytes | memoryview) -> Route:
    """The route in the answer to GET_ROUTEINFO_BY_TOPIC."""
    data: dict[str, Any] = fastjson.loads(body)
    parts = tuple(
        BrokerQueues(
            row["brokerName"], row["readQueueNums"], row["writeQueueNums"], row.get("perm", 6)
        )
        for row in sorted(data.get("queueDatas") or (), key=lambda row: str(row["brokerName"]))
    )
    addresses = {
        row["brokerName"]: {int(number): str(at) for number, at in row["brokerAddrs"].items()}
        for row in data.get("brokerDatas") or ()
    }
    return Route(topic, parts, True, addresses)


class Routes:
    """Routes by topic, from any of several name servers."""

    def __init__(self, remoting: Remoting, name_servers: list[str]) -> None:
        self.name_servers = name_servers
        self._remoting = remoting
        self._current = 0
        self._routes: dict[str, Route] = {}
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self._ever: set[str] = set()

    def was_there(self, topic: str) -> bool:
        """Whether the topic has had a route before."""
        return topic in self._ever

    def refresh_soon(self, topic: str) -> None:
        """Refresh the route in the background; until then the old one is used."""
        self._question(topic)

    @property
    def broker_addresses(self) -> set[str]:
        """Every broker address of a route seen so far."""
        return {address for table in self._brokers.values() for address in table.values()}

    @property
    def topics(self) -> list[str]:
        return list(self._routes)

    def cached(self, topic: str) -> Route | None:
        return self._routes.get(topic)

    def address(self, broker: str, number: int = MASTER) -> str:
        """The address of a broker by its name; the master's if there is none with that number."""
        table = self._brokers.get(broker, {})
        address = table.get(number) or table.get(MASTER) or next(iter(table.values()), None)
        if address is None:
            raise NoRoute(f"no address of broker {broker!r} is known")
        return address

    async def get(self, topic: str) -> Route:
        """The route to read a topic by."""
        return self._routes.get(topic) or await self.refresh(topic)

    async def for_sending(self, topic: str) -> Route:
        """The route to send by: while the topic does not exist, the template's."""
        route = self._routes.get(topic)
        if route is not None and route.write_queues():
            return route
        try:
            route = await self.refresh(topic)
        except NoRoute:
            route = await self._template(topic)
        if not route.write_queues():
            raise NoRoute(
                f"topic {topic!r} has no writable queue",
                hint="check the topic's and the broker's permission",
            )
        return route

    async def _template(self, topic: str) -> Route:
        try:
            found = await self.refresh(TEMPLATE_TOPIC)
        except NoRoute:
            raise NoRoute(
                f"topic {topic!r} does not exist, and no registered broker makes topics by itself",
                hint=f"`aerobee topic create {topic}`; `aerobee cluster brokers` lists the brokers",
            ) from None
        parts = tuple(
            BrokerQueues(
                part.broker,
                min(AUTO_CREATE_QUEUES, part.read),
                min(AUTO_CREATE_QUEUES, part.write),
                part.perm,
            )
            for part in found.parts
        )
        route = Route(topic, parts, False, found.addresses)
        self._routes[topic] = route
        return route

    async def refresh(self, topic: str) -> Route:
        """Ask the name servers; concurrent callers share one request."""
        return await asyncio.shield(self._question(topic))

    def _question(self, topic: str) -> asyncio.Task[Route]:
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.create_task(self._ask(topic), name=f"route of {topic}")
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._asked(topic, done))
        return task

    def _asked(self, topic: str, task: asyncio.Task[Route]) -> None:
        self._asking.pop(topic, None)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: there may be no waiter left

    async def _ask(self, topic: str) -> Route:
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = await self.name_request(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext))
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            known = self._routes.get(topic)
            if known is None or known.created:
                self._routes.pop(topic, None)
            raise NoRoute(
                f"no name server of {', '.join(self.name_servers)} knows topic {topic!r}",
                hint="create it, or check that the brokers are registered there",
            )
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, what=f"the route of {topic!r}")
        route = parse_route(topic, answer.body)
        before = self.broker_addresses
        self._brokers.update(route.addresses)
        for address in self.broker_addresses - before:
            await self._remoting.introduce_late(address)
        self._routes[topic] = route
        self._ever.add(topic)
        return route

    async def reach_a_name_server(self) -> None:
        """Connect to the first name server that accepts; the first error says why none did."""
        try:
            found = await first_answer(self._in_order(), self._remoting.connection)
        except NobodyAnswered as failed:
            raise failed.errors[0] from None
        self._current = self.name_servers.index(found.server)

    async def name_request(self, command: Command) -> Command:
        """The answer of the first name server that gives one; the last that did is asked first.
        Several may be asked at once, so the command must only read."""

        async def ask(server: str) -> Command:
            return await self._ask_server(server, replace(command, ext=dict(command.ext)))

        try:
            found = await first_answer(self._in_order(), ask)
        except NobodyAnswered as failed:
            errors = failed.errors
            raise (
                errors[0]
                if len(errors) == 1
                else ConnectFailed(f"no name server answered: {'; '.join(map(str, errors))}")
            ) from None
        self._current = self.name_servers.index(found.server)
        return found.answer

    def _in_order(self) -> list[str]:
        return self.name_servers[self._current :] + self.name_servers[: self._current]

    async def _ask_server(self, server: str, command: Command) -> Command:
        try:
            return await self._remoting.request(
                server, command, patient=len(self.name_servers) == 1
            )
        except AerobeeError as error:
            log.log(log_level(error), "name server %s: %s", server, error)
            silent = self._remoting.known(server)
            if silent is not None and isinstance(error, RequestTimeout):
                silent.drop()
            raise

    async def refresh_all(self) -> None:
        """Refresh every route in use; one that cannot be refreshed stays as it was."""
        for topic in list(self._routes):
            try:
                await self.refresh(topic)
            except (NotFound, AerobeeError) as error:
                log.debug("route of %s not refreshed: %s", topic, error)
        self._forget_brokers()

    def _forget_brokers(self) -> None:
        """Forget brokers that no route names any more and to which there is no connection."""
        named = {name for route in self._routes.values() for name in route.addresses}
        if named:  # else a restarted name server knows no broker yet
            self._brokers = {
                name: table
                for name, table in self._brokers.items()
                if name in named or any(map(self._remoting.known, table.values()))
            }
