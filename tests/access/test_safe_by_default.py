"""What is open was opened explicitly; limits; signed registration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import running_broker
from tls.certificates import Authority
from waiting import until

from access.guarded import Asker, guarded_broker, make_topics, send_fields, write_users
from aerobee.broker.auth.guard import GUESSES_MAX
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.net.listening import StartError
from aerobee.broker.settings import Settings

INNER = '{"accessKey":"inner","secretKey":"a-secret-of-inner"}'


@pytest.mark.parametrize("make", [AppBroker, AppNameServer])
async def test_a_bind_beyond_this_machine_needs_users_or_an_explicit_setting(
    tmp_path: Path, make: Any
) -> None:
    values: dict[str, Any] = {
        "listen_port": 0,
        "namesrv_listen_port": 0,
        "bind_address": "0.0.0.0",
        "metrics_exporter_type": "DISABLE",
        "store_path_root_dir": str(tmp_path / "store"),
    }
    with pytest.raises(StartError, match=r"aclEnable=true.*allowAnonymous=true"):
        await make(Settings(**values)).start()
    write_users(tmp_path)
    for said in ({"allow_anonymous": True}, {"acl_enable": True, "folder": str(tmp_path)}):
        app = make(Settings(**values, **said))
        await app.start()
        await app.stop()


async def test_a_connection_that_guesses_secrets_is_closed(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path) as app:
        async with Asker.connected(app.broker_port) as asker:
            for _ in range(GUESSES_MAX):
                answer = await asker.ask("pub", 310, send_fields("t"), b"x", secret="a guess")
                assert answer.code == 16
            await asyncio.wait_for(asker._reading, 10)
        async with Asker.connected(app.broker_port) as asker:
            assert (await asker.ask("root", 26)).code == 0


async def test_one_address_has_so_many_connections_and_no_more(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, max_connections_per_address=2) as app,
        Asker.connected(app.broker_port) as one,
    ):
        async with Asker.connected(app.broker_port) as two:
            for asker in (one, two):
                assert (await asker.ask("", 310, send_fields("t"), b"x")).code == 0
            async with Asker.connected(app.broker_port) as three:
                await asyncio.gather(three._reading, return_exceptions=True)
        assert app._server is not None
        server = app._server
        await until(lambda: len(server.connections) == 1)
        async with Asker.connected(app.broker_port) as again:
            assert (await again.ask("", 310, send_fields("t"), b"x")).code == 0


async def test_a_broker_registers_signed_and_under_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    pair = authority.sign("names")
    names = AppNameServer(
        Settings(
            namesrv_listen_port=0,
            store_path_root_dir=str(tmp_path / "names"),
            acl_enable=True,
            inner_client_authentication_credentials=INNER,
            tls_server_mode="enforcing",
            tls_server_cert_path=pair.certificate,
            tls_server_key_path=pair.key,
        )
    )
    await names.start()
    try:
        settings: dict[str, Any] = {
            "namesrv_addr": f"127.0.0.1:{names.namesrv_port}",
            "tls_enable": True,
            "tls_client_trust_cert_path": authority.pair.certificate,
        }
        async with running_broker(tmp_path / "unsigned", broker_name="broker-u", **settings):
            await until(lambda: names.guard.audit.denials["unsigned"] > 0)
        settings |= {"inner_client_authentication_credentials": INNER}
        async with guarded_broker(tmp_path / "signed", broker_name="broker-s", **settings) as app:
            await make_topics(app, "t")
            known = names.name_service.routes.brokers
            await until(lambda: any("broker-s" in str(each) for each in known("")))
            assert not any("broker-u" in str(each) for each in known(""))
    finally:
        await names.stop()
