"""TLS on the broker's own ports: what goes over the wire, who is believed, reloads."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from access.guarded import Asker, guarded_broker, make_topics, send_fields
from effort import examples
from peers.in_process import running_broker
from waiting import until

from aerobee import AerobeeError, ConnectFailed, connect
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.net.listening import StartError
from aerobee.broker.net.tls import TlsTransport
from aerobee.pipeline.wire import Access, Link
from tls.certificates import Authority, Pair

RELOADS = int(os.environ.get("AEROBEE_RELOADS", examples(200, share=50)))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.sign("server")


def tls_settings(pair: Pair, **more: Any) -> dict[str, Any]:
    paths = {"tls_server_cert_path": pair.certificate, "tls_server_key_path": pair.key}
    return paths | {"namesrv_listen_port": 0} | more


def client_context(authority: Authority, **limits: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.pair.certificate)
    # As Java and Python before 3.13: authorities of a house seldom have all extensions.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    for name, value in limits.items():
        setattr(context, name, value)
    return context


class Watched:
    """A way to the broker that keeps every byte that the broker sends."""

    def __init__(self, port: int) -> None:
        self.target, self.seen = port, bytearray()

    @asynccontextmanager
    async def listening(self, piece: int = 1 << 16) -> AsyncIterator[int]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            theirs, ours = await asyncio.open_connection("127.0.0.1", self.target)

            async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
                while data := await source.read(piece):
                    if source is theirs:
                        self.seen += data
                    to.write(data)
                    await to.drain()
                to.close()

            await asyncio.gather(copy(reader, ours), copy(theirs, writer), return_exceptions=True)

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()


async def test_under_tls_no_byte_leaves_by_the_raw_socket(
    tmp_path: Path, authority: Authority, server: Pair
) -> None:
    """Large pulls go out in pieces, which a plain connection hands to the socket directly."""
    async with running_broker(tmp_path, **tls_settings(server)) as app:
        mark = b"a-mark-in-every-body" * 500
        watched = Watched(app.broker_port)
        async with (
            watched.listening() as port,
            Asker.connected(port, ssl=client_context(authority)) as asker,
        ):
            for _ in range(40):
                fields = send_fields("t", d=1)
                assert (await asker.ask("", 310, fields, mark)).code == 0
            store = app.broker.store
            await until(lambda: store.dispatched_offset == store.max_physical_offset)
            found = b""
            for general in (False, True):
                answer = await asker.ask("", 11, _pull("t"), general=general)
                assert answer.code == 0
                found += bytes(answer.body)
        assert found.count(b"a-mark-in-every-body") > 2000  # beyond what is joined into one piece
        assert b"a-mark" not in watched.seen and b"nextBeginOffset" not in watched.seen
        assert watched.seen[0] in (0x16, 0x15)
        for record in _records(bytes(watched.seen)):
            assert record in (0x14, 0x15, 0x16, 0x17)


def _pull(topic: str) -> dict[str, Any]:
    from access.guarded import pull_fields

    return pull_fields(topic, "g")


def _records(data: bytes) -> list[int]:
    """The types of the TLS records that `data` is, from the first byte to the last."""
    kinds, at = [], 0
    while at < len(data):
        kinds.append(data[at])
        at += 5 + int.from_bytes(data[at + 3 : at + 5], "big")
    assert at == len(data)
    return kinds


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_versions_and_plain_clients_share_the_ports(
    tmp_path: Path, authority: Authority, server: Pair, version: ssl.TLSVersion
) -> None:
    context = client_context(authority, minimum_version=version, maximum_version=version)
    async with running_broker(tmp_path, **tls_settings(server)) as app:
        for port in (app.broker_port, app.broker_port - 2, app.namesrv_port):
            async with Asker.connected(port, ssl=context) as secret, Asker.connected(port) as plain:
                for asker in (secret, plain):
                    assert (await asker.ask("", 310, send_fields("t"), b"x")).code == 0


async def test_bytes_that_come_one_by_one_are_understood(
    tmp_path: Path, authority: Authority, server: Pair
) -> None:
    async with (
        running_broker(tmp_path, **tls_settings(server)) as app,
        Watched(app.broker_port).listening(piece=1) as port,
        Asker.connected(port, ssl=client_context(authority)) as asker,
    ):
        assert (await asker.ask("", 310, send_fields("t"), b"x" * 100)).code == 0


async def test_an_old_version_is_refused(
    tmp_path: Path, authority: Authority, server: Pair
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.pair.certificate)
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.minimum_version = ssl.TLSVersion.TLSv1
    context.set_ciphers("ALL:@SECLEVEL=0")
    async with running_broker(tmp_path, **tls_settings(server)) as app:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", app.broker_port, ssl=context)


async def test_enforcing_takes_no_plain_bytes(
    tmp_path: Path, authority: Authority, server: Pair
) -> None:
    settings = tls_settings(server, tls_server_mode="enforcing")
    async with running_broker(tmp_path, **settings) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.broker_port)
        writer.write(b"\0\0\0\x10\0\0\0\x05{}")
        with pytest.raises(ConnectionError):
            assert await reader.read() == b""
            raise ConnectionError
        writer.close()
        async with Asker.connected(app.broker_port, ssl=client_context(authority)) as asker:
            assert (await asker.ask("", 310, send_fields("t"), b"x")).code == 0


async def test_clients_may_have_to_show_a_certificate(
    tmp_path: Path, authority: Authority, server: Pair
) -> None:
    ours = authority.sign("client")
    foreign = Authority(tmp_path / "foreign", "foreign").sign("stranger")
    settings = tls_settings(
        server,
        tls_server_need_client_auth="require",
        tls_server_trust_cert_path=authority.pair.certificate,
    )
    async with running_broker(tmp_path, **settings) as app:
        answered = {}
        for name, pair in (("ours", ours), ("foreign", foreign), ("none", None)):
            context = client_context(authority)
            if pair is not None:
                context.load_cert_chain(pair.certificate, pair.key)
            try:
                async with Asker.connected(app.broker_port, ssl=context) as asker:
                    answer = asker.start("", 310, send_fields("t"), b"x")
                    ends: set[asyncio.Future[Any]] = {answer, asker._reading}
                    done, _ = await asyncio.wait(
                        ends, timeout=10, return_when=asyncio.FIRST_COMPLETED
                    )
                    answered[name] = answer in done
            except (ssl.SSLError, ConnectionError):
                answered[name] = False
        assert answered == {"ours": True, "foreign": False, "none": False}


async def test_a_key_may_have_a_password(tmp_path: Path, authority: Authority) -> None:
    pair = authority.sign("locked", password="Xy7Q-password")
    settings = tls_settings(pair, tls_server_key_password="Xy7Q-password")
    async with running_broker(tmp_path, **settings) as app:
        assert "Xy7Q" not in repr(app.settings)
        async with Asker.connected(app.broker_port, ssl=client_context(authority)) as asker:
            assert (await asker.ask("", 310, send_fields("t"), b"x")).code == 0
    for password in ("", "wrong"):
        with pytest.raises(StartError, match="cannot be used") as caught:
            async with running_broker(
                tmp_path / "other", **(settings | {"tls_server_key_password": password})
            ):
                pass
        assert "Xy7Q" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tls_server_mode": "enforcing"}, "needs tls.server.certPath"),
        ({"tls_server_cert_path": "/nowhere", "tls_server_key_path": "/nowhere"}, "cannot be read"),
    ],
)
async def test_what_cannot_be_served_does_not_start(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(StartError, match=says):
        async with running_broker(tmp_path, **settings):
            pass


async def test_reloads_under_load_drop_no_connection(
    tmp_path: Path, authority: Authority, server: Pair
) -> None:
    first, second = authority.sign("first"), authority.sign("second")
    path = Pair(str(tmp_path / "now.pem"), str(tmp_path / "now.key"))

    def swap(pair: Pair) -> None:
        for source, target in ((pair.certificate, path.certificate), (pair.key, path.key)):
            Path(target).write_bytes(Path(source).read_bytes())

    swap(first)
    async with guarded_broker(tmp_path, **tls_settings(path)) as app:
        context = client_context(authority)
        async with (
            Asker.connected(app.broker_port, ssl=context) as asker,
            Asker.connected(app.broker_port) as plain,
        ):
            enough = asyncio.Event()
            sends = [asyncio.create_task(_keep_sending(each, enough)) for each in (asker, plain)]
            generation = app.broker.guard.book.generation
            for number in range(RELOADS):
                swap(first if number % 2 else second)
                app.reload()
                answer = await asker.ask("root", 310, send_fields("t"), b"x")
                assert answer.code == 0
            assert app.broker.guard.book.generation == generation + RELOADS
            async with Asker.connected(app.broker_port, ssl=context) as newcomer:
                names = newcomer.writer.get_extra_info("peercert")["subject"]
                assert names == ((("commonName", "first"),),)
            swap(Pair(path.key, path.key))  # no certificate at all
            app.reload()
            async with Asker.connected(app.broker_port, ssl=context) as newcomer:
                assert (await newcomer.ask("root", 310, send_fields("t"), b"x")).code == 0
            enough.set()
            assert min(await asyncio.gather(*sends)) > 0
            assert (await asker.ask("root", 310, send_fields("t"), b"x")).code == 0


async def _keep_sending(asker: Asker, enough: asyncio.Event) -> int:
    """How many messages were sent; all were taken."""
    sent = 0
    while not enough.is_set():
        window = [asker.start("pub", 310, send_fields("t"), b"x") for _ in range(8)]
        answers = await asyncio.wait_for(asyncio.gather(*window), 30)
        assert {answer.code for answer in answers} == {0}
        sent += len(answers)
    return sent


async def test_a_handshake_that_does_not_end_is_given_up(
    tmp_path: Path, server: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee.broker.net.tls.HANDSHAKE_S", 0.2)
    async with running_broker(tmp_path, **tls_settings(server)) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.broker_port)
        writer.write(b"\x16\x03\x01\x02\x00")
        with pytest.raises(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
            raise ConnectionError
        writer.close()


async def test_garbage_after_the_first_byte_closes_that_connection_only(
    tmp_path: Path, authority: Authority, server: Pair
) -> None:
    async with (
        running_broker(tmp_path, **tls_settings(server)) as app,
        Asker.connected(app.broker_port, ssl=client_context(authority)) as asker,
    ):
        for garbage in (b"\x16" * 100, b"\x16\x03\x03\xff\xff" + b"\0" * 70000, b"\x16\0"):
            reader, writer = await asyncio.open_connection("127.0.0.1", app.broker_port)
            writer.write(garbage)
            writer.write_eof()
            await asyncio.wait_for(asyncio.gather(reader.read(), return_exceptions=True), 10)
            writer.close()
        assert (await asker.ask("", 310, send_fields("t"), b"x")).code == 0


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


async def test_users_and_tls_go_together(
    tmp_path: Path, authority: Authority, server: Pair
) -> None:
    async with guarded_broker(tmp_path, **tls_settings(server)) as app:
        await make_topics(app, "t")
        async with Asker.connected(app.broker_port, ssl=client_context(authority)) as asker:
            assert (await asker.ask("pub", 310, send_fields("t"), b"x")).code == 0
            assert (await asker.ask("", 310, send_fields("t"), b"x")).code == 16
            assert (await asker.ask("pub", 310, send_fields("t1"), b"x")).code == 16


def test_a_tls_transport_gives_no_socket_away() -> None:
    assert TlsTransport.get_extra_info(object.__new__(TlsTransport), "socket") is None
