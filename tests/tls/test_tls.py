"""TLS on the broker's own ports: what is on the wire, which peers are trusted, reloads."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from access.guarded import Asker, guarded_broker, make_topics, send_fields
from effort import examples
from peers.in_process import running_broker
from waiting import until

from aerobee.broker.net.listening import StartError
from aerobee.broker.net.tls import TlsTransport
from tls.certificates import Authority, Pair
from tls.served import Watched, client_context, tls_settings

RELOADS = int(os.environ.get("AEROBEE_RELOADS", examples(200, share=50)))


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
                    answered[name] = answer in done and answer.exception() is None
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
    """How many messages were sent; all were accepted."""
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
