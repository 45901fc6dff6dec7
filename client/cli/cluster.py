"""`aerobee cluster` and `aerobee ping`."""

from __future__ import annotations

from typing import Any

import click

from aerobee.client.admin.types import Broker
from aerobee.client.cli.common import CommonOptions, connected, pair
from aerobee.client.cli.completing import setting_pairs
from aerobee.client.cli.failures import UNREACHED, Failure
from aerobee.client.cli.output import print_done, print_json, print_rows
from aerobee.client.client import Client
from aerobee.client.errors import AerobeeError, BrokerError, NoPermission, NotFound


@click.group()
def cluster() -> None:
    """The brokers, their state and their settings."""


@cluster.command()
@connected
async def status(common: CommonOptions, mq: Client) -> None:
    """Each broker's load, disk and uptime."""
    rows = []
    for broker in await mq.admin.brokers():
        row: dict[str, Any] = {
            "cluster": broker.cluster,
            "broker": broker.name,
            "id": broker.number,
            "address": broker.address,
        }
        try:
            rows.append(row | _state(await mq.admin.runtime(broker.address)))
        except AerobeeError as error:
            rows.append(row | _state({}) | {"version": f"unreachable: {error}"})
    print_rows(rows, as_json=common.json, empty="the name servers know no broker")


def _state(table: dict[str, str]) -> dict[str, Any]:
    def rate(name: str) -> float | None:
        words = table.get(name, "").split()
        return round(float(words[0]), 1) if words else None

    def number(name: str) -> int | None:
        return int(float(table[name])) if table.get(name) else None

    disk = table.get("commitLogDiskRatio")
    return {
        "version": table.get("brokerVersionDesc"),
        "in_per_second": rate("putTps"),
        "out_per_second": rate("getTransferredTps") or rate("getTransferedTps"),
        "stored_today": number("msgPutTotalTodayNow"),
        "disk": f"{float(disk):.0%}" if disk else None,
        "up": table.get("runtime"),
    }


@cluster.command()
@connected
async def brokers(common: CommonOptions, mq: Client) -> None:
    """The brokers that the name servers know."""
    rows = [
        {"cluster": row.cluster, "broker": row.name, "id": row.number, "address": row.address}
        for row in await mq.admin.brokers()
    ]
    print_rows(rows, as_json=common.json, empty="the name servers know no broker")


@cluster.command()
@click.option("--broker", "name", help="Which broker, by name or address; default: all.")
@click.option("--grep", help="Only settings with this text in their name.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    shell_complete=setting_pairs,
    metavar="KEY=VALUE",
    help="Change it now.",
)
@connected
async def settings(
    common: CommonOptions, mq: Client, name: str | None, grep: str | None, changes: tuple[str, ...]
) -> None:
    """The settings of running brokers; --set changes those that can be changed live."""
    chosen = _choose(await mq.admin.brokers(), name)
    if changes:
        wanted = dict(pair(text, "--set") for text in changes)
        for broker in chosen:
            try:
                await mq.admin.change_settings(broker.address, wanted)
            except BrokerError as error:
                raise Failure(f"{broker.name}: {error.remark}") from None
        names = [broker.name for broker in chosen]
        text = f"{', '.join(wanted)} changed on {', '.join(names)}"
        print_done(text, {"changed": wanted, "brokers": names}, as_json=common.json)
        return
    tables = {
        row.address: {
            key: value
            for key, value in sorted((await mq.admin.settings(row.address)).items())
            if not grep or grep.lower() in key.lower()
        }
        for row in chosen
    }
    if common.json:
        print_json(tables)
        return
    rows = [
        {"broker": row.name, "key": key, "value": value}
        for row in chosen
        for key, value in tables[row.address].items()
    ]
    print_rows(rows, as_json=False, empty="no such setting")


def _choose(brokers: list[Broker], name: str | None) -> list[Broker]:
    chosen = [row for row in brokers if name is None or name in (row.name, row.address)]
    if not brokers:
        raise NotFound("the name servers know no broker")
    if not chosen:
        known = ", ".join(row.name for row in brokers)
        raise NotFound(f"no broker {name!r}; the name servers know {known}")
    return chosen


@click.command()
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option("--direct", is_flag=True, help="Only the addresses of --url, which need no user.")
@connected
async def ping(common: CommonOptions, mq: Client, count: int, direct: bool) -> None:
    """Measure how fast name servers and brokers answer."""
    addresses = [("name server", address) for address in mq.name_servers]
    try:
        brokers = [] if direct else await mq.admin.brokers()
        addresses += [(f"broker {row.name}", row.address) for row in brokers]
    except NoPermission as error:  # a refusal is a sign of life
        click.echo(f"only the name servers are queried: {error}", err=True)
    rows: list[dict[str, Any]] = []
    failed = False
    for role, address in addresses:
        try:
            times = sorted([await mq.admin.ping(address) * 1000 for _ in range(count)])
        except AerobeeError as error:
            failed = True
            rows.append({"role": role, "address": address, "best_ms": None, "answer": str(error)})
        else:
            best = round(times[0], 3)
            rows.append({"role": role, "address": address, "best_ms": best, "answer": "yes"})
    print_rows(rows, as_json=common.json, empty="there is no one to ask")
    if failed:
        raise Failure("not all of them answered", UNREACHED)
