"""A real etcd that asks for certificates and passwords: it works, and errors are reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import running_broker
from tls.certificates import Authority, Pair
from waiting import until

from aerobee.broker.daemon.failover_wiring import etcd_of
from aerobee.broker.ha.arbiter import Alive, ArbiterError, Record
from aerobee.broker.ha.etcd import EtcdArbiter
from aerobee.broker.net.listening import StartError
from aerobee.broker.settings import Settings
from aerobee.protocol.tls import client_context
from ha.etcd_server import EtcdServer
from ha.test_etcd import enable_users

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(180)]

FIRST = Record(1, 1, frozenset({1}), "x")


@dataclass(frozen=True)
class Locked:
    """An etcd with TLS that asks for a certificate and a user, and what opens it."""

    server: EtcdServer
    authority: Authority
    ours: Pair

    def settings(self, **other: Any) -> dict[str, Any]:
        values = {
            "etcd_endpoints": self.server.url,
            "etcd_ca_file": self.authority.pair.certificate,
            "etcd_cert_file": self.ours.certificate,
            "etcd_key_file": self.ours.key,
            "etcd_user": "root",
            "etcd_password": "secret",
        }
        return values | other


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    authority = Authority(folder / "ca")
    # etcd's own certificate too, which its gateway shows to itself.
    theirs = authority.sign("etcd", subject="/O=etcd")
    ours = authority.sign("broker", subject="/O=broker")
    options = (
        f"--cert-file={theirs.certificate}",
        f"--key-file={theirs.key}",
        f"--trusted-ca-file={authority.pair.certificate}",
        "--client-cert-auth",
    )
    context = client_context(authority.pair.certificate, certificate=ours.certificate, key=ours.key)
    with EtcdServer(folder / "server", *options, context=context) as server:
        enable_users(server)
        yield Locked(server, authority, ours)


@asynccontextmanager
async def arbiter(etcd: Locked, **other: Any) -> AsyncIterator[EtcdArbiter]:
    made = etcd_of(Settings(broker_name="orders", **etcd.settings(**other)), 1)
    try:
        yield made
    finally:
        await made.close()


async def test_a_certificate_and_a_password_open_it(etcd: Locked) -> None:
    async with arbiter(etcd, etcd_prefix="/opened") as own:
        assert await own.compare_and_set(0, FIRST)
        await own.announce(Alive(1))
        assert await own.renew()
        told = asyncio.create_task(own.changed())  # a new watch tells of itself
        await asyncio.wait_for(told, 60)
        assert (await own.read()).record == FIRST
        await own.withdraw()


async def test_a_broker_is_elected_by_it(etcd: Locked, tmp_path: Path) -> None:
    values = etcd.settings(etcd_prefix="/elected", broker_id=1)
    async with running_broker(tmp_path, **values) as app:
        await until(lambda: app.is_ready and not app.settings.is_slave, 60)
        assert app.broker.replication.failover()["leads"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"etcd_password": "wrong"}, "invalid user ID or password; see etcdUser"),
        ({"etcd_user": "nobody"}, "invalid user ID or password; see etcdUser"),
        ({"etcd_user": ""}, "see etcdUser"),
        ({"etcd_cert_file": "", "etcd_key_file": ""}, "see etcdEndpoints, etcdCertFile"),
        ({"etcd_ca_file": ""}, "certificate verify failed.*see etcdCaFile"),
    ],
)
async def test_what_does_not_open_it_is_named(
    etcd: Locked, wrong: dict[str, str], told: str
) -> None:
    async with arbiter(etcd, **wrong) as own:
        with pytest.raises(ArbiterError, match=told) as caught:
            await own.read()
        assert etcd.server.url in str(caught.value)
        assert "secret" not in str(caught.value)
        with pytest.raises(ArbiterError, match=told):  # twice: no stale state
            await own.announce(Alive(1))


async def test_a_certificate_of_somebody_else_does_not_open_it(
    etcd: Locked, tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    pair = other.sign("broker", subject="/O=broker")
    wrong = {"etcd_cert_file": pair.certificate, "etcd_key_file": pair.key}
    async with arbiter(etcd, **wrong) as own:
        with pytest.raises(ArbiterError, match="see etcdEndpoints, etcdCertFile"):
            await own.read()
    named = etcd.authority.sign("named")
    wrong = {"etcd_cert_file": named.certificate, "etcd_key_file": named.key}
    async with arbiter(etcd, **wrong) as own:
        with pytest.raises(ArbiterError, match="certificates without a CN: see etcdCertFile"):
            await own.read()
    async with arbiter(etcd, etcd_ca_file=other.pair.certificate) as own:
        with pytest.raises(ArbiterError, match=r"certificate verify failed.*see etcdCaFile"):
            await own.read()


async def test_another_host_than_its_certificate_names_is_not_believed(etcd: Locked) -> None:
    url = etcd.server.url.replace("127.0.0.1", "127.0.0.2")
    listening = etcd.server.url.rpartition(":")[2]
    server = await asyncio.start_server(_through(int(listening)), "127.0.0.2", int(listening))
    async with server, arbiter(etcd, etcd_endpoints=url) as own:
        with pytest.raises(ArbiterError, match=r"127\.0\.0\.2.*see etcdCaFile"):
            await own.read()


async def test_tls_is_used_where_etcd_uses_it(etcd: Locked, tmp_path: Path) -> None:
    plain = etcd.server.url.replace("https", "http")
    async with arbiter(etcd, etcd_endpoints=plain, etcd_user="") as own:
        with pytest.raises(ArbiterError, match="https"):
            await own.read()
    with EtcdServer(tmp_path) as server:
        secure = server.url.replace("http", "https")
        async with arbiter(etcd, etcd_endpoints=secure) as own:
            with pytest.raises(ArbiterError, match="does etcd speak TLS there"):
                await own.read()


def test_a_key_with_a_password_is_refused_at_the_start(etcd: Locked, tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("broker", password="a password")
    values = etcd.settings(etcd_cert_file=pair.certificate, etcd_key_file=pair.key)
    with pytest.raises(StartError, match="etcdKeyFile"):
        etcd_of(Settings(broker_name="orders", **values), 1)


def _through(port: int) -> Any:
    """To the same server, by another address."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        writers = (inner_writer, writer)
        try:
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
        except OSError:
            pass
        finally:
            for each in writers:
                each.close()

    return carry


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()
