"""A client that shows a certificate is the user who has it, without a signature."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from access.guarded import USERS, Asker, guarded_broker, make_topics, pull_fields, send_fields

from aerobee import connect
from aerobee.broker.net.listening import StartError
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ
from tls.certificates import Authority, Pair

CERTIFIED = (
    USERS
    + """
  - accessKey: billing
    certificates: [billing-app]
    policies: [allow Topic:t Pub, allow Topic:t Sub, allow Group:g Sub]
  - {accessKey: both, secretKey: a-secret-of-both, certificates: [both.example.org]}
"""
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def shown_by(authority: Authority, pair: Pair | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.pair.certificate)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ, MSGPACK])
async def test_a_certificate_is_as_good_as_a_signature_and_for_its_connection_only(
    tmp_path: Path, authority: Authority, codec: int
) -> None:
    server, billing, other = (
        authority.sign(name, f"IP:127.0.0.1,DNS:{name}")
        for name in ("server", "billing-app", "other-app")
    )
    settings = {
        "tls_server_cert_path": server.certificate,
        "tls_server_key_path": server.key,
        "tls_server_trust_cert_path": authority.pair.certificate,
        "tls_server_need_client_auth": "optional",
        "requests_must_be_fresh": False,
    }
    async with guarded_broker(tmp_path, CERTIFIED, **settings) as app:
        await make_topics(app, "t", "secret")
        port = app.broker_port
        certified = shown_by(authority, billing)
        async with Asker.connected(port, ssl=certified) as asker:
            for _ in range(3):  # from the second time on cached
                answer = await asker.ask("", 310, send_fields("t"), b"x", codec=codec)
                assert answer.code == 0, answer.remark
                assert (await asker.ask("", 11, pull_fields("t", "g"), codec=codec)).code == 0
                denied = await asker.ask("", 310, send_fields("secret"), b"x", codec=codec)
                assert denied.code == 16
                assert "User:billing has no permission to Pub Topic:secret" in (denied.remark or "")
                # A signature takes precedence over a certificate.
                assert (await asker.ask("root", 310, send_fields("secret"), b"x")).code == 0
            for options in (
                {},
                {"ssl": shown_by(authority, None)},
                {"ssl": shown_by(authority, other)},
            ):
                async with Asker.connected(port, **options) as stranger:
                    for general in (False, True):
                        send = await stranger.ask("", 310, send_fields("t"), b"x", general=general)
                        pull = await stranger.ask("", 11, pull_fields("t", "g"), general=general)
                        assert (send.code, pull.code) == (16, 16)
            # A removed certificate is anonymous at once.
            (tmp_path / "access.yml").write_text(CERTIFIED.replace("billing-app", "another"))
            app.reload()
            assert (await asker.ask("", 310, send_fields("t"), b"x", codec=codec)).code == 16
            assert (await asker.ask("", 11, pull_fields("t", "g"), codec=codec)).code == 16


async def test_our_client_needs_a_certificate_only(tmp_path: Path, authority: Authority) -> None:
    server, billing = authority.sign("server"), authority.sign("billing-app")
    settings = {
        "tls_server_cert_path": server.certificate,
        "tls_server_key_path": server.key,
        "tls_server_trust_cert_path": authority.pair.certificate,
        "tls_server_need_client_auth": "require",
        "tls_server_mode": "enforcing",
        "requests_must_be_fresh": True,  # TLS requests cannot be replayed
    }
    async with guarded_broker(tmp_path, CERTIFIED, **settings) as app:
        url = f"mqs://127.0.0.1:{app.broker_port}?ca={authority.pair.certificate}"
        root = f"mqs://root:a-secret-of-root@{url.removeprefix('mqs://')}"
        shown = f"&cert={billing.certificate}&key={billing.key}"
        async with connect(root + shown) as mq:
            await mq.admin.create_topic("t")
        async with connect(url + shown) as mq:
            await mq.send("t", b"x")


async def test_a_certificate_stands_for_one_user_only(tmp_path: Path) -> None:
    twice = CERTIFIED.replace("both.example.org", "billing-app")
    with pytest.raises(StartError, match=r"billing-app stands for User:billing already"):
        async with guarded_broker(tmp_path, twice):
            pass
