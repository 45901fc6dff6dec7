"""Access to the replication port. It survives a lack of file descriptors, and slaves that are still
signing in are limited and forgotten."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from aerobee.broker.ha import master_links
from aerobee.broker.ha.admission import NotAdmitted
from aerobee.broker.ha.copies import Copies
from aerobee.broker.ha.epochs import EpochFile
from aerobee.broker.ha.master_links import MasterLinks
from aerobee.broker.net.server import bind
from ha.pairs import running_master


@asynccontextmanager
async def replication_port(
    folder: Path, host: str = "127.0.0.1", *, signed: bool
) -> AsyncIterator[tuple[Any, int]]:
    """The replication port of a broker, and its number."""
    async with running_master(folder) as app:
        store = app.broker.store
        copies = Copies(app.clock, lambda: 0, needed=0, behind_max=0, timeout_ms=0)
        epochs = EpochFile(str(folder / "epochs"), store.disk)
        links = MasterLinks(app.settings, store, app.clock, copies, epochs)
        links.must_sign_in = signed
        listening = bind(host, 0)
        listening.listen()
        port = listening.getsockname()[1]
        accepting = asyncio.create_task(links.accept(listening))
        try:
            yield links, port
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)


async def knock(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def test_slaves_are_accepted_again_after_a_lack_of_file_descriptors(
    tmp_path: Path,
) -> None:
    class Poor:
        """The loop, without file descriptors."""

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self._loop, self.refused = loop, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._loop, name)

        async def sock_accept(self, sock: socket.socket) -> tuple[socket.socket, Any]:
            if self.refused < 2:
                self.refused += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return await self._loop.sock_accept(sock)

    async with replication_port(tmp_path, signed=False) as (links, port):
        links._loop = poor = Poor(asyncio.get_running_loop())
        _, writer = await knock(port)
        await until(lambda: links.links)
        assert poor.refused == 2
        writer.close()


async def test_the_number_of_slaves_signing_in_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_links, "SIGNING_IN_MAX", 3)
    async with replication_port(tmp_path, signed=True) as (links, port):
        waiting = [await knock(port) for _ in range(3)]
        await until(lambda: len(links._signing_in) == 3)
        reader, writer = await knock(port)
        async with asyncio.timeout(10):
            assert await reader.read(1) == b"", "closed"
        assert len(links._signing_in) == 3
        for each in [writer, *(pair[1] for pair in waiting)]:
            each.close()


async def test_a_host_that_does_not_sign_in_keeps_no_other_out(tmp_path: Path) -> None:
    async with replication_port(tmp_path, signed=True) as (links, port):
        waiting = [await knock(port) for _ in range(master_links.SIGNING_IN_MAX)]
        async with asyncio.timeout(10):  # the last ones are refused
            assert await waiting[-1][0].read(1) == b""
        slave = socket.socket()
        slave.bind(("127.0.0.2", 0))
        slave.setblocking(False)
        await asyncio.get_running_loop().sock_connect(slave, ("127.0.0.1", port))
        links.identify(slave.getsockname(), 1)
        await until(lambda: links.links)
        slave.close()
        for _, writer in waiting:
            writer.close()


async def test_a_slave_with_ipv4_signs_in_at_a_port_for_ipv6_and_ipv4(tmp_path: Path) -> None:
    async with replication_port(tmp_path, "::", signed=True) as (links, port):
        _, writer = await knock(port)
        links.identify(writer.get_extra_info("sockname"), 1)
        await until(lambda: links.links)
        assert links.who_is(links.links[0].peer) == 1
        writer.close()


async def test_a_sign_in_without_a_connection_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_links, "SIGN_IN_S", 0.2)
    async with replication_port(tmp_path, signed=True) as (links, port):
        _, writer = await knock(port)
        ours = writer.get_extra_info("sockname")
        links.identify(ours, 1)
        links.identify(("127.0.0.1", 1), 2)
        await until(lambda: links.links)
        await until(lambda: links.who_is(("127.0.0.1", 1)) != 2)
        assert links.who_is(ours) == 1, "it is as old, and has a link"
        writer.close()


async def test_a_refused_sign_in_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any, **__: Any) -> socket.socket:
        await asyncio.sleep(0.05)
        raise NotAdmitted("for a test")

    monkeypatch.setattr(master_links, "admitted", refused)
    async with replication_port(tmp_path, signed=True) as (links, port):
        reader, writer = await knock(port)
        links.identify(writer.get_extra_info("sockname"), 1)
        async with asyncio.timeout(10):
            assert await reader.read(1) == b"", "closed"
        assert not links._broker_ids
        writer.close()
