"""The service under a real systemd: started, reloaded, hung, killed and stopped."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from system.nspawn import Machine, make_root, need_nspawn

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]

SERVICE = "aerobee-broker"
AEROBEE = "/opt/aerobee/venv/bin/aerobee"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    need_nspawn()
    booted = Machine(make_root(tmp_path_factory.mktemp("nspawn")))
    # A short watchdog, so that the hang test does not take twenty seconds.
    folder = f"/etc/systemd/system/{SERVICE}.service.d"
    drop_in = f"printf '[Service]\\nWatchdogSec=4\\n' > {folder}/watchdog.conf"
    booted.shell(f"mkdir -p {folder} && {drop_in} && systemctl daemon-reload")
    yield booted
    booted.power_off()


def property_of(machine: Machine, name: str) -> str:
    return machine.shell(f"systemctl show {SERVICE} -p {name} --value")


def test_the_unit_passes_systemds_own_checks(machine: Machine) -> None:
    unit = f"/etc/systemd/system/{SERVICE}.service"
    machine.shell(f"systemd-analyze verify --man=no --recursive-errors=no {unit}")
    report = machine.shell(f"systemd-analyze security --no-pager --offline=true {unit}")
    exposure = re.search(r"exposure level for .*?: ([0-9.]+)", report)
    assert exposure is not None
    assert float(exposure[1]) <= 2.0


def test_it_is_ready_when_systemctl_start_returns(machine: Machine) -> None:
    machine.shell(f"systemctl start {SERVICE}")
    assert property_of(machine, "ActiveState") == "active"
    assert property_of(machine, "StatusText").startswith("serving")
    machine.shell(f"{AEROBEE} send Greetings hello")
    found = machine.shell(f"{AEROBEE} consume Greetings --group g --count 1 --json")
    assert "hello" in found


def test_reload_by_sighup_keeps_the_process(machine: Machine) -> None:
    before = property_of(machine, "MainPID")
    machine.shell(f"systemctl reload {SERVICE}")
    assert property_of(machine, "MainPID") == before
    machine.wait(f"journalctl -u {SERVICE} --no-pager", "reload", 10)


def test_a_hung_broker_is_restarted_by_the_watchdog(machine: Machine) -> None:
    before = property_of(machine, "MainPID")
    machine.shell(f"kill -STOP {before}")
    machine.wait(f"systemctl show {SERVICE} -p NRestarts --value", r"[1-9]", 30)
    machine.wait(f"systemctl is-active {SERVICE}", "^active", 30)
    assert property_of(machine, "MainPID") != before


def test_a_killed_broker_is_restarted_with_its_messages(machine: Machine) -> None:
    before = property_of(machine, "MainPID")
    machine.shell(f"kill -KILL {before}")
    machine.wait(f"systemctl show {SERVICE} -p MainPID --value", rf"^(?!{before}$|0$)\d+$", 30)
    machine.wait(f"systemctl is-active {SERVICE}", "^active", 30)
    found = machine.shell(f"{AEROBEE} consume Greetings --group g2 --count 1 --json")
    assert "hello" in found


def test_stop_is_clean_and_leaves_no_abort_file(machine: Machine) -> None:
    machine.shell(f"systemctl stop {SERVICE}")
    assert property_of(machine, "ActiveState") == "inactive"
    assert property_of(machine, "Result") == "success"
    assert machine.shell("ls /var/lib/private/aerobee/store").split().count("abort") == 0


def test_a_replica_by_the_example_follows_its_master(machine: Machine) -> None:
    """conf/replica.conf with addresses and sizes of here; the master is a process beside it."""
    size = "mappedFileSizeCommitLog=16777216"
    edits = ("s/^namesrvAddr=.*/namesrvAddr=127.0.0.1:9876/", f"s/^mappedFileSize.*/{size}/")
    words = " ".join(f"-e '{edit}'" for edit in edits)
    machine.shell(
        f"systemctl stop {SERVICE} && "
        f"sed {words} /src/conf/replica.conf > /etc/aerobee/broker.conf && "
        "echo namesrvListenPort=-1 >> /etc/aerobee/broker.conf && "
        "rm -rf /var/lib/private/aerobee/store"
    )
    settings = ("listenPort=11911", "brokerName=orders", size, "storePathRootDir=/var/tmp/master")
    words = " ".join(f"--set {setting}" for setting in settings)
    machine.shell(f"systemd-run --unit=master {AEROBEE} broker {words}")
    machine.wait(f"{AEROBEE} replicas --json", "ASYNC_MASTER", 60)
    machine.shell(f"systemctl start {SERVICE}")
    machine.shell(f"{AEROBEE} send Greetings hello")
    rows = machine.wait(f"{AEROBEE} replicas --json", '"in_sync": "yes"', 60)
    assert '"role": "SLAVE"' in rows
    machine.shell(f"systemctl stop {SERVICE} master")
    assert property_of(machine, "Result") == "success"
