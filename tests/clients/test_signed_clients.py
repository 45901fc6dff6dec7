"""Clients that others wrote, with credentials: they send and receive what their user may, and are
told what it may not. Java's also over TLS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from access.guarded import write_users
from peers.aerobee_broker import AerobeeBroker
from peers.apache import VERSIONS
from peers.cpp_client import CppClient
from peers.go_client import GoClient
from peers.java_client import JavaClient
from peers.node_client import NodeClient
from peers.remote import ClientError, RemoteClient
from peers.rust_client import RustClient
from peers.tools import wait_for
from peers.wire import Wire
from tls.certificates import Authority

from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.signing import Credentials

USERS = """
accounts:
  - {accessKey: root, secretKey: a-secret-of-root, type: Super}
  - accessKey: worker
    secretKey: a-secret-of-worker
    policies: ["allow Topic:orders Pub,Sub", "allow Group:billing Sub"]
"""
WORKER = {"accessKey": "worker", "secretKey": "a-secret-of-worker"}
DENIED = "User:worker has no permission to Pub Topic:secret"
Make = Callable[[Path, dict[str, str]], RemoteClient]


def _java(version: str, tls: bool) -> Make:
    return lambda folder, trust: JavaClient(version, folder, **(trust if tls else {}))


CLIENTS = [
    *(
        pytest.param(
            _java(version, tls), id=f"java-{version}{'-tls' * tls}", marks=pytest.mark.apache
        )
        for version in VERSIONS
        for tls in (False, True)
    ),
    pytest.param(lambda folder, _: GoClient(folder), id="go", marks=pytest.mark.go),
    pytest.param(lambda folder, _: NodeClient(folder), id="node", marks=pytest.mark.node),
    pytest.param(lambda folder, _: CppClient(folder), id="cpp", marks=pytest.mark.cpp),
    pytest.param(lambda folder, _: RustClient(folder), id="rust", marks=pytest.mark.rust),
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def locked(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[AerobeeBroker]:
    folder = tmp_path_factory.mktemp("locked")
    pair = authority.sign("server")
    settings = {
        "aclEnable": "true",
        "aclFile": str(write_users(folder, USERS)),
        "tls.server.certPath": pair.certificate,
        "tls.server.keyPath": pair.key,
    }
    with AerobeeBroker(folder / "broker", **settings) as broker:
        for topic in ("orders", "secret"):
            make_topic(broker, topic)
        yield broker
        broker.stop()


def make_topic(broker: AerobeeBroker, name: str) -> None:
    ext = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    command = Command(17, ext)
    Credentials("root", "a-secret-of-root").sign(command)
    with Wire(broker.broker) as wire:
        answer = wire.request(17, command.ext)
    assert answer.code == 0, answer


@pytest.mark.parametrize("make", CLIENTS)
def test_a_client_does_what_its_user_may_and_learns_what_it_may_not(
    locked: AerobeeBroker, authority: Authority, tmp_path: Path, make: Make
) -> None:
    trust = {
        "tls__enable": "true",
        "tls__test__mode__enable": "false",
        "tls__client__authServer": "true",
        "tls__client__trustCertPath": authority.pair.certificate,
    }
    mark = tmp_path.name
    with make(tmp_path, trust) as remote:
        client: Any = remote
        producer = client.producer(locked.namesrv, "producer", **WORKER)
        sent = client.send(producer, "orders", 20, prefix=mark)
        assert {result["status"] for result in sent} == {"SEND_OK"}
        consumer = client.consumer(locked.namesrv, "consumer", "billing", "orders", **WORKER)

        def ours() -> Counter[str]:
            found = client.messages(consumer)
            return Counter(each["body"] for each in found if each["body"].startswith(mark))

        wait_for(lambda: len(ours()) == 20, timeout=60, what="20 messages")
        assert ours() == Counter(f"{mark}-{number}" for number in range(20))
        before = locked.log().count(DENIED)
        with pytest.raises(ClientError):  # C++ speaks of a missing route
            client.send(producer, "secret", 1)

        def is_told() -> bool:
            """In the log, where denials of one kind are said once a second."""
            if locked.log().count(DENIED) == before:
                with suppress(ClientError):
                    client.send(producer, "secret", 1)
            return locked.log().count(DENIED) > before

        wait_for(is_told, timeout=60, what="a denial", interval=1.1)
        client.stop(producer, consumer)
