"""Automatic failover: two and three brokers, a real etcd, kills, freezes and cuts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from peers.tools import wait_for
from peers.wire import Wire

from aerobee import connect
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.wire.sink_codes import SINK_PREPARE
from ha.failover_cluster import Cluster, FailoverProducer, Replicas
from ha.processes import TOPIC, has_topic, send_fields
from ha.test_killed import queue

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(240)]


def send_one(address: str, key: str) -> int:
    """The answer's code; -1: there was none, as it starts again with another role."""
    try:
        with Wire(address, timeout=15) as wire:
            return wire.request(310, send_fields(0, key), key.encode()).code
    except OSError:
        return -1


def shown(address: str) -> list[bytes]:
    """What a consumer gets of queue 0; nothing while the replica does not know its topic yet."""
    try:
        return list(queue(address, 0).values())
    except (AssertionError, OSError):
        return []


def shows(address: str, *bodies: bytes) -> bool:
    return shown(address) == list(bodies)


def lose_arbiter(
    cluster: Replicas, stop: Callable[[], object], start: Callable[[], object]
) -> None:
    """While it is down no broker stops and no role changes."""
    master = cluster.wait_in_sync(1, 2)
    stop()
    producer = FailoverProducer(cluster)
    producer.start()
    for number in (1, 2):
        wait_for(
            partial(cluster.is_away, number, 4.0),  # more than the lease
            timeout=60,
            what="it is told that the arbiter is away",
        )
    producer.acknowledge(200)
    assert cluster.leader() == master
    assert set(producer.codes) <= {0, 14}  # 14: from the replica, which it also tries
    # Without its replica the master cannot tell whether it is alone or cut off.
    cluster.brokers[3 - master].kill()
    address = cluster.brokers[master].broker
    wait_for(lambda: send_one(address, "x") == 14, timeout=60, what="it takes no messages")
    cluster.brokers[3 - master].start()  # it knows its id
    start()
    producer.acknowledge(50)
    producer.stop()
    cluster.check(producer)


def kill_masters(cluster: Replicas, *members: int) -> None:
    """Three of them, under load: each is replaced, and comes back as a replica."""
    master = cluster.wait_in_sync(*members)
    producer = FailoverProducer(cluster)
    producer.start()
    for _ in range(3):
        producer.acknowledge(100)
        cluster.brokers[master].kill()
        assert cluster.wait_for_leader() != master
        producer.acknowledge(50)
        cluster.brokers[master].start()
        master = cluster.wait_in_sync(*members)
    producer.acknowledge(50)
    producer.stop()
    cluster.check(producer)


def freeze_master(cluster: Replicas) -> None:
    """Of two, under load: it is replaced, and acknowledges nothing once resumed."""
    master = cluster.wait_in_sync(1, 2)
    producer = FailoverProducer(cluster)
    producer.start()
    producer.acknowledge(100)
    os.kill(cluster.brokers[master].pid, signal.SIGSTOP)
    cluster.wait_for_leader(other_than=master)
    os.kill(cluster.brokers[master].pid, signal.SIGCONT)  # it still believes it is the master
    old = cluster.brokers[master].broker
    codes = {send_one(old, f"late{number}") for number in range(3)}
    assert 0 not in codes, "a master that was replaced acknowledged a message"
    producer.acknowledge(100)
    producer.stop()
    cluster.check(producer)


def test_a_killed_master_is_replaced_and_comes_back_as_a_replica(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        kill_masters(cluster, 1, 2, 3)


def test_a_topic_made_just_before_the_master_died_is_there(tmp_path: Path) -> None:
    """Its successor has not heard of it, nor that its first message is confirmed."""
    with Cluster(tmp_path, 2) as cluster:
        master = cluster.wait_in_sync(1, 2)
        assert send_one(cluster.brokers[master].broker, "first") == 0
        cluster.brokers[master].kill()
        successor = cluster.brokers[cluster.wait_for_leader()].broker
        assert has_topic(successor)
        assert shown(successor) == [b"first"]


def test_a_stopped_master_hands_over_at_once(tmp_path: Path) -> None:
    """It does not wait for the lease of a minute."""
    with Cluster(tmp_path, 2, failoverLease="60000") as cluster:
        master = cluster.wait_in_sync(1, 2)
        producer = FailoverProducer(cluster)
        producer.start()
        producer.acknowledge(50)
        cluster.brokers[master].stop()
        cluster.wait_for_leader()
        producer.acknowledge(50)
        cluster.brokers[master].start()
        producer.stop()
        cluster.check(producer)


def test_a_frozen_master_is_replaced_and_loses_nothing_that_it_acknowledged(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, 2) as cluster:
        freeze_master(cluster)


def test_an_announcement_lost_under_a_live_master_loses_nothing(tmp_path: Path) -> None:
    """As etcd does when its own leader stalls (etcd#15247): the others consider it dead."""
    with Cluster(tmp_path, 2) as cluster:
        master = cluster.wait_in_sync(1, 2)
        producer = FailoverProducer(cluster)
        producer.start()
        for _ in range(3):
            producer.acknowledge(50)
            cluster.etcd.delete(f"/aerobee/DefaultCluster/pair/alive/{master}")
            producer.acknowledge(50)
            master = cluster.wait_in_sync(1, 2)
        producer.stop()
        cluster.check(producer)


def test_an_etcd_that_is_away_stops_nobody_and_changes_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2) as cluster:
        lose_arbiter(cluster, cluster.etcd.stop, cluster.etcd.start)


def test_no_consumer_sees_what_is_not_confirmed(tmp_path: Path) -> None:
    """cut_off_master_neither_acks_nor_shows: the set keeps its frozen member for long."""
    with Cluster(tmp_path, 2, haMaxTimeSlaveNotCatchup="60000", slaveTimeout="500") as cluster:
        master = cluster.wait_in_sync(1, 2)
        addresses = {number: cluster.brokers[number].broker for number in (1, 2)}
        assert send_one(addresses[master], "first") == 0
        slave = cluster.brokers[3 - master]
        wait_for(lambda: shown(slave.broker) == [b"first"], timeout=60, what="the replica shows it")
        os.kill(slave.pid, signal.SIGSTOP)
        assert send_one(addresses[master], "second") == 12  # FLUSH_SLAVE_TIMEOUT
        assert shown(addresses[master]) == [b"first"]
        os.kill(slave.pid, signal.SIGCONT)
        for address in addresses.values():
            wait_for(
                partial(shows, address, b"first", b"second"),
                timeout=60,
                what="both show what both have",
            )


def test_a_chunk_of_the_spark_sink_that_a_failover_could_take_is_not_acknowledged(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, 2, haMaxTimeSlaveNotCatchup="60000", slaveTimeout="500") as cluster:
        master = cluster.wait_in_sync(1, 2)
        names = ("query", "batch", "partition", "attempt", "chunk", "topic", "queueId")
        values = ("q-1", "0", "0", "0", "0", TOPIC, "0")
        ext = dict(zip(names, values, strict=True)) | {"bornTimestamp": "1"}
        body = encode_batch([(0, b"row", "")])
        with Wire(cluster.brokers[master].broker, timeout=30) as wire:
            assert wire.request(SINK_PREPARE, ext, body).code == 0
            os.kill(cluster.brokers[3 - master].pid, signal.SIGSTOP)
            refused = wire.request(SINK_PREPARE, ext | {"chunk": "1"}, body)
        os.kill(cluster.brokers[3 - master].pid, signal.SIGCONT)
        assert refused.code == 14
        assert "prepare it again" in refused.header["remark"]


def test_the_last_one_in_sync_is_waited_for_unless_a_person_accepts_the_loss(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, 2, haMaxTimeSlaveNotCatchup="500") as cluster:
        master = cluster.wait_in_sync(1, 2)
        slave = 3 - master
        assert send_one(cluster.brokers[master].broker, "first") == 0
        cluster.brokers[slave].kill()
        cluster.wait_in_sync(master)
        assert send_one(cluster.brokers[master].broker, "alone") == 0
        cluster.brokers[master].kill()
        cluster.brokers[slave].start()
        wait_for(
            lambda: "not in sync" in cluster.status(slave)["failover"]["waitsFor"],
            timeout=60,
            what="it says that it cannot be elected",
        )
        asyncio.run(promote(cluster, slave))
        cluster.wait_for_leader()
        assert send_one(cluster.brokers[slave].broker, "later") == 0
        cluster.brokers[master].start()  # what it alone had is cut from its log
        cluster.wait_in_sync(1, 2)
        assert shown(cluster.brokers[slave].broker) == [b"first", b"later"]


async def promote(cluster: Cluster, number: int) -> None:
    from aerobee.client.errors import BrokerError

    address = cluster.brokers[number].broker
    async with connect(f"mq://{cluster.brokers[number].namesrv}") as mq:
        with pytest.raises(BrokerError, match="accept-loss"):
            await mq.admin.promote(address)
        await mq.admin.promote(address, accept_loss=True)


def test_a_person_may_change_masters_while_messages_come(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2) as cluster:
        master = cluster.wait_in_sync(1, 2)
        producer = FailoverProducer(cluster)
        producer.start()
        producer.acknowledge(100)

        async def change() -> None:
            other = cluster.brokers[3 - master]
            async with connect(f"mq://{other.namesrv}") as mq:
                await mq.admin.promote(other.broker)

        asyncio.run(change())
        cluster.wait_for_leader(other_than=master)
        producer.acknowledge(100)
        producer.stop()
        cluster.check(producer)


def test_too_few_in_sync_replicas_refuse_messages(tmp_path: Path) -> None:
    few = {"minInSyncReplicas": "2", "haMaxTimeSlaveNotCatchup": "500"}
    with Cluster(tmp_path, 2, **few) as cluster:
        master = cluster.wait_in_sync(1, 2)
        address = cluster.brokers[master].broker
        wait_for(lambda: send_one(address, "x") == 0, timeout=60, what="two are enough")
        cluster.brokers[3 - master].kill()
        wait_for(lambda: send_one(address, "y") == 14, timeout=60, what="one is too few")
        cluster.brokers[3 - master].start()
        wait_for(lambda: send_one(address, "z") == 0, timeout=60, what="two are enough again")


def test_the_sdk_finds_the_new_master_by_itself(tmp_path: Path) -> None:
    with Cluster(tmp_path, 2) as cluster:
        cluster.name_each_other()
        master = cluster.wait_in_sync(1, 2)
        names = ",".join(broker.namesrv for broker in cluster.brokers.values())

        async def go_on() -> list[bytes]:
            async with connect(f"mq://{names}") as mq:
                await mq.send(TOPIC, b"before", timeout=60)
                cluster.brokers[master].kill()
                await mq.send(TOPIC, b"after", timeout=60)
                async with mq.consumer(TOPIC, group="readers") as inbox:
                    found = []
                    async for message in inbox:
                        found.append(bytes(message.body))
                        await message.ack()
                        if len(set(found)) == 2:
                            return found
            return []

        assert set(asyncio.run(asyncio.wait_for(go_on(), 150))) == {b"before", b"after"}
