"""The arbiter's adapter with a real etcd server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee.broker.ha.arbiter import Alive, ArbiterError, Record
from aerobee.broker.ha.etcd import EtcdArbiter
from ha.etcd_server import EtcdServer

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(120)]

FIRST = Record(1, 1, frozenset({1}), "x")
LEASE_MS = 3000


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def folder() -> str:
    return f"/test/{uuid.uuid4().hex}/orders"


@pytest.fixture
async def arbiter(etcd: EtcdServer, folder: str) -> AsyncIterator[EtcdArbiter]:
    made = EtcdArbiter([etcd.url], folder, 1, 2000)
    yield made
    await made.close()


@pytest.fixture
async def other(etcd: EtcdServer, folder: str) -> AsyncIterator[EtcdArbiter]:
    made = EtcdArbiter([etcd.url], folder, 2, 2000)
    yield made
    await made.close()


async def test_the_first_record_is_made_once(arbiter: EtcdArbiter, other: EtcdArbiter) -> None:
    assert (await arbiter.read()).record is None
    revision = await arbiter.compare_and_set(0, FIRST)
    assert revision
    assert await other.compare_and_set(0, replace(FIRST, master=2)) is None
    seen = await other.read()
    assert (seen.record, seen.revision) == (FIRST, revision)


async def test_a_change_needs_the_revision_of_now(arbiter: EtcdArbiter, other: EtcdArbiter) -> None:
    first = await arbiter.compare_and_set(0, FIRST)
    second = await other.compare_and_set(first or 0, replace(FIRST, epoch=2))
    assert second and first and second > first
    assert await arbiter.compare_and_set(first, replace(FIRST, epoch=3)) is None
    assert (await arbiter.read()).record == replace(FIRST, epoch=2)


async def test_an_announcement_lives_while_it_is_renewed(
    arbiter: EtcdArbiter, other: EtcdArbiter
) -> None:
    alive = Alive(1, "one:1", "one:2", 3, 5 << 30, leads=3)
    await arbiter.announce(alive)
    for _ in range(8):
        assert await arbiter.renew()
        await asyncio.sleep(0.4)
    assert dict((await other.read()).alive) == {1: alive}


async def test_an_announcement_expires(arbiter: EtcdArbiter, other: EtcdArbiter) -> None:
    await arbiter.announce(Alive(1))
    for _ in range(100):
        if not (await other.read()).alive:
            break
        await asyncio.sleep(0.2)
    assert not await arbiter.renew()
    await arbiter.announce(Alive(1, log_end=7))
    assert (await other.read()).alive[1].log_end == 7


async def test_an_announcement_is_taken_back_at_once(
    arbiter: EtcdArbiter, other: EtcdArbiter
) -> None:
    await arbiter.announce(Alive(1))
    await arbiter.withdraw()
    assert not (await other.read()).alive


async def test_changes_are_reported(arbiter: EtcdArbiter, other: EtcdArbiter) -> None:
    heard = asyncio.Event()

    async def listen() -> None:
        while True:
            await other.changed()
            heard.set()

    listening = asyncio.create_task(listen())
    async with asyncio.timeout(20):
        await heard.wait()  # the watch is established
    for act in (arbiter.announce(Alive(1)), arbiter.compare_and_set(0, FIRST), arbiter.withdraw()):
        heard.clear()
        async with asyncio.timeout(20):
            await act
            await heard.wait()
    listening.cancel()


@pytest.fixture
def deaf() -> Iterator[str]:
    """An endpoint that takes requests and answers none, as one whose machine is gone since we
    connected to it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def gone() -> Iterator[str]:
    """An endpoint that takes no connection and refuses none, as a machine that is gone."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(2):  # the kernel drops what comes when the queue is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["deaf", "gone"])
async def test_an_endpoint_that_does_not_answer_costs_no_lease(
    etcd: EtcdServer, folder: str, kind: str, request: pytest.FixtureRequest
) -> None:
    endpoint = request.getfixturevalue(kind)
    arbiter = EtcdArbiter([endpoint, etcd.url], folder, 1, LEASE_MS)
    try:
        await arbiter.announce(Alive(1))  # etcd is next, as the first endpoint has not answered
        arbiter._leases._failed(OSError("the endpoint is the first one again"))
        async with asyncio.timeout(LEASE_MS / 1000):
            assert await arbiter.renew()
        assert 1 in (await arbiter.read()).alive
    finally:
        await arbiter.close()


async def test_a_change_that_was_not_sent_goes_to_the_next_endpoint(
    etcd: EtcdServer, folder: str, gone: str
) -> None:
    arbiter = EtcdArbiter([gone, etcd.url], folder, 1, LEASE_MS)
    try:
        assert await arbiter.compare_and_set(0, FIRST)
    finally:
        await arbiter.close()


async def test_a_change_of_unknown_outcome_is_not_sent_twice(
    etcd: EtcdServer, folder: str, deaf: str
) -> None:
    """Else the second answer would say that it was refused, though the first was stored."""
    arbiter = EtcdArbiter([deaf, etcd.url], folder, 1, LEASE_MS)
    try:
        with pytest.raises(ArbiterError, match=deaf):
            await arbiter.compare_and_set(0, FIRST)
        assert (await arbiter.read()).record is None
    finally:
        await arbiter.close()


async def test_an_etcd_that_hangs_is_an_error_in_time(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as own:
        arbiter = EtcdArbiter([own.url], "/test/hangs", 1, 1500)
        await arbiter.read()
        os.kill(own.pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            with pytest.raises(ArbiterError):
                await arbiter.compare_and_set(0, FIRST)
        os.kill(own.pid, signal.SIGCONT)
        async with asyncio.timeout(60):
            while True:
                try:
                    await arbiter.read()
                    break
                except ArbiterError:
                    await asyncio.sleep(0.1)
        await arbiter.close()


async def test_a_user_of_etcd_signs_in(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as own:
        enable_users(own)
        # A password takes etcd a while on a busy machine: a long lease allows it longer answers.
        stranger = EtcdArbiter([own.url], "/test/users", 1, 20_000)
        user = EtcdArbiter([own.url], "/test/users", 1, 20_000, user=("root", "secret"))
        try:
            with pytest.raises(ArbiterError):
                await stranger.read()
            assert await user.compare_and_set(0, FIRST)
            await user.announce(Alive(1))
            assert await user.renew()
        finally:
            await stranger.close()
            await user.close()


def enable_users(server: EtcdServer) -> None:
    server.ask("auth/user/add", {"name": "root", "password": "secret"})
    server.ask("auth/role/add", {"name": "root"})
    server.ask("auth/user/grant", {"user": "root", "role": "root"})
    server.ask("auth/enable", {})
