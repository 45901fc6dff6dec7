"""Secrets are planted wherever one may stand; no log, answer, metric, error, repr or traceback of
broker, SDK, command or Spark's link shows one of them, or a signature."""

from __future__ import annotations

import asyncio
import io
import signal
import traceback
import urllib.request
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from aerobee_command import ended
from peers.daemon import Daemon
from tls.certificates import Authority
from waiting import until

from access.guarded import USERS, Asker, guarded_broker, send_fields, write_users
from aerobee import connect
from aerobee.broker.auth import signature as signatures
from aerobee.broker.auth.permissions import ROWS
from aerobee.broker.auth.verdicts import Principal
from aerobee.broker.base.logs import configure_logs
from aerobee.broker.settings import Settings
from aerobee.client.transport.url import parse_url
from aerobee.pipeline.wire import Access
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ
from aerobee.protocol.wire.conversation import Conversation
from aerobee.protocol.wire.signing import Credentials, Signer

MARK = "Xy7Q"  # prefix of every planted secret
FIRST = f'{{"username":"first","password":"{MARK}-first-secret"}}'
INNER = f'{{"accessKey":"inner","secretKey":"{MARK}-inner-secret"}}'
PLANTED = USERS.replace("a-secret-of", f"{MARK}-secret-of")
ROOT = f"{MARK}-secret-of-root"


def assert_no_secret(texts: list[str]) -> None:
    found = [line for text in texts for line in text.splitlines() if MARK in line]
    assert found == []


async def settled(what: Awaitable[Any]) -> str:
    """The result or error, in every form in which a program may print it."""
    try:
        ended = await what
    except Exception as error:
        lines = traceback.TracebackException.from_exception(error, capture_locals=False)
        return f"{error} {error!r} {''.join(lines.format())} {error.__dict__}"
    return f"{ended} {ended!r}"


async def test_a_daemon_shows_none_in_logs_answers_and_metrics(tmp_path: Path) -> None:
    write_users(tmp_path, PLANTED)
    password = f"{MARK}-key-password"
    pair = Authority(tmp_path / "ca").sign("server", password=password)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"aclEnable=true\naclFile={tmp_path}/access.yml\ninitAuthenticationUser={FIRST}\n"
        f"innerClientAuthenticationCredentials={INNER}\ntls.server.certPath={pair.certificate}\n"
        f"tls.server.keyPath={pair.key}\ntls.server.keyPassword={password}\n"
    )
    with Daemon(
        tmp_path,
        "--config",
        str(conf),
        logLevel="debug",
        metricsExporterType="PROM",
        metricsPromExporterPort="0",
    ) as daemon:
        ready = daemon.ready()
        answers: list[str] = []
        port = int(ready["broker"].rpartition(":")[2])
        for codec in (JSON, ROCKETMQ, MSGPACK):
            answers += await _ask_everything(port, codec)
        metrics = await asyncio.to_thread(_read, f"http://{daemon.metrics_address()}/metrics")
        # A file that is now invalid is reported without its content.
        write_users(tmp_path, PLANTED + f"\n  - {{accessKey: x, secretKey: {MARK}-bad, type: bad")
        daemon.signal(signal.SIGHUP)
        await until(lambda: "not reloaded" in daemon.log())
        daemon.stop()
        log = daemon.log()
    assert (
        "denied" in log and "administration" in log and "aerobee_requests_denied_total" in metrics
    )
    assert_no_secret([*answers, metrics, log, str(ready)])


async def _ask_everything(port: int, codec: int) -> list[str]:
    """Every code, as a super user and wrongly signed; and the calls that carry secrets."""
    seen = []
    new = {"username": "new", "password": f"{MARK}-secret-of-new"}
    async with Asker.connected(port) as asker:
        for _ in range(2):  # the second time it already exists
            seen.append(await asker.ask("root", 3001, {"username": "new"}, new, secret=ROOT))
        plain = {"accessKey": "a", "secretKey": f"{MARK}-secret-a"}
        seen.append(await asker.ask("root", 50, plain, secret=ROOT, codec=codec))
        seen.append(await asker.ask("root", 50, plain | {"accessKey": "pub"}, secret=ROOT))
        bad = b"{" + MARK.encode()
        seen.append(await asker.ask("root", 3006, {"subject": "User:new"}, bad, secret=ROOT))
        ext = {"username": "new", "subject": "User:new", "topic": "t", "b": "t"}
        skipped = {36, 34, 35, 38}  # client requests: they say nothing about users
        codes = sorted(code for code in ROWS if code not in skipped and code < 1 << 15)
        waiting = [asker.start("root", code, ext, secret=ROOT, codec=codec) for code in codes]
        done, _ = await asyncio.wait(waiting, timeout=5)
        assert len(done) > len(codes) * 0.8
        seen += [each.result() for each in done]
    for _ in range(3):
        async with Asker.connected(port) as asker:
            wrong = f"{MARK}-wrong"
            seen.append(await asker.ask("pub", 310, send_fields("t"), b"x", secret=wrong))
            seen.append(await asker.ask("root", 26, secret=wrong, codec=codec))
    return [f"{answer!r} {bytes(answer.body)!r}" for answer in seen]


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("style", ["console", "json"])
async def test_a_failure_inside_the_check_leaves_a_traceback_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    def fails(secret: str) -> object:
        raise RuntimeError("planted failure")

    log = io.StringIO()
    configure_logs("debug", style, log)
    async with guarded_broker(tmp_path, PLANTED) as app:
        monkeypatch.setattr(signatures, "keyed", fails)
        async with Asker.connected(app.broker_port) as asker:
            answer = await asker.ask("root", 28, secret=ROOT)
            assert answer.code == 1
            texts = [repr(answer)]
    structlog.reset_defaults()
    assert "Traceback" in log.getvalue()
    assert "planted failure" in log.getvalue()
    assert_no_secret([*texts, log.getvalue()])


async def test_no_object_that_holds_one_shows_it(tmp_path: Path) -> None:
    credentials = Credentials("key", f"{MARK}-secret", f"{MARK}-token")
    settings = Settings(
        acl_enable=True,
        init_authentication_user=FIRST,
        inner_client_authentication_credentials=INNER,
        tls_server_key_password=f"{MARK}-password",
    )
    address = parse_url(f"mqs://key:{MARK}-secret@127.0.0.1:9876?ca=/nowhere")
    shown: list[Any] = [credentials, settings, address]
    shown += [Access(("127.0.0.1:1",), credentials=credentials)]
    shown += [Signer(credentials), Conversation(credentials)]
    async with guarded_broker(tmp_path, PLANTED) as app:
        guard = app.broker.guard
        user = guard.book.current.users["root"]
        shown += [guard.__dict__, guard.book.current, user, Principal("root", "", user, 1)]
        shown += [app.settings, app.broker.__dict__.keys()]
        url = f"mq://root:{ROOT}@127.0.0.1:{app.broker_port}"
        async with connect(url) as mq:
            shown += [mq, mq.__dict__]
    assert_no_secret([f"{each!r} {each}" for each in shown])


def _wrong_urls() -> Iterator[str]:
    secret = f"{MARK}-secret"
    yield f"mq://key:{secret}@127.0.0.1:1"  # nobody listens
    yield f"mqs://key:{secret}@127.0.0.1:1?ca=/nowhere/ca.pem"
    yield f"mq://key:{secret}@127.0.0.1:port"
    yield f"mq://key:{secret}@"
    yield f"mq://key:{secret}@127.0.0.1:9876?what={secret}"
    yield f"http://key:{secret}@127.0.0.1:9876"
    yield f"mqs://key:{secret}@127.0.0.1:9876?verify={secret}"


@pytest.mark.parametrize("url", [*_wrong_urls()])
async def test_the_sdk_s_errors_show_none(url: str) -> None:
    async def use() -> None:
        async with connect(url, timeout=1) as mq:
            await mq.send("t", b"x")

    assert_no_secret([await settled(use())])


async def test_the_command_shows_none_whatever_goes_wrong(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path, PLANTED) as app:
        good = f"mq://root:{ROOT}@127.0.0.1:{app.broker_port}"
        wrong = f"mq://root:{MARK}-wrong@127.0.0.1:{app.broker_port}"
        texts = []
        for words, url in (
            (("topic", "list"), wrong),
            (("user", "list"), good),
            (("user", "list", "--json"), good),
            (("user", "add", "root"), good),
            (("acl", "show", "root"), good),
            (("ping",), wrong),
            (("ping",), f"mq://key:{MARK}-secret@127.0.0.1:1"),
            (("ping",), f"mq://key:{MARK}-secret@127.0.0.1:what"),
        ):
            _, out, err = await ended(*words, AEROBEE_URL=url)
            texts.append((out + err).decode())
    assert all(texts), "each of them says something"
    assert_no_secret(texts)


def test_settings_that_cannot_be_used_are_reported_without_their_values(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    for line in (
        f"initAuthenticationUser={MARK}-no-json",
        f"innerClientAuthenticationCredentials={{{MARK}",
        f"initAuthenticationUser={FIRST}\nwhatIsThis=1",
    ):
        conf.write_text(line + "\n")
        with Daemon(tmp_path, "--config", str(conf)) as daemon:
            assert daemon.process.wait(60) != 0
            shown = daemon.log() + daemon.stdout.read()
        assert shown
        assert_no_secret([shown])
