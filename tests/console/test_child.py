"""The broker's own console: a process that runs only while it is used."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.daemon import Daemon
from peers.tools import wait_for
from peers.wire import Wire

from aerobee.client.console.options import ConsoleOptions
from aerobee.client.console.serve import serve_handed
from console.test_safety import Browser


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, consoleWrite="true") as daemon:
        daemon.ready()
        yield daemon


def browser_of(daemon: Daemon) -> Browser:
    return Browser(f"http://{daemon.metrics_address()}")


def children(daemon: Daemon) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{daemon.process.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            found += map(int, (task / "children").read_text().split())
    return found


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def is_served(daemon: Daemon) -> bool:
    with contextlib.suppress(ConnectionResetError):  # by a child that is shutting down
        return bool(browser_of(daemon).begin()["token"])
    return False


def test_the_page_and_its_figures_come_by_the_metrics_port(daemon: Daemon) -> None:
    browser = browser_of(daemon)
    assert b"aerobee_" in browser.ask("GET", "/metrics")[2]
    assert children(daemon) == []  # not opened yet
    status, _, page = browser.ask("GET", "/console/")
    assert status == 200 and b"<title>Aerobee console</title>" in page
    assert len(children(daemon)) == 1
    browser.begin()
    status, _, answer = browser.ask("GET", "/console/api/overview")
    assert status == 200 and len(answer["brokers"]) == 1 and "error" not in answer["brokers"][0]
    assert browser.ask("POST", "/console/api/send", {"topic": "t", "body": "x"})[0] == 200
    assert b"aerobee_" in browser.ask("GET", "/metrics")[2]
    assert browser.ask("GET", "/healthz")[0] == 200
    assert browser.ask("GET", "/elsewhere")[0] == 404
    assert len(children(daemon)) == 1


def test_it_is_read_only_by_default(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        daemon.ready()
        browser = browser_of(daemon)
        browser.begin()
        assert browser.ask("POST", "/console/api/send", {"topic": "t", "body": "x"})[0] == 403


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this class of processes")
def test_its_threads_run_when_nobody_else_wants_the_core(daemon: Daemon) -> None:
    browser_of(daemon).begin()
    child = children(daemon)[0]
    threads = [int(each.name) for each in Path(f"/proc/{child}/task").iterdir()]
    assert {os.sched_getscheduler(each) for each in threads} == {os.SCHED_IDLE}
    # CPU is shared between sessions first: in its own one it would get as much as the broker.
    assert os.getsid(child) == os.getsid(daemon.process.pid)
    assert os.getpgid(child) == child  # so Ctrl-C does not reach it


def test_it_ends_with_the_broker_however_that_ends(daemon: Daemon) -> None:
    browser_of(daemon).begin()
    child = children(daemon)[0]
    daemon.signal(signal.SIGKILL)
    wait_for(lambda: not is_alive(child), timeout=60, what="the console has ended")


def test_a_clean_stop_of_the_broker_stops_it_too(daemon: Daemon) -> None:
    browser_of(daemon).begin()
    child = children(daemon)[0]
    assert daemon.stop() == 0
    wait_for(lambda: not is_alive(child), timeout=60, what="the console has ended")


def test_one_that_was_killed_is_started_again(daemon: Daemon) -> None:
    browser_of(daemon).begin()
    child = children(daemon)[0]
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: not is_alive(child), timeout=60, what="the console has ended")
    wait_for(lambda: is_served(daemon), timeout=60, what="the console is served")
    assert children(daemon) != [child]


def test_it_ends_when_nobody_looks_and_comes_back(tmp_path: Path) -> None:
    with Daemon(tmp_path, consoleIdleSeconds="3") as daemon:
        daemon.ready()
        browser_of(daemon).begin()
        child = children(daemon)[0]
        wait_for(lambda: not is_alive(child), timeout=60, what="the console has ended")
        assert browser_of(daemon).begin()["token"]


def test_it_does_not_end_while_it_answers() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket.create_server(("127.0.0.1", 0)) as silent, ours, theirs:  # a cluster that hangs
        options = ConsoleOptions(url=f"mq://127.0.0.1:{silent.getsockname()[1]}")
        serving = threading.Thread(target=serve_handed, args=(options, theirs, 0.5), daemon=True)
        serving.start()
        with (
            socket.create_server(("127.0.0.1", 0)) as door,
            socket.create_connection(door.getsockname(), timeout=60) as browser,
        ):
            with door.accept()[0] as accepted:
                socket.send_fds(ours, [b"c"], [accepted.fileno()])
            connection = http.client.HTTPConnection("localhost")
            connection.sock = browser
            connection.request("GET", "/console/api/session")
            with connection.getresponse() as session:
                cookie = str(session.getheader("Set-Cookie")).partition(";")[0]
                session.read()
            connection.request("GET", "/console/api/overview", headers={"Cookie": cookie})
            with connection.getresponse() as answer:
                assert answer.status == 504
        serving.join(60)  # idle now
        assert not serving.is_alive()


def test_beyond_loopback_it_needs_a_token(tmp_path: Path) -> None:
    with Daemon(tmp_path, metricsPromExporterHost="0.0.0.0") as daemon:
        daemon.ready()
        port = daemon.metrics_address().rpartition(":")[2]
        status, _, text = Browser(f"http://127.0.0.1:{port}").ask("GET", "/console/")
        assert status == 403 and b"consoleToken" in text
        assert children(daemon) == []


def test_beyond_loopback_a_proxy_may_name_the_viewer(tmp_path: Path) -> None:
    with Daemon(
        tmp_path,
        metricsPromExporterHost="0.0.0.0",
        consoleAuthHeader="X-Forwarded-User",
        consoleProxies="127.0.0.1",
    ) as daemon:
        daemon.ready()
        browser = Browser(f"http://127.0.0.1:{daemon.metrics_address().rpartition(':')[2]}")
        assert browser.ask("GET", "/console/")[0] == 401
        assert browser.ask("GET", "/console/", X_Forwarded_User="ada")[0] == 200


def test_a_request_that_comes_in_pieces_is_handed_over_whole(daemon: Daemon) -> None:
    host, _, port = daemon.metrics_address().rpartition(":")
    for path, wanted in ((b"/console/", b"200"), (b"/healthz", b"200"), (b"/cons", b"404")):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
            for byte in request:
                connection.sendall(bytes([byte]))
            assert wanted in connection.makefile("rb").readline()


def test_a_guarded_broker_shows_itself_to_its_users(tmp_path: Path) -> None:
    from access.guarded import write_users

    users = write_users(tmp_path)
    with Daemon(tmp_path, aclEnable="true", aclFile=str(users)) as daemon:
        ready = daemon.ready()
        browser = browser_of(daemon)
        browser.begin()
        status, _, answer = browser.ask("GET", "/console/api/topics")
        assert status == 403 and answer["login"] == "user"
        given = {"user": "root", "secret": "a-secret-of-root"}
        assert browser.ask("POST", "/console/api/login", given)[0] == 200
        assert browser.ask("GET", "/console/api/topics")[0] == 200
        with Wire(ready["broker"]) as wire:
            assert wire.request(28, {}).code == 16  # others are still refused
