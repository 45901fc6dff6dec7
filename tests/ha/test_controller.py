"""Failover by Apache's own controller, of brokers of ours."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest
from peers.controller import VERSION, ApacheController
from peers.java_client import JavaClient
from peers.tools import free_port, wait_for
from peers.wire import Wire

from aerobee import connect
from aerobee.protocol.files.epoch_file import Epoch, decode_epochs
from ha.failover_cluster import ControllerCluster, FailoverProducer, Replicas
from ha.test_failover import freeze_master, kill_masters, lose_arbiter, send_one, shown

pytestmark = [pytest.mark.apache, pytest.mark.timeout(300)]


def epochs_of(store: Path) -> tuple[Epoch, ...]:
    return decode_epochs((store / "epochFileCheckpoint").read_bytes())


def test_a_broker_alone_is_elected_and_again_after_a_kill(tmp_path: Path) -> None:
    with ControllerCluster(tmp_path, 1) as cluster:
        cluster.wait_in_sync(1)
        broker = cluster.brokers[1]
        assert (broker.store / "brokerIdentity").read_text() == "DefaultCluster#pair#1"
        assert send_one(broker.broker, "first") == 0
        before = cluster.controller.record("pair")["masterEpoch"]
        broker.kill_and_start()
        cluster.wait_in_sync(1)
        elected = cluster.controller.record("pair")["masterEpoch"]
        assert elected > before
        assert send_one(broker.broker, "second") == 0
        assert shown(broker.broker) == [b"first", b"second"]
        broker.stop()
        assert [epoch.number for epoch in epochs_of(broker.store)] == [before, elected]


def test_a_killed_master_is_replaced_and_comes_back_as_a_replica(tmp_path: Path) -> None:
    with ControllerCluster(tmp_path, 2) as cluster:
        kill_masters(cluster, 1, 2)


def test_a_frozen_master_is_replaced_and_loses_nothing_that_it_acknowledged(
    tmp_path: Path,
) -> None:
    with ControllerCluster(tmp_path, 2) as cluster:
        freeze_master(cluster)


def test_a_controller_that_is_away_stops_nobody_and_changes_nothing(tmp_path: Path) -> None:
    with ControllerCluster(tmp_path, 2) as cluster:
        lose_arbiter(cluster, cluster.controller.kill, cluster.controller.start)


async def promote(address: str, namesrv: str) -> None:
    async with connect(f"mq://{namesrv}") as mq:
        await mq.admin.promote(address)


def test_mqadmin_shows_and_steers_it(tmp_path: Path) -> None:
    with ControllerCluster(tmp_path, 2) as cluster, JavaClient(VERSION, tmp_path / "java") as java:
        master = cluster.wait_in_sync(1, 2)
        address = cluster.controller.address
        assert f"#ControllerLeaderAddress\t{address}" in java.admin(
            "getControllerMetaData", "-a", address
        )
        output = java.admin("getSyncStateSet", "-a", address, "-b", "pair")
        assert f"#MasterBrokerId\t{master}" in output and "#SyncStateSetNums\t2" in output, output
        producer = FailoverProducer(cluster)
        producer.start()
        producer.acknowledge(100)
        other = 3 - master
        java.admin(
            *("electMaster", "-a", address, "-b", str(other), "-bn", "pair"),
            *("-c", "DefaultCluster"),
        )
        cluster.wait_for_leader(other_than=master)
        cluster.wait_in_sync(1, 2)
        producer.acknowledge(100)
        wait_for(
            lambda: cluster.status(master)["failover"]["inSync"] == [1, 2],
            timeout=60,
            what="it knows that it is in sync",
        )
        asyncio.run(promote(cluster.brokers[master].broker, cluster.controller.namesrv))
        cluster.wait_for_leader(other_than=other)
        cluster.wait_in_sync(1, 2)
        producer.acknowledge(100)
        output = java.admin("getBrokerEpoch", "-n", cluster.controller.namesrv, "-b", "pair")
        assert f"{cluster.controller.record('pair')['masterEpoch']}" in output, output
        producer.stop()
        cluster.check(producer)


def alive(controller: ApacheController) -> list[bool]:
    """Liveness of the in-sync members, as the leading controller reports it."""
    return [row["alive"] for row in controller.record("pair").get("inSyncReplicas", [])]


def test_another_controller_leads_while_messages_come(tmp_path: Path) -> None:
    """The leader is frozen; once resumed it accepts heartbeats but leads no more."""
    peers = ";".join(f"n{number}-127.0.0.1:{free_port()}" for number in range(3))
    controllers = [
        ApacheController(
            tmp_path / f"controller{number}",
            controllerDLegerPeers=peers,
            controllerDLegerSelfId=f"n{number}",
        )
        for number in range(3)
    ]
    output = {
        "enableControllerMode": "true",
        "controllerAddr": ";".join(each.address for each in controllers),
        "controllerHeartBeatTimeoutMills": "3000",
    }
    cluster = Replicas(tmp_path, 2, **output)
    try:
        for each in controllers:
            each.launch()
        for each in controllers:
            each.wait_for_leader()
        cluster.start()
        cluster.wait_in_sync(1, 2)
        producer = FailoverProducer(cluster)
        producer.start()
        producer.acknowledge(100)
        first = next(each for each in controllers if each.address == each.leader())
        others = [each for each in controllers if each is not first]
        os.kill(first.pid, signal.SIGSTOP)
        wait_for(
            lambda: others[0].leader() not in ("", first.address),
            timeout=120,
            what="another controller leads",
        )
        os.kill(first.pid, signal.SIGCONT)
        wait_for(
            lambda: any(alive(each) == [True] * 2 for each in others),
            timeout=120,
            what="it gets the heartbeats of both",
        )
        master = cluster.wait_in_sync(1, 2)
        producer.acknowledge(100)
        cluster.brokers[master].kill()
        assert cluster.wait_for_leader() != master
        producer.acknowledge(50)
        cluster.brokers[master].start()
        producer.stop()
        cluster.check(producer)
    finally:
        cluster.kill()
        for each in controllers:
            if each.is_running:
                each.kill()


def test_a_controller_that_wants_tls_and_hears_signed_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes a certificate of its own and knows no users: what is signed is taken as it is."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dtls.server.mode=enforcing")
    inner = '{"accessKey":"inner","secretKey":"a-secret-of-inner"}'
    locked = {
        "tls.enable": "true",
        "tls.client.authServer": "false",
        "innerClientAuthenticationCredentials": inner,
    }
    cluster = ControllerCluster(tmp_path, 1, **locked)
    host, port = cluster.controller.address.split(":")
    try:
        cluster.controller.launch()
        wait_for(lambda: listens(host, int(port)), timeout=120, what="the controller listens")
        with pytest.raises((OSError, ConnectionError)), Wire(f"{host}:{port}", timeout=10) as wire:
            wire.request(1005, {})  # without TLS
        cluster.start()
        wait_for(
            lambda: send_one(cluster.brokers[1].broker, "first") == 0,
            timeout=120,
            what="the broker is elected",
        )
    finally:
        cluster.__exit__()


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True
