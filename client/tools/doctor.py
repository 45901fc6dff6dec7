"""The usual troubles of a cluster, each with its remedy."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Literal

from aerobee.client.admin.types import Broker
from aerobee.client.client import Client
from aerobee.client.errors import AerobeeError, ConnectFailed, NoPermission, NoRoute
from aerobee.client.transport.url import parse_url
from aerobee.protocol.names import TEMPLATE_TOPIC

CLOCK_SECONDS_MAX: Final = 2.0
OPEN_FILES_MIN: Final = 4096
BROKER_PORT: Final = 10911

Verdict = Literal["ok", "warning", "trouble"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    verdict: Verdict
    what: str
    finding: str
    remedy: str = ""


async def examine(url: str | None, topic: str | None, seconds: float) -> list[Finding]:
    """Everything, from the name servers' ports on."""
    servers, _ = parse_url(url)
    findings = [await _listening(server, seconds) for server in servers]
    findings.append(_open_files())
    if all(row.verdict == "trouble" for row in findings[: len(servers)]):
        return findings
    client = Client(url, timeout=seconds)
    try:
        await client.open()
        findings += [row async for row in examine_cluster(client)]
        if topic is not None:
            findings.append(await _topic(client, topic))
    except AerobeeError as error:
        remedy = "is this the port of a name server (9876), not of something else?"
        if isinstance(error, NoPermission):
            remedy = "ask as a user that may Get the Cluster: `aerobee acl grant` gives the right"
        findings.append(Finding("trouble", "the cluster", str(error), remedy))
    finally:
        await client.close()
    return findings


async def _listening(server: str, seconds: float) -> Finding:
    """Is the port open; and if not, the port that is often meant?"""
    what = f"name server {server}"
    host, _, port = server.rpartition(":")
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except TimeoutError:
        remedy = "check the address, the firewall, and `docker -p` port mappings"
        return Finding("trouble", what, f"no connection within {seconds:g} s", remedy)
    except OSError as error:
        remedy = await _other_port(host, port)
        return Finding("trouble", what, str(error.strerror or error), remedy)
    except UnicodeError as error:
        return Finding("trouble", what, f"no host name: {error}", "correct --url")
    return Finding("ok", what, "accepts connections")


async def _other_port(host: str, port: str) -> str:
    for other in {9876, BROKER_PORT} - {int(port)}:
        try:
            async with asyncio.timeout(1):
                _, writer = await asyncio.open_connection(host.strip("[]"), other)
            writer.close()
        except (OSError, TimeoutError):
            continue
        return f"something listens on {host}:{other}: did you mean that port?"
    return "start it with `aerobee broker` (it is its own name server), or correct --url"


def _open_files() -> Finding:
    what = "open files of this process"
    try:
        import resource
    except ImportError:
        return Finding("ok", what, "this system has no such limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES_MIN:
        remedy = f"`ulimit -n {max(OPEN_FILES_MIN, 65536)}` before a broker runs here"
        return Finding("warning", what, f"{soft} (hard limit {hard})", remedy)
    return Finding("ok", what, f"{soft}")


async def examine_cluster(client: Client) -> AsyncIterator[Finding]:
    """What a client that is connected can see."""
    brokers = await client.admin.brokers()
    if not brokers:
        yield Finding(
            "trouble",
            "brokers",
            "the name servers know none",
            "start a broker with namesrvAddr pointing at these name servers",
        )
        return
    yield Finding("ok", "brokers", ", ".join(f"{row.name} at {row.address}" for row in brokers))
    headless = {row.name for row in brokers} - {row.name for row in brokers if row.number == 0}
    for name in sorted(headless):
        remedy = "only masters take messages: start it, or make a slave one by `aerobee promote`"
        yield Finding("trouble", f"master of {name}", "only slaves are there", remedy)
    yield await _template(client)
    for broker in brokers:
        async for finding in _broker(client, broker):
            yield finding


async def _template(client: Client) -> Finding:
    what = "auto-creation of topics"
    try:
        await client.queues(TEMPLATE_TOPIC)
    except NoRoute:
        remedy = "create topics with `aerobee topic create`, or set autoCreateTopicEnable=true"
        return Finding("warning", what, "off", remedy)
    return Finding("ok", what, "on")


async def _broker(client: Client, broker: Broker) -> AsyncIterator[Finding]:
    what = f"broker {broker.name}"
    begun = time.time()
    try:
        state = await client.admin.runtime(broker.address)
    except ConnectFailed as error:
        yield Finding(
            "trouble",
            what,
            f"its route says {broker.address}, and there: {error}",
            "if that address is an inner one, set brokerIP1 or advertisedAddr on the broker",
        )
        return
    except AerobeeError as error:
        yield Finding("trouble", what, str(error), "check the broker's log")
        return
    yield Finding(
        "ok", what, f"answers at {broker.address} in {(time.time() - begun) * 1000:.1f} ms"
    )
    if broker.number:
        async for finding in _following(client, broker, what):
            yield finding
    elif refused := state.get("sendsRefused"):
        yield Finding("trouble", f"{what}: sends", f"they are refused: {refused}")
    if "failover" in state:
        yield await _failover(client, broker, what)
    yield _disk(what, state)
    if groups := state.get("subscriptionConflicts"):
        yield Finding(
            "trouble",
            f"{what}: subscriptions",
            f"members of {groups} subscribe differently, so messages are lost",
            "give all members of a group the same topics and filters: `aerobee group show`",
        )
    yield _clock(what, state, begun)
    yield await _writing(client, broker, what)


async def _following(client: Client, broker: Broker, what: str) -> AsyncIterator[Finding]:
    name = f"{what}: replication"
    try:
        status = await client.admin.replication(broker.address)
    except AerobeeError as error:
        yield Finding("warning", name, f"slave {broker.number} does not report: {error}")
        return
    if differs := (status.get("access") or {}).get("differs"):
        text = f"of slave {broker.number}: {differs}"
        remedy = "give it the master's users: docs/security.md, Replicas and name servers"
        yield Finding("trouble", f"{what}: users", text, remedy)
    master = (status.get("haClientRuntimeInfo") or {}).get("masterAddr")
    if not master:
        remedy = "its log says why: `not following the master`; see also `aerobee replicas`"
        yield Finding("trouble", name, f"slave {broker.number} follows no master", remedy)
        return
    yield Finding("ok", name, f"slave {broker.number} follows {master}")


async def _failover(client: Client, broker: Broker, what: str) -> Finding:
    name = f"{what}: failover"
    try:
        state = (await client.admin.replication(broker.address))["failover"]
    except (AerobeeError, KeyError) as error:
        return Finding("warning", name, f"it does not report: {error}")
    if state.get("awaySeconds") is not None:  # null is not sent
        who = state.get("arbiter", "etcd")
        text = f"{who} has not answered for {state['awaySeconds']:.0f} s: {state['awayReason']}"
        setting = "etcdEndpoints" if who == "etcd" else "controllerAddr"
        return Finding("trouble", name, text, f"start {who}, or see {setting} of this broker")
    if state["waitsFor"]:
        return Finding("trouble", name, state["waitsFor"])
    members = ", ".join(map(str, state["inSync"]))
    if state["leads"] and len(state["inSync"]) == 1:
        remedy = "start its replicas; `aerobee replicas` shows them"
        return Finding(
            "warning", name, "only the master is in sync: no replica can take over", remedy
        )
    if state["leads"] and state["ack"] == "MASTER":
        remedy = "failoverAck=IN_SYNC waits for the replicas"
        text = f"in sync: {members}; a failover loses what was answered before it was copied"
        return Finding("warning", name, text, remedy)
    return Finding("ok", name, f"epoch {state['epoch']}, in sync: {members}")


def _disk(what: str, state: dict[str, str]) -> Finding:
    name = f"{what}: disk"
    ratio = state.get("commitLogDiskRatio")
    if not ratio:
        return Finding("warning", name, "it does not report", "")
    used = float(ratio)
    text = f"{used:.0%} used"
    if used >= 0.9 and "sendsRefused" not in state:  # else it has said itself whether it refuses
        remedy = (
            "writes are refused from diskSpaceWarningLevelRatio on: free space, or lower "
            "fileReservedTime"
        )
        return Finding("trouble", name, text, remedy)
    if used >= 0.75:
        remedy = "old files are deleted early from diskMaxUsedSpaceRatio on"
        return Finding("warning", name, text, remedy)
    return Finding("ok", name, text)


async def _writing(client: Client, broker: Broker, what: str) -> Finding:
    name = f"{what}: permission"
    try:
        settings = await client.admin.settings(broker.address)
    except AerobeeError as error:
        return Finding("warning", name, str(error), "may this client ask for settings?")
    permission = settings.get("brokerPermission", "6")
    if permission not in ("6", "7"):
        remedy = "set brokerPermission=6 when it should take and give messages again"
        return Finding("trouble", name, f"brokerPermission is {permission}", remedy)
    return Finding("ok", name, "it may be read and written")


def _clock(what: str, state: dict[str, str], asked_at: float) -> Finding:
    """Its time now is when it started plus how long it runs, to a second."""
    name = f"{what}: clock"
    parts = [int(part) for part in re.findall(r"\d+", state.get("runtime", ""))]
    if len(parts) != 4 or not state.get("bootTimestamp", "").isdigit():
        return Finding("warning", name, "it does not report its time")
    days, hours, minutes, seconds = parts
    running = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    off = asked_at - (int(state["bootTimestamp"]) / 1000 + running)
    if not -CLOCK_SECONDS_MAX <= off <= CLOCK_SECONDS_MAX + 1:
        remedy = "set both clocks by NTP: delays, retention and queries by time depend on them"
        return Finding("warning", name, f"{off:.0f} s apart from this machine's", remedy)
    return Finding("ok", name, "agrees with this machine's")


async def _topic(client: Client, topic: str) -> Finding:
    what = f"topic {topic}"
    try:
        queues = await client.queues(topic)
    except NoRoute as error:
        return Finding("trouble", what, str(error), f"`aerobee topic create {topic}`")
    if not queues:
        return Finding("trouble", what, "no readable queue", "check the topic's permission")
    return Finding("ok", what, f"{len(queues)} queues")
