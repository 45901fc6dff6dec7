"""Changes of role inside one process, by a real etcd or by hand: what may go wrong on the way."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import running_broker
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.net.listening import StartError
from aerobee.broker.store.refusals import Cause
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.conversation import frame_parts
from ha.etcd_server import EtcdServer
from ha.pairs import in_step, running_master, running_slave

FAR_TOO_LONG_S = 600  # far beyond what the test waits for the new master


@pytest.mark.etcd
@pytest.mark.timeout(120)
async def test_an_elected_broker_whose_start_fails_tries_again_and_refuses_while_it_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epoch is on disk by then, and the record names nobody else."""
    opened, run, tries = AppBroker._opened, AppBroker._run, []
    start_replication = AppBroker._start_replication
    refused: list[bool] = []

    def fail_first(self: AppBroker, cut_to: int | None) -> None:
        opened(self, cut_to)
        if not self.settings.is_slave:
            tries.append(self.roles.epoch)
            if len(tries) == 1:
                raise RuntimeError("a mistake of ours")

    async def fail_then(self: AppBroker) -> None:
        if len(tries) == 2:
            raise StartError("a port is taken")
        await run(self)

    def note(self: AppBroker) -> Any:
        """Before it listens."""
        found = start_replication(self)
        if not self.settings.is_slave:
            refused.append(Cause.FEW_IN_SYNC in self.broker.store.refusals)
        return found

    monkeypatch.setattr(AppBroker, "_opened", fail_first)
    monkeypatch.setattr(AppBroker, "_run", fail_then)
    monkeypatch.setattr(AppBroker, "_start_replication", note)
    with EtcdServer(tmp_path / "etcd") as etcd:
        settings: dict[str, Any] = {"etcd_endpoints": etcd.url, "broker_id": 1}
        settings |= {"min_in_sync_replicas": 2}
        async with running_broker(tmp_path / "broker", **settings) as app:
            await until(lambda: app.is_ready and not app.settings.is_slave, 60)
            assert tries == [1, 1, 1] and refused == [True]
            assert "minInSyncReplicas" in app.health()
            life = app.life
            app._role_change.cut_log(0)  # asked for before it was elected
            task = app._role_change._task
            assert task is not None
            await task
            assert app.life is life, "it has not started again"


async def test_a_replica_with_a_new_master_takes_nothing_more_from_the_first(
    tmp_path: Path,
) -> None:
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        await in_step(slave, master)
        following = slave._role_change.following
        assert following is not None
        await until(lambda: following.follows, 30)
        link = following._link
        first, stream = link.master, link._stream
        assert first is not None
        await following.follow_master(first.main, first.ha)
        assert link._stream is stream, "the same one is followed on"
        await following.follow_master("127.0.0.1:1", "127.0.0.1:2")
        assert not following.follows


async def test_a_promotion_waits_for_nobody_whose_machine_may_be_gone(tmp_path: Path) -> None:
    """Neither a name server that does not answer, nor a client that does not read."""
    async with (
        running_master(tmp_path) as master,
        _Relay(master.namesrv_port) as names,
        running_slave(
            tmp_path,
            None,
            1,
            namesrv_addr=names.address,
            shutdown_wait_time_seconds=FAR_TOO_LONG_S,
        ) as slave,
    ):
        await in_step(slave, master)
        following = slave._role_change.following
        assert following is not None
        await until(lambda: following.follows, 30)
        with socket.create_connection(("127.0.0.1", slave.broker_port)) as unread:
            await _fill(unread, slave)
            names.is_gone = True
            slave._role_change.promote("ASYNC_MASTER", force=True)
            await until(lambda: slave.is_ready and not slave.settings.is_slave, 60)


class _Relay:
    """In front of a server; nothing comes through once it is gone."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self.is_gone = False

    async def __aenter__(self) -> _Relay:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _connected(self, here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        there, on = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += back, on
        with suppress(OSError):
            await asyncio.gather(self._carry(here, on), self._carry(there, back))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            if not self.is_gone:
                target.write(data)
        target.close()


async def _fill(client: socket.socket, app: AppBroker) -> None:
    """Ask for more than the sockets take, and read nothing."""
    client.setblocking(False)
    ask = b"".join(frame_parts(Command(RequestCode.GET_BROKER_CONFIG, {})))

    def is_full() -> bool:
        with suppress(BlockingIOError):
            client.send(ask * 100)
        assert app._server is not None
        return any(connection.outbox.unsent > 100_000 for connection in app._server.connections)

    await until(is_full, 60)
