"""The broker as a process: ready line, signals, systemd, and a newcomer's mistakes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from aerobee_command import FORKED
from peers.daemon import SMALL, Daemon
from peers.tools import free_port, open_to_all, wait_for
from peers.wire import Wire
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.net.listening import StartError, open_broker_sockets
from aerobee.broker.settings import load_settings


@pytest.fixture(autouse=True)
def real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No forks of a process that has imported the broker already."""
    monkeypatch.delenv(FORKED, raising=False)


def wait_for_log(daemon: Daemon, text: str) -> str:
    wait_for(lambda: text in daemon.log(), timeout=30, what=f"{text!r} is in the log")
    return daemon.log()


def test_the_ready_line_tells_where_it_is_and_sigterm_ends_with_0(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        ready = daemon.ready()
        assert ready.keys() == {"broker", "namesrv", "store"}
        assert ready["store"] == str(tmp_path / "store")
        assert (tmp_path / "store" / "abort").exists()
        host, _, port = ready["broker"].rpartition(":")
        with Wire(ready["namesrv"]) as names:
            route = names.request(105, {"topic": "TBW102", "acceptStandardJsonOnly": True})
            broker = json.loads(route.body)["brokerDatas"][0]
            assert broker["brokerAddrs"] == {"0": ready["broker"]}
            assert json.loads(route.body)["queueDatas"][0]["perm"] == 7
        with Wire(f"{host}:{int(port) - 2}") as fast:
            assert fast.request(105, {"topic": "TBW102"}).code == 0
        assert daemon.stop() == 0
        assert not (tmp_path / "store" / "abort").exists()
        assert daemon.stdout.read() == ""


def test_a_topic_has_a_route_as_soon_as_its_first_send_is_answered(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        ready = daemon.ready()
        with Wire(ready["broker"]) as wire, Wire(ready["namesrv"]) as names:
            assert names.request(105, {"topic": "fresh"}).code == 17
            send = dict(zip("abcdefgh", ("g", "fresh", "TBW102", 4, 0, 0, 0, 0), strict=True))
            assert wire.request(310, send, b"hello").code == 0
            assert names.request(105, {"topic": "fresh"}).code == 0
        assert daemon.stop() == 0
    with Daemon(tmp_path) as daemon, Wire(daemon.ready()["namesrv"]) as names:
        assert names.request(105, {"topic": "fresh"}).code == 0, "it is there after a restart"


def test_the_name_service_can_be_off(tmp_path: Path) -> None:
    with Daemon(tmp_path, namesrvListenPort="-1") as daemon:
        ready = daemon.ready()
        assert ready["namesrv"] == "off"
        with Wire(ready["broker"]) as wire:
            assert wire.request(105, {"topic": "TBW102"}).code == 0


def test_the_name_service_runs_alone(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--namesrv") as names:
        address = names.ready()["namesrv"]
        with Daemon(tmp_path / "b", namesrvAddr=address, brokerName="b1") as broker:
            place = broker.ready()["broker"]
            with Wire(address) as wire:

                def route() -> Any:
                    answer = wire.request(105, {"topic": "TBW102"}, version=401)
                    return json.loads(answer.body) if answer.code == 0 else None

                found = wait_for(route, timeout=30, what="the broker has registered")
                assert found["brokerDatas"][0]["brokerAddrs"] == {"0": place}
                assert broker.stop() == 0
                assert wire.request(105, {"topic": "TBW102"}).code == 17
        assert names.stop() == 0


def test_a_name_server_without_a_port_is_one_sentence(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--namesrv", namesrvListenPort="-1") as names:
        assert names.process.wait(timeout=30) == 1
        assert "namesrvListenPort=-1" in names.log().splitlines()[-1]


async def test_a_broker_does_not_register_with_itself(tmp_path: Path) -> None:
    port = free_port()
    given = {"namesrvListenPort": port, "namesrvAddr": f"localhost:{port};127.0.0.1:{port}"}
    given |= {"storePathRootDir": tmp_path, "metricsExporterType": "DISABLE"}
    app = AppBroker(load_settings(None, SMALL | given, {}))
    await app.start()
    try:
        registration = app._registrar
        assert registration is not None
        await until(lambda: registration.links == [])
        brokers = [broker.to_json() for broker in app.broker.name_service.routes.brokers("here:1")]
        assert [broker["brokerAddrs"] for broker in brokers] == [{0: "here:1"}]
    finally:
        await app.stop()


def test_a_settings_file_of_apaches_name_server_is_understood(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "namesrv.conf"
    config.write_text(f"listenPort={port}\nkvConfigPath={tmp_path}/kv.json\n")
    names = [sys.executable, "-m", "aerobee.broker", "--namesrv", "--config", str(config)]
    with subprocess.Popen(names, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready namesrv=127.0.0.1:{port}\n".encode()
        with Wire(f"127.0.0.1:{port}") as wire:
            assert wire.request(100, {"namespace": "n", "key": "k", "value": "v"}).code == 0
        process.terminate()
        assert process.wait(30) == 0
    assert json.loads((tmp_path / "kv.json").read_text())["configTable"] == {"n": {"k": "v"}}


def test_sighup_takes_over_what_can_change_and_says_what_cannot(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("logLevel=info\nfileReservedTime=72\n")
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        daemon.ready()
        config.write_text("logLevel=debug\nfileReservedTime=48\nregionId=elsewhere\n")
        daemon.signal(signal.SIGHUP)
        log = wait_for_log(daemon, "next restart only")
        lines = [json.loads(line) for line in log.splitlines()]
        reloaded = next(line for line in lines if line["event"] == "settings reloaded")
        assert reloaded["changed"] == ["fileReservedTime", "logLevel"]
        assert lines[-1]["settings"] == ["regionId"]
        config.write_text("fileReservdTime=48\n")
        daemon.signal(signal.SIGHUP)
        assert "did you mean fileReservedTime?" in wait_for_log(daemon, "not reloaded")
        assert daemon.stop() == 0


@pytest.mark.parametrize("key", ["listenPort", "namesrvListenPort", "metricsPromExporterPort"])
def test_a_port_that_is_taken_is_one_sentence_with_a_remedy(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        taken: dict[str, Any] = {key: str(sock.getsockname()[1])}
        with Daemon(tmp_path, **taken) as daemon:
            assert daemon.process.wait(30) == 1
        last = daemon.log().splitlines()[-1]
        assert last.startswith("aerobee: ")
        assert "Address already in use" in last
        assert f"--set {key}=" in last
        assert "Traceback" not in daemon.log()


@pytest.mark.parametrize("address", ["198.51.100.7", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_is_one_sentence(address: str) -> None:
    settings = load_settings(None, SMALL | {"bindAddress": address}, {})
    with pytest.raises(StartError, match=rf"cannot listen on {address}.*--set bindAddress="):
        open_broker_sockets(settings)


def test_a_second_broker_on_the_store_is_refused(tmp_path: Path) -> None:
    with Daemon(tmp_path) as first:
        first.ready()
        with Daemon(tmp_path) as second:
            assert second.process.wait(30) == 1
        assert "in use by another broker" in first.log()
        assert "storePathRootDir" in first.log().splitlines()[-1]
        assert first.stop() == 0


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "store")
    with Daemon(tmp_path, storePathRootDir=place) as daemon:
        assert daemon.process.wait(30) == 1
        last = daemon.log().splitlines()[-1]
        assert place in last
        assert "--set storePathRootDir=" in last


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_somebody_else_is_one_sentence(tmp_path: Path) -> None:
    place = tmp_path / "store"
    place.mkdir(mode=0o755)
    open_to_all(tmp_path)
    app = AppBroker(load_settings(None, {"storePathRootDir": place}, {}))
    os.setresuid(65534, 65534, 0)
    try:
        with pytest.raises(StartError, match=r"cannot be written by this user; .*--set storePath"):
            app.life.make_folder()
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.root
def test_a_fresh_store_on_a_full_disk_starts_and_refuses_sends_with_the_reason(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        with pytest.raises(OSError, match="No space left"):
            (disk / "fill").write_bytes(bytes(1 << 20))
        with Daemon(tmp_path, storePathRootDir=str(disk / "store")) as daemon:
            send = dict(zip("abcdefgh", ("g", "orders", "TBW102", 4, 0, 0, 0, 0), strict=True))
            with Wire(daemon.ready()["broker"]) as wire:
                answer = wire.request(310, send, b"no room")
            assert answer.code != 0
            assert "space" in (answer.header.get("remark") or ""), answer
            assert "Traceback" not in daemon.log()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_stop_in_the_middle_of_sends_keeps_all_that_was_answered(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        with Wire(daemon.ready()["broker"]) as wire:
            send = dict(zip("abcdefgh", ("g", "orders", "TBW102", 4, 0, 0, 0, 0), strict=True))
            assert wire.request(310, send, b"first").code == 0
            asked, answered = 1, 1
            try:
                for number in range(2000):
                    asked += 1
                    wire.send(310, send, b"x" * 500)
                    if number == 1000:
                        daemon.signal(signal.SIGTERM)
                while True:
                    answered += wire.receive().code == 0
            except OSError:  # the broker has closed the connection
                pass
        assert daemon.process.wait(30) == 0
        assert not (tmp_path / "store" / "abort").exists()
    assert 0 < answered <= asked
    with Daemon(tmp_path) as daemon, Wire(daemon.ready()["broker"]) as wire:
        stored = int(wire.request(30, {"topic": "orders", "queueId": 0}).ext["offset"])
        assert answered <= stored <= asked


@pytest.mark.parametrize("profile", ["small", "durable"])
async def test_a_profile_starts_a_broker(tmp_path: Path, profile: str) -> None:
    file = Path(__file__).parents[2] / "conf" / f"{profile}.conf"
    given = {key: SMALL[key] for key in ("listenPort", "namesrvListenPort")}
    given |= {"storePathRootDir": str(tmp_path), "metricsExporterType": "DISABLE"}
    if profile == "durable":  # whose log files are a gigabyte long
        given["mappedFileSizeCommitLog"] = SMALL["mappedFileSizeCommitLog"]
    app = AppBroker(load_settings(file, given, {}))
    await app.start()
    try:
        assert app.is_ready
        assert app.broker.store.sync_flush is (profile == "durable")
        assert (app.broker.topics.get("TBW102") is None) is (profile == "durable")
    finally:
        await app.stop()
    assert not (tmp_path / "abort").exists()


async def test_a_start_that_is_given_up_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, Wire(daemon.ready()["broker"]) as wire:
        send = dict(zip("abcdefgh", ("g", "orders", "TBW102", 4, 0, 0, 0, 0), strict=True))
        for _ in range(200):
            assert wire.request(310, send, bytes(500)).code == 0
    settings = SMALL | {"storePathRootDir": str(tmp_path / "store")}
    given_up = AppBroker(load_settings(None, settings, {}))
    given_up.give_up_start()
    await given_up.start()
    assert not given_up.is_ready
    await given_up.stop()
    app = AppBroker(load_settings(None, settings, {}))
    await app.start()
    try:
        assert app.broker.store.max_offset("orders", 0) == 200
    finally:
        await app.stop()


def test_a_wrong_setting_is_one_sentence(tmp_path: Path) -> None:
    with Daemon(tmp_path, listenPrt="1") as daemon:
        assert daemon.process.wait(30) == 1
        assert daemon.log() == (
            "aerobee: there is no setting listenPrt (--set); did you mean listenPort?\n"
        )


@pytest.mark.parametrize("closed", ["stdout gone", "stdout full", "all closed"])
def test_a_broker_whose_output_nobody_takes_serves_on(tmp_path: Path, closed: str) -> None:
    port = free_port()
    values = SMALL | {"storePathRootDir": str(tmp_path / "store"), "listenPort": str(port)}
    sets = " ".join(f"--set {key}={value}" for key, value in values.items())
    redirect = {"stdout gone": "", "stdout full": ">/dev/full", "all closed": "<&- >&- 2>&-"}
    command = f"exec '{sys.executable}' -m aerobee.broker {sets} {redirect[closed]}"
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.close()  # before the ready line is written
        send = dict(zip("abcdefgh", ("g", "fresh", "TBW102", 4, 0, 0, 0, 0), strict=True))
        for number in range(2):
            with wire_when_there(process, port) as wire:
                assert wire.request(310, send, b"%d" % number).code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def wire_when_there(process: subprocess.Popen[bytes], port: int) -> Wire:
    def wire() -> Wire | None:
        assert process.poll() is None, f"it has ended by {process.returncode}"
        try:
            return Wire(f"127.0.0.1:{port}")
        except OSError:
            return None

    found = wait_for(wire, timeout=30, what=f"something listens on {port}")
    assert found is not None
    return found


def test_ready_is_said_once(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        daemon.ready()
        assert "serving" in wait_for_log(daemon, "serving")
        assert daemon.stop() == 0
        assert '"ready"' not in daemon.log() and daemon.stdout.read() == ""


def test_the_image_serves_metrics_where_it_exposes_them(tmp_path: Path) -> None:
    """With the environment of the Dockerfile, at an address that is not 127.0.0.1."""
    text = (Path(__file__).parents[2] / "Dockerfile").read_text()
    given = dict(re.findall(r"(AEROBEE_[A-Z]+)=(\S+)", text))
    exposed = re.search(r"^EXPOSE (.*)$", text, re.M)
    assert exposed is not None and "5557" in exposed[1].split()
    given |= {"AEROBEE_STOREPATHROOTDIR": str(tmp_path / "store"), "AEROBEE_ALLOWANONYMOUS": "true"}
    port = free_port()
    with Daemon(tmp_path, env=given, metricsPromExporterPort=str(port)) as daemon:
        daemon.ready()
        with urllib.request.urlopen(f"http://127.0.0.2:{port}/readyz", timeout=5) as answer:
            assert answer.status == 200
