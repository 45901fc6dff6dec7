"""Heartbeats to brokers, with the groups that this client produces and consumes in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from aerobee.client.errors import AerobeeError, ConnectFailed, RequestTimeout
from aerobee.client.transport.connection import Connection
from aerobee.client.transport.remoting import Remoting, log_level
from aerobee.client.transport.routes import Routes
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command

log = logging.getLogger("aerobee.presence")

HEARTBEAT_SECONDS: Final = 30.0
ConsumerData = dict[str, Any]


class Presence:
    """Sends heartbeats; every new connection to a broker begins with one."""

    def __init__(self, client_id: str, remoting: Remoting, routes: Routes) -> None:
        self.client_id = client_id
        self._remoting = remoting
        self._routes = routes
        self._producers: dict[str, int] = {}
        self._consumers: dict[str, Callable[[], ConsumerData]] = {}
        remoting.introduce = self.introduce

    async def join_producer(self, group: str) -> None:
        """Register as a member of a producer group, which transaction checks need."""
        self._producers[group] = self._producers.get(group, 0) + 1
        await self.beat()

    async def join_consumer(self, group: str, describe: Callable[[], ConsumerData]) -> None:
        self._consumers[group] = describe
        await self.beat()

    async def leave_producer(self, group: str) -> None:
        self._producers[group] -= 1
        if self._producers[group] == 0:
            del self._producers[group]
            await self._unregister("producerGroup", group)

    async def leave_consumer(self, group: str) -> None:
        if self._consumers.pop(group, None) is not None:
            await self._unregister("consumerGroup", group)

    async def introduce(self, connection: Connection) -> None:
        """The first request on a connection to a broker: its answer identifies the peer."""
        if connection.address not in self._routes.broker_addresses:
            return
        try:
            await self._send_heartbeat(connection)
        except AerobeeError as error:
            raise ConnectFailed(f"{connection.address} refused the heartbeat: {error}") from error

    async def _send_heartbeat(self, connection: Connection) -> None:
        answer = await connection.request(self._heartbeat(), self._remoting.timeout)
        connection.flush_mode = answer.ext.get("flushDiskType")

    async def beat(self) -> None:
        """Send a heartbeat to every broker of the routes in use, now. A client without groups has
        nothing to tell, but learns which of its connections are dead."""
        addresses = self._routes.broker_addresses
        if not (self._producers or self._consumers):
            addresses = {address for address in addresses if self._remoting.known(address)}
        await asyncio.gather(*(self._beat_one(address) for address in addresses))

    async def _beat_one(self, address: str) -> None:
        try:
            known = self._remoting.known(address)
            if known is None:
                await self._remoting.connection(address, patient=False)  # begins with a heartbeat
            else:
                await self._send_heartbeat(known)
        except AerobeeError as error:
            log.log(log_level(error), "no heartbeat to %s: %s", address, error)
            if known is not None and isinstance(error, RequestTimeout):
                known.drop()

    def _heartbeat(self) -> Command:
        body = {
            "clientID": self.client_id,
            "consumerDataSet": [describe() for describe in self._consumers.values()],
            "heartbeatFingerprint": 0,
            "producerDataSet": [{"groupName": group} for group in self._producers],
            "withoutSub": False,
        }
        return Command(RequestCode.HEART_BEAT, {}, msgspec.json.encode(body))

    async def _unregister(self, kind: str, group: str) -> None:
        for address in self._routes.broker_addresses:
            connection = self._remoting.known(address)
            if connection is None:
                continue
            ext = {"clientID": self.client_id, kind: group}
            command = Command(RequestCode.UNREGISTER_CLIENT, ext)
            try:
                await connection.request(command, self._remoting.timeout)
            except AerobeeError as error:
                log.info("group %s not unregistered at %s: %s", group, address, error)
