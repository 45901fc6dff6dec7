"""A master and its slaves inside the test's own loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from peers.in_process import Client, pull_ext, running_broker, send_ext
from peers.tools import free_port
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.files.record import StoredMessage, decode_records
from aerobee.protocol.wire.codes import RequestCode

SMALL_LOG = {"mapped_file_size_commit_log": 64 << 10}


@asynccontextmanager
async def running_master(
    folder: Path, name: str = "master", /, **settings: Any
) -> AsyncIterator[AppBroker]:
    """With a name service, where slaves find it. A slave that is told the replication port alone
    takes the one below it for the master's own, so both are free here."""
    ports = {"namesrv_listen_port": 0, "listen_port": free_port(-2, 1)}
    values = ports | SMALL_LOG | settings
    async with running_broker(folder / name, **values) as app:
        yield app


@asynccontextmanager
async def running_slave(
    folder: Path, master: AppBroker | None, broker_id: int = 1, /, **settings: Any
) -> AsyncIterator[AppBroker]:
    named = {"namesrv_addr": f"127.0.0.1:{master.namesrv_port}"} if master else {}
    values: dict[str, Any] = (
        {"broker_role": "SLAVE", "broker_id": broker_id} | named | SMALL_LOG | settings
    )
    async with running_broker(folder / f"slave{broker_id}", **values) as app:
        yield app


def has_all_of(slave: AppBroker, master: AppBroker) -> bool:
    """The same log, dispatched to the queues."""
    ours, theirs = slave.broker.store, master.broker.store
    return ours.dispatched_offset == theirs.max_physical_offset == ours.max_physical_offset


async def in_step(slave: AppBroker, master: AppBroker, seconds: float = 20) -> None:
    await until(lambda: has_all_of(slave, master), seconds)


def log_bytes(folder: Path) -> dict[str, bytes]:
    """The files of a log that were written to."""
    files = sorted((folder / "store" / "commitlog").iterdir())
    found = {file.name: file.read_bytes().rstrip(b"\0") for file in files}
    return {name: data for name, data in found.items() if data}


async def send(client: Client, topic: str, body: bytes, queue_id: int = 0) -> int:
    """The answer's code."""
    answer = await client.request(RequestCode.SEND_MESSAGE_V2, send_ext(topic, queue_id), body)
    return answer.code


async def send_many(client: Client, topic: str, count: int, size: int = 500) -> list[bytes]:
    """Send `count` messages to queue 0, 64 per write."""
    bodies = [b"%06d " % number + bytes(size) for number in range(count)]
    assert await send(client, topic, bodies[0]) == 0
    for first in range(1, count, 64):
        commands = [
            client.command(RequestCode.SEND_MESSAGE_V2, send_ext(topic), body)
            for body in bodies[first : min(first + 64, count)]
        ]
        answers = await client.ask_all(commands)
        assert {answer.code for answer in answers} == {0}
    return bodies


async def pull_all(client: Client, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while True:
        ext = pull_ext(topic, queue_id, len(found))
        answer = await client.request(RequestCode.PULL_MESSAGE, ext)
        if answer.code != 0:
            return found
        found += decode_records(answer.body)
