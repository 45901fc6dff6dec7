"""The image and the cluster of containers, for real, with podman."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.tools import wait_for
from system.containers import (
    IMAGE,
    ROOT,
    Composed,
    OutsideHost,
    build_image,
    make_base_image,
    need_podman,
    podman,
    use_config,
    wait_log,
)

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(900)]

NETWORK = "aerobee-test"
HARDENED = ("--read-only", "--cap-drop=ALL")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_podman()
    folder = tmp_path_factory.mktemp("podman")
    use_config(folder)
    make_base_image(folder)
    build_image(folder)
    yield IMAGE
    podman("rm", "-fa", "-t", "1", check=False)
    podman("network", "rm", "-f", NETWORK, check=False)


def start(name: str, image: str, *words: str, options: tuple[str, ...] = ()) -> None:
    podman("rm", "-f", "-t", "1", name, check=False)
    podman("run", "-d", "--name", name, *HARDENED, *options, image, *words)


def test_it_runs_hardened_answers_its_healthcheck_and_stops_by_sigterm(image: str) -> None:
    start("one", image)
    wait_log("one", "ready broker=")
    assert podman("exec", "one", "id", "-u") == "10001"
    podman("healthcheck", "run", "one")
    podman("exec", "one", "aerobee", "send", "Greetings", "hello")
    found = podman(
        "exec", "one", "aerobee", "consume", "Greetings", "--group=g", "--count=1",
        "--json",
    )  # fmt: skip
    assert json.loads(found.splitlines()[-1])["body"] == "hello"
    podman("stop", "-t", "20", "one")
    assert podman("inspect", "one", "--format", "{{.State.ExitCode}}") == "0"


def test_two_masters_and_a_name_service_serve_clients_in_their_network(image: str) -> None:
    podman("network", "rm", "-f", NETWORK, check=False)
    podman("network", "create", NETWORK)
    options = ("--network", NETWORK)
    start("namesrv", image, "namesrv", options=options)
    wait_log("namesrv", "ready")
    ip = podman(
        "inspect",
        "namesrv",
        "--format",
        f'{{{{(index .NetworkSettings.Networks "{NETWORK}").IPAddress}}}}',
    )
    for name in ("broker-a", "broker-b"):
        settings = (f"brokerName={name}", f"namesrvAddr={ip}:9876", "namesrvListenPort=-1")
        sets = [word for setting in settings for word in ("--set", setting)]
        start(name, image, "broker", *sets, options=options)
        wait_log(name, "ready broker=")
    client = ("run", "--rm", *options, "-e", f"AEROBEE_URL=mq://{ip}:9876", image)
    brokers = json.loads(podman(*client, "cluster", "brokers", "--json"))
    assert {row["broker"] for row in brokers} == {"broker-a", "broker-b"}
    for number in range(8):
        podman(*client, "send", "Orders", f"order-{number}")
    found = podman(*client, "consume", "Orders", "--group=g", "--count=8", "--json")
    bodies = {json.loads(line)["body"] for line in found.splitlines() if line.startswith("{")}
    assert bodies == {f"order-{number}" for number in range(8)}


def roles(composed: Composed) -> set[tuple[int, str]]:
    """Of the replicas that follow, and their master."""
    try:
        rows = json.loads(composed.run("client", "replicas", "--json"))
    except (AssertionError, ValueError):  # nobody is there yet
        return set()
    return {(row["id"], row["role"]) for row in rows if row["id"] == 0 or row["in_sync"] == "yes"}


def test_a_replica_of_the_compose_file_takes_over_from_a_killed_master(image: str) -> None:
    """The commands at the top of compose.replicas.yaml."""
    with Composed(ROOT / "compose.replicas.yaml", {"aerobee": image}) as composed:
        composed.up("namesrv")
        wait_log("namesrv", "ready")
        composed.up("orders-1", "orders-2", "orders-3")
        wait_for(
            lambda: roles(composed) == {(0, "SYNC_MASTER"), (2, "SLAVE"), (3, "SLAVE")},
            timeout=120,
            what="a master and two replicas are there",
        )
        composed.run("client", "send", "Greetings", "hello")
        podman("kill", "orders-1")
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


def test_a_client_that_knows_only_the_mapped_port_is_served(image: str) -> None:
    aerobee = Path(sys.executable).with_name("aerobee")
    with OutsideHost() as outside:
        advertised = f"advertisedAddr={outside.host_address}:20911"
        ports = ("-p", "20911:10911", "-p", "29876:9876")
        start("mapped", image, "broker", "--set", advertised, options=ports)
        wait_log("mapped", "ready broker=")
        url = ("--url", f"mq://{outside.host_address}:29876")
        outside.run(aerobee, "send", "Mapped", "through the wall", *url)
        found = outside.run(aerobee, "consume", "Mapped", "--group=g", "--count=1", "--json", *url)
        assert "through the wall" in found
        # the same broker serves a client inside, by its own address
        inside = podman(
            "exec", "mapped", "aerobee", "message", "time", "Mapped", "--json", check=False
        )
        assert "through the wall" in inside
