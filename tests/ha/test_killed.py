"""Kill, stop and freeze either side under load: nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from effort import examples
from peers.tools import wait_for
from peers.wire import Wire

from aerobee.protocol.files.record import decode_records
from ha.processes import TOPIC, Producer, log_files, master_of, slave_of, wait_in_step

pytestmark = pytest.mark.timeout(180)


def queue(address: str, queue_id: int) -> dict[int, bytes]:
    """All messages of a queue, by offset."""
    found: dict[int, bytes] = {}
    with Wire(address) as wire:
        while True:
            header = {"consumerGroup": "CG", "topic": TOPIC, "queueId": str(queue_id)}
            header |= {"queueOffset": str(len(found)), "maxMsgNums": "32", "sysFlag": "4"}
            header |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}
            answer = wire.request(11, header | {"subVersion": "0", "expressionType": "TAG"})
            if answer.code == 19:  # PULL_NOT_FOUND
                return found
            assert answer.code == 0, answer
            for message in decode_records(answer.body):
                found[message.queue_offset] = bytes(message.body)


def check(producer: Producer, *brokers: str) -> None:
    for broker in brokers:
        messages = {queue_id: queue(broker, queue_id) for queue_id in range(2)}
        for (queue_id, offset), body in producer.acked.items():
            assert messages[queue_id].get(offset) == body, (broker, queue_id, offset)


@pytest.mark.parametrize(
    ("killed", "times"), [("slave", examples(4, share=2)), ("master", examples(3, share=2))]
)
def test_a_slave_has_all_in_the_end_whoever_is_killed_again_and_again(
    tmp_path: Path, killed: str, times: int
) -> None:
    sync = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "3000"}
    with master_of(tmp_path, **sync) as master, slave_of(tmp_path, master.namesrv) as slave:
        producer = Producer(master.broker)
        producer.start()
        for _ in range(times):
            producer.acknowledge(200)
            (slave if killed == "slave" else master).kill_and_start()
        producer.acknowledge(50)
        producer.stop()
        wait_in_step(slave.broker, master.broker)
        check(producer, master.broker, slave.broker)
        master.stop()
        slave.stop()
        assert log_files(slave.store) == log_files(master.store)


def test_what_was_acknowledged_is_on_the_slave_when_the_master_is_gone_for_good(
    tmp_path: Path,
) -> None:
    sync = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "3000"}
    with master_of(tmp_path, **sync) as master, slave_of(tmp_path, master.namesrv) as slave:
        producer = Producer(master.broker)
        producer.start()
        producer.acknowledge(500)
        master.kill()
        producer.stop()

        def has_all() -> bool:
            messages = {queue_id: queue(slave.broker, queue_id) for queue_id in range(2)}
            return all(messages[q].get(at) == body for (q, at), body in producer.acked.items())

        wait_for(has_all, timeout=20, what="the slave serves all that was acknowledged")


def test_a_frozen_slave_costs_a_timeout_and_is_dropped(tmp_path: Path) -> None:
    sync = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "300", "haHousekeepingInterval": "2000"}
    quick = {"haSendHeartbeatInterval": "500", "haHousekeepingInterval": "2000"}
    with (
        master_of(tmp_path, **sync) as master,
        slave_of(tmp_path, master.namesrv, **quick) as slave,
    ):
        producer = Producer(master.broker)
        producer.start()
        producer.acknowledge(50)
        os.kill(slave.pid, signal.SIGSTOP)
        producer.until(lambda: producer.codes.get(12), "a send timed out")
        producer.until(lambda: producer.codes.get(11), "the slave is not waited for any more")
        os.kill(slave.pid, signal.SIGCONT)
        producer.acknowledge(50)
        producer.stop()
        wait_in_step(slave.broker, master.broker)
        check(producer, slave.broker)
