"""The SDK and the pipeline under TLS."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from access.guarded import guarded_broker, send_fields
from peers.in_process import running_broker
from waiting import until

from aerobee import AerobeeError, ConnectFailed, connect
from aerobee.broker.daemon.app import AppBroker
from aerobee.pipeline.errors import OptionError
from aerobee.pipeline.wire import Access, Cluster, Link
from tls.certificates import Authority, Pair
from tls.served import tls_settings


def url_of(app: AppBroker, options: str, login: str = "") -> str:
    return f"mqs://{login}127.0.0.1:{app.namesrv_port}?{options}"


async def test_the_sdk_speaks_tls_and_believes_whom_it_should(
    tmp_path: Path, authority: Authority, server: Pair
) -> None:
    async with guarded_broker(tmp_path, **tls_settings(server, tls_server_mode="enforcing")) as app:
        trusted = f"ca={authority.pair.certificate}"
        login = "root:a-secret-of-root@"
        async with connect(url_of(app, trusted, login)) as mq:
            await mq.send("t", b"x" * 100_000)
            async with mq.consumer("t", group="g", start="first") as inbox:
                async for message in inbox:
                    assert len(message.body) == 100_000
                    await message.ack()
                    break
        with pytest.raises(ConnectFailed, match=r"issuer certificate.*ca=FILE"):
            await connect(url_of(app, "verify=full", login))
        async with connect(url_of(app, "verify=none", login)) as mq:
            await mq.send("t", b"x")


async def test_a_client_without_tls_is_told_what_is_wanted_and_says_so_once(
    tmp_path: Path, server: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    settings = tls_settings(server, tls_server_mode="enforcing")
    async with (
        guarded_broker(tmp_path, **settings) as app,
        connect(f"mq://127.0.0.1:{app.namesrv_port}") as mq,
    ):
        with pytest.raises(AerobeeError, match="if it expects TLS, use mqs://"):
            await mq.send("orders", b"x", timeout=0.5)
    said = [row.getMessage() for row in caplog.records if row.name == "aerobee.connection"]
    assert len(said) == 1 and "is lost" in said[0], said


async def test_a_certificate_of_another_host_is_refused(
    tmp_path: Path, authority: Authority
) -> None:
    other = authority.sign("other", "DNS:elsewhere.example.org")
    trusted = f"ca={authority.pair.certificate}"
    async with running_broker(tmp_path, **tls_settings(other)) as app:
        with pytest.raises(ConnectFailed, match=r"mismatch.*must name this host"):
            await connect(url_of(app, trusted))
        async with connect(url_of(app, f"{trusted}&verify=ca")) as mq:
            await mq.send("t", b"x")


async def test_a_certificate_that_signs_itself_or_is_too_old_is_refused(
    tmp_path: Path, authority: Authority
) -> None:
    for pair, trusted, says in (
        (Authority(tmp_path / "own", "own").pair, "verify=full", "self-signed.*ca=FILE"),
        (authority.sign("old", days=0), f"ca={authority.pair.certificate}", "expired.*a new"),
    ):
        async with running_broker(tmp_path, **tls_settings(pair)) as app:

            async def is_refused(url: str = url_of(app, trusted), says: str = says) -> bool:
                try:
                    async with connect(url):
                        return False  # its last second is not over
                except ConnectFailed as error:
                    return re.search(says, str(error)) is not None

            await until(is_refused, 30)


async def test_sparks_link_speaks_tls(tmp_path: Path, authority: Authority, server: Pair) -> None:
    async with running_broker(tmp_path, **tls_settings(server)) as app:
        access = Access((), tls=True, ca_file=authority.pair.certificate)

        def ask() -> int:
            link = Link(f"127.0.0.1:{app.broker_port}", access)
            try:
                fields = {key: str(value) for key, value in send_fields("t").items()}
                return link.request(310, fields, b"x").code
            finally:
                link.close()

        assert await asyncio.to_thread(ask) == 0


@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_sparks_link_names_a_ca_file_that_cannot_be_used(
    tmp_path: Path, content: str | None
) -> None:
    """It is no server that is away: waiting for it would not help."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with (
        Cluster(Access(("127.0.0.1:1",), tls=True, ca_file=str(path))) as cluster,
        pytest.raises(OptionError, match=r"option tlsCaFile: .*ca\.pem cannot be used"),
    ):
        cluster.topics()
