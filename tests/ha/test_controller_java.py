"""Ours and a Java broker in one set of Apache's controller: each takes over from the other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from peers.apache import ApacheBroker
from peers.controller import VERSION, ApacheController
from peers.tools import wait_for

from ha.failover_cluster import ControllerCluster, FailoverProducer
from ha.processes import SIZES, log_files, wait_in_step
from ha.test_apache import is_up
from ha.test_controller import epochs_of
from ha.test_killed import check

pytestmark = [pytest.mark.apache, pytest.mark.timeout(400)]


class JavaReplica(ApacheBroker):
    """A Java broker of the same name."""

    def __init__(self, folder: Path, controller: ApacheController) -> None:
        own = {
            "enableControllerMode": "true",
            "controllerAddr": controller.address,
            "namesrvAddr": controller.namesrv,
            "brokerRole": "SLAVE",
            "brokerId": "-1",
            "allAckInSyncStateSet": "true",
            "slaveReadEnable": "true",
            "controllerHeartBeatTimeoutMills": "3000",
            "haSendHeartbeatInterval": "1000",
        }
        super().__init__(VERSION, folder, **SIZES | own)

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the JVM ended by itself:\n{self.output()[-4000:]}")
        return is_up(self.broker)


class Mixed:
    """One of ours and one of Java's, as what a `FailoverProducer` sends to."""

    def __init__(self, *brokers: object) -> None:
        self.brokers = dict(enumerate(brokers))


def wait_for_set(controller: ApacheController, master: int, *members: int) -> None:
    def is_so() -> bool:
        found = controller.record("pair")
        return found.get("masterBrokerId") == master and controller.in_sync("pair") == [*members]

    wait_for(is_so, timeout=120, what=f"{master} is the master of {members}")


def empty(store: Path) -> None:
    """All but its name."""
    identity = (store / "brokerIdentity").read_bytes()
    shutil.rmtree(store)
    store.mkdir()
    (store / "brokerIdentity").write_bytes(identity)


@pytest.mark.parametrize("first", ["java", "ours"])
def test_beside_a_java_broker_each_takes_over_from_the_other(tmp_path: Path, first: str) -> None:
    with ControllerCluster(tmp_path, 0) as cluster:
        controller = cluster.controller
        java = JavaReplica(tmp_path / "java", controller)
        ours = ControllerCluster(tmp_path, 1).brokers[1]
        ours.settings |= {
            "controllerAddr": controller.address,
            "namesrvAddr": controller.namesrv,
            "haSendHeartbeatInterval": "1000",
        }
        one, other = (java, ours) if first == "java" else (ours, java)
        producer = FailoverProducer(Mixed(one, other))  # type: ignore[arg-type]
        try:
            one.start()
            wait_for_set(controller, 1, 1)
            other.start()
            wait_for_set(controller, 1, 1, 2)
            producer.start()
            producer.acknowledge(200)
            one.kill()
            wait_for_set(controller, 2, 2)
            producer.acknowledge(100)
            one.start()
            wait_for_set(controller, 2, 1, 2)
            producer.acknowledge(100)
            other.kill()
            wait_for_set(controller, 1, 1)
            producer.acknowledge(100)
            empty(other.store)  # it gets all epochs again
            other.start()
            wait_for_set(controller, 1, 1, 2)
            producer.acknowledge(50)
            producer.stop()
            wait_in_step(other.broker, one.broker, timeout=120)
            check(producer, java.broker, ours.broker)
            other.stop()  # first: else it is elected
            one.stop()
            assert log_files(java.store) == log_files(ours.store)
            assert epochs_of(java.store) == epochs_of(ours.store)
        finally:
            for broker in (java, ours):
                if broker.is_running:
                    broker.kill()
