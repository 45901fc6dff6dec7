"""The image and the cluster of containers, for real, with podman."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.tools import wait_for
from system.containers import (
    ETCD,
    ETCD_STAND_IN,
    IMAGE,
    ROOT,
    Composed,
    OutsideHost,
    build_image,
    etcd_image,
    make_base_image,
    need_podman,
    podman,
    use_config,
    wait_log,
)
from system.tools import run

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(900)]

SECRET = "/var/lib/aerobee/secret/root.json"
BROKERS = ("cluster", "brokers", "--json")
HARDENED = ("--read-only", "--cap-drop=ALL")
STARTED: list[str] = []  # containers to remove at the end; others on the machine stay


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_podman()
    folder = tmp_path_factory.mktemp("podman")
    use_config(folder)
    make_base_image(folder)
    build_image(folder)
    yield IMAGE
    podman("rm", "-f", "-t", "1", *STARTED, check=False)


def start(name: str, image: str, *words: str, options: tuple[str, ...] = ()) -> None:
    podman("rm", "-f", "-t", "1", name, check=False)
    STARTED.append(name)
    podman("run", "-d", "--name", name, *HARDENED, *options, image, *words)


def test_it_runs_hardened_answers_its_healthcheck_and_stops_by_sigterm(image: str) -> None:
    start("aerobee-one", image)
    wait_log("aerobee-one", "ready broker=")
    assert podman("exec", "aerobee-one", "id", "-u") == "10001"
    podman("healthcheck", "run", "aerobee-one")
    podman("exec", "aerobee-one", "aerobee", "send", "Greetings", "hello")
    found = podman(
        "exec", "aerobee-one", "aerobee", "consume", "Greetings", "--group=g", "--count=1",
        "--json",
    )  # fmt: skip
    assert json.loads(found.splitlines()[-1])["body"] == "hello"
    podman("stop", "-t", "20", "aerobee-one")
    assert podman("inspect", "aerobee-one", "--format", "{{.State.ExitCode}}") == "0"


def test_a_client_without_the_secret_of_the_first_start_is_refused(image: str) -> None:
    start("aerobee-locked", image)
    wait_log("aerobee-locked", "ready broker=")
    assert podman("exec", "aerobee-locked", "stat", "-c", "%a %u", SECRET) == "600 10001"
    secret = json.loads(podman("exec", "aerobee-locked", "cat", SECRET))["secretKey"]
    told = run("sh", "-c", "podman logs aerobee-locked 2>&1")
    assert SECRET in told and secret not in told
    unsigned = (
        "exec",
        "-e",
        "AEROBEE_CREDENTIALS_FILE=",
        "aerobee-locked",
        "aerobee",
        "topic",
        "list",
    )
    with pytest.raises(AssertionError, match="is not signed"):
        podman(*unsigned)
    podman("restart", "-t", "20", "aerobee-locked")
    wait_for(
        lambda: podman("logs", "aerobee-locked").count("ready broker=") == 2,
        timeout=60,
        what="it is back",
    )
    assert json.loads(podman("exec", "aerobee-locked", "cat", SECRET))["secretKey"] == secret
    podman("exec", "aerobee-locked", "aerobee", "topic", "list")


def test_two_masters_of_the_compose_file_serve_clients_with_one_secret(image: str) -> None:
    """The commands at the top of compose.yaml. All three start at once and find one secret."""
    with Composed(ROOT / "compose.yaml", {"aerobee": image}) as composed:
        composed.up("namesrv", "broker-a", "broker-b")
        wait_for(
            lambda: brokers(composed) == {"broker-a", "broker-b"},
            timeout=120,
            what="both brokers are registered",
        )
        for number in range(8):
            composed.run("client", "send", "Greetings", f"hello-{number}")
        words = ("consume", "Greetings", "--group", "demo", "--count", "8", "--json")
        found = composed.run("client", *words)
        bodies = {json.loads(line)["body"] for line in found.splitlines() if line.startswith("{")}
        assert bodies == {f"hello-{number}" for number in range(8)}
        secrets = {
            podman("exec", composed.container(name), "cat", SECRET)
            for name in ("namesrv", "broker-b")
        }
        assert len(secrets) == 1
        podman("healthcheck", "run", composed.container("namesrv"))


def brokers(composed: Composed) -> set[str]:
    try:
        return {row["broker"] for row in json.loads(composed.run("client", *BROKERS))}
    except (AssertionError, ValueError):  # not up yet
        return set()


def roles(composed: Composed) -> set[tuple[int, str]]:
    """Of the replicas that follow, and their master."""
    try:
        rows = json.loads(composed.run("client", "replicas", "--json"))
    except (AssertionError, ValueError):  # not up yet
        return set()
    return {(row["id"], row["role"]) for row in rows if row["id"] == 0 or row["in_sync"] == "yes"}


def test_a_replica_of_the_compose_file_takes_over_from_a_killed_master(image: str) -> None:
    """The commands at the top of compose.replicas.yaml."""
    with Composed(ROOT / "compose.replicas.yaml", {"aerobee": image}) as composed:
        composed.up("namesrv")
        wait_log(composed.container("namesrv"), "ready")
        composed.up("orders-1", "orders-2", "orders-3")
        wait_for(
            lambda: roles(composed) == {(0, "SYNC_MASTER"), (2, "SLAVE"), (3, "SLAVE")},
            timeout=120,
            what="a master and two replicas are there",
        )
        composed.run("client", "send", "Greetings", "hello")
        podman("kill", composed.container("orders-1"))
        composed.run("client", "promote", "orders-2:10911", "--yes")
        wait_for(
            lambda: roles(composed) >= {(0, "SYNC_MASTER"), (3, "SLAVE")},
            timeout=120,
            what="the replica is the master",
        )
        words = ("consume", "Greetings", "--group", "demo", "--count", "1", "--json")
        found = composed.run("client", *words)
        assert json.loads(found.splitlines()[-1])["body"] == "hello"
        composed.run("client", "send", "Greetings", "again")


def test_replicas_of_the_compose_file_with_etcd_take_over_by_themselves(image: str) -> None:
    """The commands at the top of compose.failover.yaml."""
    file = ROOT / "compose.failover.yaml"
    with etcd_image(), Composed(file, {"aerobee": image, ETCD: ETCD_STAND_IN}) as composed:
        composed.up("etcd", "namesrv")
        wait_log(composed.container("namesrv"), "ready")
        composed.up("orders-1")  # so that it is the first master
        wait_for(lambda: leader(composed) == 1, timeout=120, what="there is a master")
        composed.up("orders-2", "orders-3")
        wait_for(lambda: in_set(composed) == {1, 2, 3}, timeout=120, what="all are in sync")
        composed.run("client", "send", "Greetings", "hello")
        podman("kill", composed.container("orders-1"))
        composed.run("client", "send", "Greetings", "again", "--timeout", "60")
        assert leader(composed) in (2, 3)
        podman("start", composed.container("orders-1"))
        wait_for(lambda: in_set(composed) == {1, 2, 3}, timeout=120, what="all are in sync again")
        words = ("consume", "Greetings", "--group", "demo", "--count", "2", "--json")
        found = [json.loads(line)["body"] for line in composed.run("client", *words).splitlines()]
        assert sorted(found) == ["again", "hello"]


def rows_of(composed: Composed) -> list[dict[str, object]]:
    try:
        rows: list[dict[str, object]] = json.loads(composed.run("client", "replicas", "--json"))
    except (AssertionError, ValueError):  # not up yet
        return []
    return rows


def leader(composed: Composed) -> object:
    """Its brokerId; a master's row has that where etcd has chosen it."""
    leading = [row for row in rows_of(composed) if row["role"] not in (None, "SLAVE")]
    return leading[0]["id"] if leading else None


def in_set(composed: Composed) -> set[object]:
    return {row["id"] for row in rows_of(composed) if row.get("in_set") == "yes"}


def test_a_client_that_knows_only_the_mapped_port_is_served(image: str) -> None:
    aerobee = Path(sys.executable).with_name("aerobee")
    with OutsideHost() as outside:
        advertised = f"advertisedAddr={outside.host_address}:20911"
        ports = ("-p", "20911:10911", "-p", "29876:9876")
        start("aerobee-mapped", image, "broker", "--set", advertised, options=ports)
        wait_log("aerobee-mapped", "ready broker=")
        user = json.loads(podman("exec", "aerobee-mapped", "cat", SECRET))
        login = f"{user['accessKey']}:{user['secretKey']}"
        url = ("--url", f"mq://{login}@{outside.host_address}:29876")
        outside.run(aerobee, "send", "Mapped", "through the wall", *url)
        found = outside.run(aerobee, "consume", "Mapped", "--group=g", "--count=1", "--json", *url)
        assert "through the wall" in found
        # the same broker serves a client inside, by its own address
        inside = podman(
            "exec", "aerobee-mapped", "aerobee", "message", "time", "Mapped", "--json", check=False
        )
        assert "through the wall" in inside
