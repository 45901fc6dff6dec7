"""`aerobee replicas` and `aerobee promote`."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from aerobee.client.admin.types import Broker
from aerobee.client.cli.common import CommonOptions, connected
from aerobee.client.cli.failures import Failure
from aerobee.client.cli.output import print_done, print_rows
from aerobee.client.client import Client
from aerobee.client.errors import AerobeeError, BrokerError, ConnectFailed, ConnectionLost, NotFound

_SURE = "no send that was answered with SEND_OK is lost with this machine"
_LOOK_S = 0.2


@click.command()
@click.option("--broker", "name", help="Which broker, by name; default: all.")
@connected
async def replicas(common: CommonOptions, mq: Client, name: str | None) -> None:
    """Who has a copy of whose log, and how far behind it is.

    A slave is in sync when the master waits for it, or would: it is linked, and lacks less than
    haSlaveFallbehindMax. The time is the age of the first message that it lacks.
    """
    brokers = [row for row in await mq.admin.brokers() if name in (None, row.name)]
    if not brokers and name is not None:
        raise NotFound(f"no broker {name!r} is known to the name servers")
    statuses = {row.address: await _replica_status(mq, row.address) for row in brokers}
    rows = [
        _row(row, statuses, [other for other in brokers if other.name == row.name])
        for row in brokers
    ]
    print_rows(rows, as_json=common.json, empty="the name servers know no broker")


async def _replica_status(mq: Client, address: str) -> dict[str, Any]:
    """A broker's own report; `error` when it does not answer."""
    try:
        status = await mq.admin.replication(address)
        runtime = await mq.admin.runtime(address)
        settings = await mq.admin.settings(address)
    except AerobeeError as error:
        return {"error": str(error)}
    return status | {
        "end": int(runtime["commitLogMaxOffset"]),
        "epoch": runtime.get("replicaEpoch"),
        "role": settings.get("brokerRole"),
    }


def _row(broker: Broker, statuses: dict[str, dict[str, Any]], same: list[Broker]) -> dict[str, Any]:
    state = statuses[broker.address]
    row: dict[str, Any] = {
        "broker": broker.name,
        "id": broker.number,
        "address": broker.address,
        "role": state.get("role"),
        "epoch": state.get("epoch"),
        "log_end": state.get("end"),
        "behind_bytes": None,
        "behind_s": None,
        "in_sync": None,
    }
    if "error" in state:
        return row | {"note": f"unreachable: {state['error']}"}
    master = next((statuses[other.address] for other in same if other.number == 0), {})
    failover = state.get("failover") or {}
    if failover:
        number = failover.get("brokerId")
        row |= {"id": number, "in_set": "yes" if number in failover["inSync"] else "no"}
    if broker.number == 0:
        return row | {"note": _about(failover) or _loss(state)}
    if "end" not in master:
        note = _about(failover) or "no master is known; see `aerobee promote`"
        return row | {"in_sync": "no", "note": note}
    links = master.get("haConnectionInfo") or []
    link = next((link for link in links if _is_of(link, broker)), None)
    if link is None:
        behind = master["end"] - state["end"]
        note = "its master does not know it: see the log of this broker for the reason"
        return row | {"behind_bytes": behind, "in_sync": "no", "note": note}
    late = link.get("behindMs")
    return row | {
        "behind_bytes": link["diff"],
        "behind_s": late / 1000 if late is not None else None,
        "in_sync": "yes" if link["inSync"] else "no",
        "note": _about(failover) or _access(state),
    }


def _about(failover: dict[str, Any]) -> str | None:
    """A note for the operator about a broker's failover, if there is a reason for one."""
    if failover.get("awaySeconds") is not None:
        who = failover.get("arbiter", "etcd")
        return f"{who} has not answered for {failover['awaySeconds']:.0f} s: no replica takes over"
    if failover.get("waitsFor"):
        return str(failover["waitsFor"])
    if failover.get("leads") and failover["inSync"] == [failover["brokerId"]]:
        return "the only one in sync: no replica can take over from it"
    return None


def _access(state: dict[str, Any]) -> str | None:
    """Whether its users are the master's, so that it could replace it."""
    return (state.get("access") or {}).get("differs") or None


def _is_of(link: dict[str, Any], broker: Broker) -> bool:
    """Our masters say which broker is at the end of a link, Java's its address only."""
    if link.get("brokerId") is not None:
        return bool(link["brokerId"] == broker.number)
    return str(link["addr"]).rpartition(":")[0] == broker.address.rpartition(":")[0]


def _loss(master: dict[str, Any]) -> str:
    links = master.get("haConnectionInfo") or []
    if not links:
        return "the only copy: all is lost with this machine"
    if master["role"] == "SYNC_MASTER":
        return _SURE
    least = min(link["diff"] for link in links)
    return f"answers before the copy: {least} bytes would be lost with this machine now"


@click.command()
@click.argument("address")
@click.option(
    "--role",
    type=click.Choice(["ASYNC_MASTER", "SYNC_MASTER"]),
    help="brokerRole from now on; default: that of the master that it followed.",
)
@click.option("--force", is_flag=True, help="Even if its master is up.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="With etcd or a controller: even if it may lack messages that were acknowledged.",
)
@click.option("--yes", is_flag=True, help="Do it without asking.")
@connected
async def promote(
    common: CommonOptions,
    mq: Client,
    address: str,
    role: str | None,
    force: bool,
    accept_loss: bool,
    yes: bool,
) -> None:
    """Make the slave at ADDRESS (host:port) the master, in a new epoch.

    Its old master must be down. When it comes back, start it with brokerRole=SLAVE and a brokerId
    of its own: what it has stored and no slave has copied is cut from its log.

    With etcd (etcdEndpoints) or a controller (controllerAddr) a replica that is in sync takes over
    from a master that is up, and nothing acknowledged is lost.
    """
    if not yes:
        click.confirm(
            f"{address} becomes the master; what only the old one has is lost. Continue?",
            abort=True,
            err=True,
        )
    try:
        epoch = await mq.admin.promote(
            address, role=role or "", force=force, accept_loss=accept_loss
        )
    except BrokerError as error:
        raise Failure(str(error.remark)) from None
    await _until_master(mq, address, common.timeout + 30)
    done = {"address": address, "epoch": epoch}
    print_done(f"{address} is the master, in epoch {epoch}", done, as_json=common.json)


async def _until_master(mq: Client, address: str, seconds: float) -> None:
    """Wait while it closes its connections, reopens its log and listens again."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while loop.time() < deadline:
        try:
            if (await mq.admin.runtime(address))["brokerActive"] == "true":
                return
        except (ConnectFailed, ConnectionLost):
            pass
        await asyncio.sleep(_LOOK_S)
    raise Failure(f"{address} was promoted, but is not the master yet: check its log")
