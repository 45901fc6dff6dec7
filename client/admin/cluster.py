"""Administration of brokers; and how the other parts of `Admin` ask them."""

from __future__ import annotations

import asyncio
from typing import Any

from aerobee.client.admin.types import Broker
from aerobee.client.core import Core
from aerobee.client.errors import NotFound, refusal
from aerobee.protocol.json import fastjson
from aerobee.protocol.names import TEMPLATE_TOPIC
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.replica_codes import PROMOTE


class ClusterAdmin:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def brokers(self) -> list[Broker]:
        """Every broker that the name servers know."""
        answer = await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO, "the cluster")
        table = fastjson.loads(answer.body).get("brokerAddrTable") or {}
        return sorted(
            (
                Broker(name, row.get("cluster", ""), int(number), address)
                for name, row in table.items()
                for number, address in row["brokerAddrs"].items()
            ),
            key=lambda broker: (broker.name, broker.number),
        )

    async def _masters(self) -> list[Broker]:
        masters = [broker for broker in await self.brokers() if broker.number == 0]
        if not masters:
            raise NotFound("the name servers know no broker", hint="is one registered there?")
        return masters

    async def runtime(self, address: str) -> dict[str, str]:
        """A broker's runtime state, by its own keys."""
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, "the runtime info")
        return dict(fastjson.loads(answer.body).get("table") or {})

    async def settings(self, address: str) -> dict[str, str]:
        """Every setting of a broker."""
        answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG, "the settings")
        lines = str(bytes(answer.body), "utf-8").splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {name.strip(): value.strip() for name, _, value in pairs}

    async def change_settings(self, address: str, changes: dict[str, str]) -> None:
        """Change settings of a running broker; it refuses those that need a restart."""
        body = "".join(f"{name}={value}\n" for name, value in changes.items()).encode()
        await self._ask(
            address,
            RequestCode.UPDATE_BROKER_CONFIG,
            f"the change of {', '.join(changes)}",
            {},
            body,
        )

    async def replication(self, address: str) -> dict[str, Any]:
        """A master's slaves, or a slave's master, by the broker's own keys."""
        answer = await self._ask(address, RequestCode.GET_BROKER_HA_STATUS, "the replicas")
        return dict(fastjson.loads(answer.body))

    async def promote(
        self, address: str, *, role: str = "", force: bool = False, accept_loss: bool = False
    ) -> int:
        """Promote a slave to master; returns the new epoch. `force`: even if its master is up.
        `accept_loss`: with etcd or a controller, even if it may lack acknowledged messages."""
        ext = {"brokerRole": role, "force": "true" if force else "false"}
        ext["acceptLoss"] = "true" if accept_loss else "false"
        answer = await self._ask(address, PROMOTE, f"the promotion of {address}", ext)
        return int(answer.ext["epoch"])

    async def _ask(
        self,
        address: str,
        code: int,
        what: str,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> Command:
        return await self._core.remoting.ask(address, code, ext, body, what=what)

    async def _ask_name_server(self, code: int, what: str) -> Command:
        answer = await self._core.routes.name_request(Command(code))
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, what=what)
        return answer

    async def ping(self, address: str) -> float:
        """Round-trip time in seconds of a small request to a broker or name server."""
        loop = asyncio.get_running_loop()
        connection = await self._core.remoting.connection(address)
        begun = loop.time()
        await connection.request(
            Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TEMPLATE_TOPIC}),
            self._core.timeout,
        )
        return loop.time() - begun
