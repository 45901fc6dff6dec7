"""Replication with access control and TLS: a slave signs in, any other client gets nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog
from access.guarded import USERS, Asker, send_fields, write_users
from tls.certificates import Authority
from tls.served import Watched, client_context
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from ha.pairs import in_step, running_master, running_slave

INNER = '{"accessKey":"inner","secretKey":"a-secret-of-inner"}'


def locked(folder: Path, **more: Any) -> dict[str, Any]:
    users = str(write_users(folder, USERS))
    inner = {"inner_client_authentication_credentials": INNER}
    return {"acl_enable": True, "acl_file": users} | inner | more


async def fill(master: AppBroker, count: int = 50, **options: Any) -> None:
    async with Asker.connected(master.broker_port, **options) as asker:
        for _ in range(count):
            answer = await asker.ask("root", 310, send_fields("t"), b"s3cr3t" * 100)
            assert answer.code == 0, answer.remark


async def read_log_of(master: AppBroker) -> bytes:
    """What an unsigned client gets that only reports offset 0."""
    reader, writer = await asyncio.open_connection("127.0.0.1", master.broker.addresses.ha_port)
    try:
        writer.write(bytes(8))
        async with asyncio.timeout(0.5):
            return await reader.read(1 << 16)
    except (TimeoutError, ConnectionError):
        return b""
    finally:
        writer.close()


async def test_a_slave_with_credentials_follows_and_a_stranger_gets_nothing(tmp_path: Path) -> None:
    values = locked(tmp_path)
    async with running_master(tmp_path, **values) as master:
        await fill(master)
        assert await read_log_of(master) == b""
        async with running_slave(tmp_path, master, **values) as slave:
            await in_step(slave, master)
            await fill(master)
            await in_step(slave, master)
    async with running_master(tmp_path, "open", slaves_need_signature=False, **values) as master:
        await fill(master, 1)
        assert b"s3cr3t" in await read_log_of(master)


async def test_a_slave_without_rights_says_why_it_does_not_follow(tmp_path: Path) -> None:
    values = locked(tmp_path)
    other = values | {
        "inner_client_authentication_credentials": INNER.replace("of-inner", "of-nobody")
    }
    async with running_master(tmp_path, **values) as master:
        await fill(master)
        way = {"ha_master_address": f"127.0.0.1:{master.broker.addresses.ha_port}"}
        with structlog.testing.capture_logs() as lines:
            async with running_slave(tmp_path, None, **way, **other) as slave:
                await until(lambda: any("not following" in line["event"] for line in lines))
                assert slave.broker.store.max_physical_offset == 0
        [told] = [line for line in lines if "not following" in line["event"]]
        assert "User:inner" in told["reason"]


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
async def test_the_stream_goes_under_tls_if_the_slave_is_told_to(tmp_path: Path, mode: str) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.sign("server")
    tls = {
        "tls_server_cert_path": pair.certificate,
        "tls_server_key_path": pair.key,
        "tls_server_mode": mode,
    }
    client = {"tls_enable": True, "tls_client_trust_cert_path": authority.pair.certificate}
    values = locked(tmp_path)
    # Behind the relay the slave's address differs from the one it reports.
    unsigned = {"slaves_need_signature": False}
    async with running_master(tmp_path, **values, **tls, **client, **unsigned) as master:
        await fill(master, ssl=client_context(authority))
        watched = Watched(master.broker.addresses.ha_port)
        async with watched.listening() as port:
            way = {"ha_master_address": f"127.0.0.1:{port}"}
            async with running_slave(tmp_path, master, **values, **client, **way) as slave:
                for _ in range(3):
                    await in_step(slave, master)
                    await fill(master, ssl=client_context(authority))
                await in_step(slave, master)
                assert slave.broker.store.max_physical_offset > 50_000
        assert len(watched.seen) > 50_000
        assert b"s3cr3t" not in watched.seen
        if mode == "enforcing":
            assert await read_log_of(master) == b""
