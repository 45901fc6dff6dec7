"""What a foreign page, name or browser cannot do: tested over HTTP, without a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from aerobee_command import AEROBEE, aerobee

from aerobee.client.console.app import Console
from aerobee.client.console.http import ConsoleServer, static_files
from aerobee.client.console.options import ConsoleOptions
from aerobee.client.console.routes import READS, WRITES
from aerobee.client.console.safety import csv_cell, is_our_host, is_same_site
from aerobee.testing import EmbeddedBroker
from console.world import ConsoleProcess, Loop


@dataclass
class Browser:
    """The minimum that a session needs."""

    address: str
    cookie: str = ""
    token: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        parts = urlsplit(self.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        given = {"Cookie": self.cookie} if self.cookie else {}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            given = {"Content-Type": "application/json", "X-Aerobee-Token": self.token} | given
        with contextlib.closing(connection):
            connection.request(method, path, data, given)
            answer = connection.getresponse()
            raw = answer.read()
            found = dict(answer.getheaders())
        is_json = found.get("Content-Type") == "application/json"
        return answer.status, found, json.loads(raw) if is_json and raw else raw

    def begin(self) -> dict[str, Any]:
        status, headers, answer = self.ask("GET", "/console/api/session")
        assert status == 200
        if "Set-Cookie" in headers:
            self.cookie = headers["Set-Cookie"].partition(";")[0]
        self.token = answer["token"]
        return dict(answer)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    loop = Loop()
    broker = EmbeddedBroker()
    loop.run(broker.start())
    yield broker
    loop.run(broker.stop())
    loop.close()


def console_of(broker: EmbeddedBroker, **options: Any) -> Iterator[Browser]:
    import threading

    console = Console(ConsoleOptions(url=broker.url, **options))
    server = ConsoleServer(console, ("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield Browser(f"http://127.0.0.1:{server.server_address[1]}")
    server.shutdown()
    thread.join()
    server.server_close()
    console.close()


@pytest.fixture
def reader(broker: EmbeddedBroker) -> Iterator[Browser]:
    yield from console_of(broker)


@pytest.fixture
def writer(broker: EmbeddedBroker) -> Iterator[Browser]:
    yield from console_of(broker, write=True)


@pytest.mark.parametrize("name", sorted(WRITES))
def test_every_change_is_refused_where_none_is_allowed(reader: Browser, name: str) -> None:
    reader.begin()
    status, _, answer = reader.ask("POST", f"/console/api/{name}", {"topic": "t", "group": "g"})
    assert status == 403
    assert "read-only" in answer["error"]


def test_what_changes_cannot_be_asked_for_by_get(writer: Browser) -> None:
    writer.begin()
    assert not READS.keys() & WRITES.keys()
    for name in WRITES:
        assert writer.ask("GET", f"/console/api/{name}?topic=t&body=x")[0] == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X_Aerobee_Token": "guessed"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:8085"}, 421),
        ({"Transfer_Encoding": "chunked"}, 411),
        ({}, 200),
    ],
)
def test_a_change_needs_our_page_our_name_and_our_token(
    writer: Browser, headers: dict[str, str], status: int
) -> None:
    writer.begin()
    body = {"topic": "safety", "body": "x"}
    assert writer.ask("POST", "/console/api/send", body, **headers)[0] == status


def test_a_change_without_a_session_is_refused(writer: Browser) -> None:
    writer.begin()
    writer.cookie = ""
    assert writer.ask("POST", "/console/api/send", {"topic": "safety", "body": "x"})[0] == 403


def test_a_foreign_name_gets_nothing_not_even_a_page(reader: Browser) -> None:
    for path in ("/console/", "/console/api/session", "/console/static/app.js"):
        assert reader.ask("GET", path, Host="rebound.example")[0] == 421


def test_every_answer_forbids_what_the_pages_do_not_need(reader: Browser) -> None:
    for path in ("/console/", "/console/api/session", "/console/static/app.js", "/console/api/x"):
        headers = reader.ask("GET", path)[1]
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"


def test_pages_have_no_inline_script_and_know_no_other_host() -> None:
    for name, (_kind, data) in static_files().items():
        text = data.decode()
        assert "innerHTML" not in text and "insertAdjacentHTML" not in text, name
        assert "eval(" not in text and "new Function" not in text, name
        assert set(re.findall(r"https?://[^\"' )]+", text)) <= {"http://www.w3.org/2000/svg"}, name
    page = static_files()["index.html"][1].decode()
    assert page.count("<script") == 1 and "onload" not in page and "style=" not in page


def test_only_files_of_the_pages_are_served(reader: Browser) -> None:
    for path in ("../app.py", "..%2fapp.py", "lib", "/etc/passwd", ""):
        assert reader.ask("GET", f"/console/static/{path}")[0] == 404


def test_a_console_with_a_token_tells_nothing_before_it(broker: EmbeddedBroker) -> None:
    for browser in console_of(broker, token="open sesame"):
        assert browser.begin()["login"] == "token"
        assert browser.ask("GET", "/console/api/topics")[0] == 401
        assert browser.ask("POST", "/console/api/login", {"token": "close sesame"})[0] == 400
        assert browser.ask("GET", "/console/api/topics")[0] == 401
        assert browser.ask("POST", "/console/api/login", {"token": "open sesame"})[0] == 200
        assert browser.ask("GET", "/console/api/topics")[0] == 200


def test_a_proxy_names_the_viewer_and_nobody_else_may(broker: EmbeddedBroker) -> None:
    options = {"auth_header": "X-Forwarded-User", "write": True}
    for browser in console_of(broker, **options, proxies=("127.0.0.0/8",)):
        assert browser.ask("GET", "/console/")[0] == 401
        assert browser.ask("GET", "/console/api/session")[0] == 401
        ada, eve = {"X_Forwarded_User": "ada"}, {"X_Forwarded_User": "eve"}
        status, headers, session = browser.ask("GET", "/console/api/session", **ada)
        assert (status, session["person"], session["login"]) == (200, "ada", "")
        browser.cookie = headers["Set-Cookie"].partition(";")[0]
        browser.token = session["token"]
        assert browser.ask("GET", "/console/api/topics", **ada)[0] == 200
        # Her cookie is rejected for another user, and without the proxy's header.
        assert browser.ask("GET", "/console/api/topics", **eve)[0] == 401
        assert browser.ask("GET", "/console/api/topics")[0] == 401
        assert browser.ask("POST", "/console/api/send", {"topic": "t"}, **eve)[0] == 403
    for browser in console_of(broker, **options, proxies=("10.0.0.0/8",)):
        assert browser.ask("GET", "/console/api/session", X_Forwarded_User="ada")[0] == 401


def test_a_name_that_is_said_twice_is_believed_of_nobody(broker: EmbeddedBroker) -> None:
    for browser in console_of(broker, auth_header="X-User", proxies=("127.0.0.1",)):
        parts = urlsplit(browser.address)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        connection.putrequest("GET", "/console/api/session")
        for name in ("eve", "ada"):
            connection.putheader("X-User", name)
        connection.endheaders()
        assert connection.getresponse().status == 401
        connection.close()


@pytest.mark.parametrize(
    "words",
    [
        ("--auth-header", "X-User"),
        ("--proxy", "10.0.0.1"),
        ("--auth-header", "X-User", "--proxy", "everybody"),
        ("--auth-header", "X User", "--proxy", "10.0.0.1"),
    ],
)
async def test_a_header_that_anybody_could_send_is_refused(words: tuple[str, ...]) -> None:
    said = await aerobee("console", "--host", "0.0.0.0", "--port", "0", *words, code=2)
    assert "prox" in said.err or "header" in said.err


def test_bodies_stay_hidden_where_they_are_to(broker: EmbeddedBroker) -> None:
    loop = Loop()

    async def send() -> str:
        async with broker.connect() as mq:
            return (await mq.send("hidden", b"a secret", key="k")).message_id

    message_id = loop.run(send())
    for browser in console_of(broker, hide_bodies=True):
        browser.begin()
        for path in ("messages?topic=hidden", f"message?topic=hidden&id={message_id}"):
            status, _, answer = browser.ask("GET", f"/console/api/{path}")
            assert status == 200 and "a secret" not in json.dumps(answer)
        assert browser.ask("GET", "/console/api/export?topic=hidden")[0] == 400
    loop.close()


async def test_a_console_for_everybody_does_not_start_without_a_token() -> None:
    said = await aerobee("console", "--host", "0.0.0.0", "--port", "0", code=2)
    assert "--token" in said.err
    assert AEROBEE


def test_the_cookie_is_for_scripts_and_other_sites_out_of_reach(reader: Browser) -> None:
    cookie = reader.ask("GET", "/console/api/session")[1]["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/console/" in cookie


def test_other_names_and_sites_are_refused() -> None:
    assert is_our_host("localhost:8085", ()) and is_our_host("[::1]:8085", ())
    assert is_our_host("mq.example:80", ("mq.example",))
    assert not is_our_host("", ()) and not is_our_host("localhost.evil", ())
    assert is_same_site("a:1", "http://a:1", "same-origin") and is_same_site("a:1", None, None)
    assert not is_same_site("a:1", "http://a:2", None)


def test_a_cell_of_a_table_is_no_formula() -> None:
    assert csv_cell("=1+1") == '"\'=1+1"' and csv_cell('a"b') == '"a""b"'


def test_a_process_of_its_own_serves_it(broker: EmbeddedBroker) -> None:
    with ConsoleProcess(broker.url) as console:
        parts = urlsplit(console.address)
        browser = Browser(f"http://{parts.netloc}")
        browser.begin()
        status, _, answer = browser.ask("GET", "/console/api/overview")
        assert status == 200 and answer["cluster"] == "DefaultCluster"
        assert browser.ask("GET", "/")[0] == 302


@pytest.mark.parametrize(
    "path",
    [
        "overview?since=x",
        "messages?topic=t&mode=odd",
        "messages?topic=t&mode=offset&offset=-1",
        "messages?topic=t&mode=time&since=yesterday",
        "reset-preview?group=g&topic=t&to=nowhere",
        "tail?topic=t&cursor=%00",
        "letters?group=g&limit=9999999",
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_a_reason(
    broker: EmbeddedBroker, reader: Browser, path: str
) -> None:
    loop = Loop()

    async def fill() -> None:
        async with broker.connect() as mq:
            await mq.send("t", b"x")
            await mq.admin.create_group("g")

    loop.run(fill())
    loop.close()
    reader.begin()
    status, _, answer = reader.ask("GET", f"/console/api/{path}")
    assert status == 400 and answer["error"]


def test_a_property_that_is_no_text_does_not_hide_its_message(
    broker: EmbeddedBroker, reader: Browser
) -> None:
    from aerobee.client.console.app import encode

    assert json.loads(encode({"name": "\udcff"})) == {"name": "\udcff"}
    reader.begin()
    assert reader.ask("GET", "/console/api/health")[0] == 200
