"""Servers that answer as no etcd does: a proxy, another service at its port."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from aerobee.broker.ha.arbiter import Alive, ArbiterError, Record
from aerobee.broker.ha.etcd import EtcdArbiter
from aerobee.broker.ha.etcd_gateway import Gateway

FOLDER = "/test/odd"
RECORD = Record(1, 1, frozenset({1}), "x")


class Odd(ThreadingHTTPServer):
    daemon_threads = True
    status, content = 200, "{}"
    tokens: list[str | None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Odd)
        self.rfile.read(int(self.headers["Content-Length"]))
        signs_in = self.path == "/v3/auth/authenticate"
        server.tokens.append("sign in" if signs_in else self.headers["Authorization"])
        data = b'{"token": "t"}' if signs_in else server.content.encode()
        self.send_response(200 if signs_in else server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def odd() -> Iterator[Odd]:
    with Odd(("127.0.0.1", 0), Answer) as server:
        server.tokens = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def row(key: str, value: bytes, **more: str) -> dict[str, str]:
    key = f"{FOLDER}/{key}"
    return {"key": b64encode(key.encode()).decode(), "value": b64encode(value).decode()} | more


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (502, '"bad gateway"'),
        (502, "[1]"),
        (404, '{"code": "none"}'),
        (200, "[]"),
        (200, '{"succeeded": true, "kvs": [{}], "result": 7}'),
        (200, '{"succeeded": true, "kvs": 7, "ID": "x", "header": {}, "result": {"TTL": null}}'),
        (200, json.dumps({"kvs": [row("state", RECORD.encode())], "succeeded": 1, "result": []})),
        (200, json.dumps({"kvs": [row("state", b"7", mod_revision="1")], "succeeded": 1})),
    ],
)
async def test_an_odd_answer_is_an_arbiter_that_does_not_answer(
    odd: Odd, status: int, content: str
) -> None:
    odd.status, odd.content = status, content
    arbiter = EtcdArbiter([odd.url], FOLDER, 1, 2000)
    try:
        for ask in (arbiter.read(), arbiter.compare_and_set(0, RECORD), arbiter.announce(Alive(1))):
            with pytest.raises(ArbiterError):
                await ask
        arbiter._lease = 5
        if '"succeeded": 1}' not in content:  # one without a TTL says that the lease is gone
            with pytest.raises(ArbiterError):
                await arbiter.renew()
    finally:
        await arbiter.close()


async def test_no_keys_are_no_record(odd: Odd) -> None:
    odd.content = '{"kvs": null}'
    arbiter = EtcdArbiter([odd.url], FOLDER, 1, 2000)
    assert (await arbiter.read()).record is None
    await arbiter.close()


async def test_announcements_of_others_are_passed_over(odd: Odd) -> None:
    rows = [
        row("alive/1", Alive(1).encode()),
        row("alive/2", Alive(3).encode()),
        row("alive/x", b'{"broker_id": "4"}'),
        row("alive/5", b"\xff"),
    ]
    odd.content = json.dumps({"kvs": rows})
    arbiter = EtcdArbiter([odd.url], FOLDER, 1, 2000)
    assert dict((await arbiter.read()).alive) == {1: Alive(1)}
    await arbiter.close()


def test_a_refusal_of_any_kind_signs_in_again(odd: Odd) -> None:
    gateway = Gateway([odd.url], 5.0, user=("me", "secret"))
    gateway.ask("/v3/kv/range", {})
    odd.status = 400
    with pytest.raises(ArbiterError):
        gateway.ask("/v3/kv/range", {})
    odd.status = 200
    gateway.ask("/v3/kv/range", {})
    gateway.close()
    assert odd.tokens == ["sign in", "t", "t", "sign in", "t"]
