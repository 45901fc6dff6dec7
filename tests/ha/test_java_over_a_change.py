"""Apache's Java producer and consumer keep working while the master changes: nothing that was
answered with SEND_OK is lost, and no queue has a gap."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from aerobee_command import aerobee
from peers.apache import VERSIONS, ApacheBroker
from peers.daemon import Daemon
from peers.java_client import ClientError, JavaClient
from peers.tools import wait_for

from ha.processes import SIZES, TOPIC, has_topic, master_of, slave_of
from ha.test_apache import is_up

pytestmark = [pytest.mark.apache, pytest.mark.timeout(300)]

LOOK = {"poll": 2000}  # milliseconds between two looks at the routes; 30 s unless told
COPIED = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}


class JavaProducer(threading.Thread):
    """Sends one message after the other, ignoring failures; `acked` has the bodies of those
    that were answered with SEND_OK."""

    def __init__(self, java: JavaClient, names: str) -> None:
        super().__init__(daemon=True)
        self._java = java
        self._name = java.producer(names, "producer", timeout=3000, **LOOK)
        self._ending = threading.Event()
        self.acked: list[str] = []
        self.failed = 0

    def run(self) -> None:
        for number in itertools.count():
            if self._ending.is_set():
                return
            try:
                (sent,) = self._java.send(self._name, TOPIC, first=number)
            except ClientError:
                self.failed += 1
                self._ending.wait(0.1)
            else:
                if sent["status"] == "SEND_OK":
                    self.acked.append(f"m-{number}")

    def acknowledge(self, count: int) -> None:
        """Wait for so many more."""
        before = len(self.acked)
        wait_for(
            lambda: len(self.acked) >= before + count,
            timeout=120,
            what=f"{count} more sends are answered with SEND_OK",
        )

    def stop(self) -> None:
        self._ending.set()
        self.join(60)


def check_consumed(java: JavaClient, consumer: str, producer: JavaProducer) -> None:
    """All that was acknowledged has come, and the offsets of each queue follow each other."""
    acked = set(producer.acked)

    def all_came() -> bool:
        return acked <= {message["body"] for message in java.messages(consumer)}

    wait_for(all_came, timeout=120, what="the consumer has all that was acknowledged")
    bodies: dict[int, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for message in java.messages(consumer):
        if message["topic"] == TOPIC:
            bodies[message["queue"]][message["offset"]].add(message["body"])
    for queue_id, found in bodies.items():
        assert sorted(found) == list(range(max(found) + 1)), f"a gap in queue {queue_id}"
        assert all(len(at) == 1 for at in found.values()), "two messages at one offset"


@pytest.mark.parametrize("version", VERSIONS)
async def test_java_clients_continue_with_the_promoted_slave(tmp_path: Path, version: str) -> None:
    with Daemon(tmp_path / "names", "--namesrv") as daemon:
        names = daemon.ready()["namesrv"]
        told = {"namesrvAddr": names, "namesrvListenPort": "-1"}
        with (
            master_of(tmp_path, **COPIED, **told) as master,
            slave_of(tmp_path, names, namesrvListenPort="-1") as slave,
            JavaClient(version, tmp_path / "java") as java,
        ):
            producer = JavaProducer(java, names)
            consumer = java.consumer(names, "consumer", "CG", TOPIC, **LOOK)
            producer.start()
            producer.acknowledge(100)
            wait_for(lambda: has_topic(slave.broker), timeout=90, what="the slave has the topic")
            master.kill()
            before = len(producer.acked)
            url = f"mq://{names}"
            await aerobee("promote", slave.broker, "--yes", "--role", "ASYNC_MASTER", url=url)
            producer.acknowledge(100)
            producer.stop()
            assert before < len(producer.acked)
            check_consumed(java, consumer, producer)


class ApacheMaster(ApacheBroker):
    """A Java master in the name service of another."""

    def __init__(self, version: str, folder: Path, names: str) -> None:
        super().__init__(version, folder, **SIZES | COPIED | {"namesrvAddr": names})

    def _is_ready(self) -> bool:
        return is_up(self.broker)


@pytest.mark.parametrize("version", VERSIONS)
async def test_java_clients_run_on_through_a_move_from_apache(tmp_path: Path, version: str) -> None:
    """Our slave copies Apache's master while the clients work, and takes its place."""
    with Daemon(tmp_path / "names", "--namesrv") as daemon:
        names = daemon.ready()["namesrv"]
        with (
            ApacheMaster(version, tmp_path / "apache", names) as master,
            JavaClient(version, tmp_path / "java") as java,
        ):
            producer = JavaProducer(java, names)
            consumer = java.consumer(names, "consumer", "CG", TOPIC, **LOOK)
            producer.start()
            wait_for(lambda: java.messages(consumer), timeout=90, what="a message is consumed")
            with slave_of(tmp_path, names, namesrvListenPort="-1") as ours:
                wait_for(lambda: has_topic(ours.broker), timeout=90, what="the slave has the topic")
                producer.acknowledge(100)  # copied: SYNC_MASTER
                master.stop()
                url = f"mq://{names}"
                await aerobee("promote", ours.broker, "--yes", "--role", "ASYNC_MASTER", url=url)
                producer.acknowledge(100)
                producer.stop()
                check_consumed(java, consumer, producer)
