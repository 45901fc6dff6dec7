"""Replication between ours and Apache RocketMQ, each as master and as slave: the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aerobee_command import aerobee
from peers.apache import VERSIONS, ApacheBroker
from peers.java_client import JavaClient
from peers.tools import wait_for
from peers.wire import Wire

from aerobee.protocol.files.epoch_file import Epoch, decode_epochs
from ha.processes import (
    SIZES,
    TOPIC,
    Producer,
    log_end,
    log_files,
    master_of,
    slave_of,
    wait_in_step,
)
from ha.test_killed import check

pytestmark = [pytest.mark.apache, pytest.mark.timeout(300)]

SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}


class ApacheSlave(ApacheBroker):
    """A Java slave that registers with the name service of another."""

    def __init__(self, version: str, folder: Path, namesrv: str, **settings: str) -> None:
        super().__init__(version, folder, **SIZES | SLAVE | {"namesrvAddr": namesrv} | settings)

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the JVM exited on its own:\n{self.output()[-4000:]}")
        return is_up(self.broker)


def is_up(address: str) -> bool:
    try:
        with Wire(address, timeout=5) as wire:
            return wire.request(28, {}).code == 0
    except OSError:
        return False


def produced(address: str, count: int) -> Producer:
    """So many messages, acknowledged."""
    producer = Producer(address)
    with Wire(address) as wire:
        while len(producer.acked) < count:
            producer.send(wire)
    return producer


def add(producer: Producer, address: str, count: int, codes: tuple[int, ...] = (0,)) -> None:
    with Wire(address) as wire:
        for _ in range(count):
            producer.send(wire)
    assert set(producer.codes) <= {*codes, 0}, producer.codes


def brokers_of(namesrv: str) -> dict[str, str]:
    """brokerAddrs of the pair, as a route of its topic shows them."""
    with Wire(namesrv) as wire:
        ext = {"topic": TOPIC, "acceptStandardJsonOnly": "true"}
        answer = wire.request(105, ext)
        if answer.code != 0:
            return {}
        return dict(json.loads(answer.body)["brokerDatas"][0]["brokerAddrs"])


@pytest.mark.parametrize("version", VERSIONS)
def test_our_slave_follows_apaches_master(tmp_path: Path, version: str) -> None:
    with ApacheBroker(version, tmp_path / "apache", **SIZES) as master:
        producer = produced(master.broker, 1500)  # several files, before the slave is there
        with slave_of(tmp_path, master.namesrv) as slave:
            wait_in_step(slave.broker, master.broker)
            check(producer, slave.broker)
            add(producer, master.broker, 300)
            slave.kill_and_start()
            add(producer, master.broker, 300)
            wait_in_step(slave.broker, master.broker)
            master.kill()
            master.start()  # 5.x has a route of our slave's before the broker is up
            wait_for(lambda: is_up(master.broker), timeout=60, what="the master is up")
            add(producer, master.broker, 300)
            wait_in_step(slave.broker, master.broker)
            check(producer, slave.broker)
            wait_for(
                lambda: set(brokers_of(master.namesrv)) == {"0", "1"},
                timeout=40,
                what="Apache's name server shows our slave",
            )
            master.stop()
            slave.stop()
            assert log_files(slave.store) == log_files(master.store)


@pytest.mark.parametrize("version", VERSIONS)
def test_apaches_slave_follows_our_master(tmp_path: Path, version: str) -> None:
    sync = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "5000"}
    with master_of(tmp_path, **sync) as master:
        producer = Producer(master.broker)
        add(producer, master.broker, 1500, codes=(11,))  # no slave is there
        with ApacheSlave(version, tmp_path / "apache", master.namesrv) as slave:
            wait_for(
                lambda: log_end(slave.broker) == log_end(master.broker),
                timeout=60,
                what="the slave has what was there before it",
            )
            producer.codes.clear()
            add(producer, master.broker, 500)  # SEND_OK: the slave has them
            assert producer.codes == {0: 500}
            slave.kill()
            add(producer, master.broker, 100, codes=(11, 12))
            slave.start()
            wait_for(
                lambda: log_end(slave.broker) == log_end(master.broker),
                timeout=60,
                what="the slave is in step again",
            )
            master.kill_and_start()
            add(producer, master.broker, 200, codes=(11, 12))
            wait_in_step(slave.broker, master.broker, timeout=120)
            check(producer, master.broker, slave.broker)
            slave.stop()
            master.stop()
            assert log_files(slave.store) == log_files(master.store)


@pytest.mark.parametrize("version", VERSIONS)
def test_roles_can_be_exchanged_between_ours_and_apaches(tmp_path: Path, version: str) -> None:
    with ApacheBroker(version, tmp_path / "apache", **SIZES) as java:
        producer = produced(java.broker, 600)
        with slave_of(tmp_path, java.namesrv) as ours:
            wait_in_step(ours.broker, java.broker)
            java.stop()
            ours.stop()
    with master_of(tmp_path, storePathRootDir=str(ours.store)) as master:
        add(producer, master.broker, 600)
        folder = {"storePathRootDir": str(java.store)}
        with ApacheSlave(version, tmp_path / "again", master.namesrv, **folder) as slave:
            add(producer, master.broker, 200)
            wait_in_step(slave.broker, master.broker, timeout=120)
            check(producer, master.broker, slave.broker)
            slave.stop()
            master.stop()
    assert log_files(java.store) == log_files(ours.store)


@pytest.mark.parametrize("version", VERSIONS)
async def test_our_slave_takes_over_from_apaches_master(tmp_path: Path, version: str) -> None:
    """A migration: copied while producers send, then promoted."""
    with (
        ApacheBroker(version, tmp_path / "apache", **SIZES) as java,
        slave_of(tmp_path, java.namesrv) as ours,
    ):
        producer = produced(java.broker, 900)
        wait_in_step(ours.broker, java.broker)
        end = log_end(ours.broker)
        java.stop()
        await aerobee("promote", ours.broker, "--yes", url=f"mq://{ours.namesrv}")
        add(producer, ours.broker, 300)
        check(producer, ours.broker)
        ours.stop()
        data = (ours.store / "epochFileCheckpoint").read_bytes()
        assert decode_epochs(data) == (Epoch(1, 0), Epoch(2, end))


@pytest.mark.parametrize("version", VERSIONS)
def test_mqadmin_shows_master_and_slave(tmp_path: Path, version: str) -> None:
    with (
        master_of(tmp_path) as master,
        slave_of(tmp_path, master.namesrv) as slave,
        JavaClient(version, tmp_path / "java") as java,
    ):
        produced(master.broker, 20)
        wait_in_step(slave.broker, master.broker)
        wait_for(
            lambda: set(brokers_of(master.namesrv)) == {"0", "1"}, timeout=20, what="a full route"
        )
        rows = java.admin("clusterList", "-n", master.namesrv).splitlines()
        shown = {tuple(row.split()[1:4]) for row in rows if row.startswith("DefaultCluster")}
        assert shown == {("pair", "0", master.broker), ("pair", "1", slave.broker)}
        status = java.admin("brokerStatus", "-n", master.namesrv, "-b", slave.broker)
        assert "commitLogMaxOffset" in status
        if version.startswith("5"):
            output = java.admin("haStatus", "-n", master.namesrv, "-b", master.broker)
            assert {"#SlaveNum\t1", "#InSyncSlaveNum\t1"} <= set(output.splitlines()), output
            output = java.admin("haStatus", "-n", master.namesrv, "-b", slave.broker)
            assert f"127.0.0.1:{int(master.broker.rpartition(':')[2]) + 1}" in output, output
            output = java.admin("getBrokerEpoch", "-n", master.namesrv, "-b", "pair")
            assert "epoch=1" in output and f"{log_end(master.broker)}" in output, output
