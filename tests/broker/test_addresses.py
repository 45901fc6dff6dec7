"""Which address a client is given: the one it connected to, or the one outside a port mapping."""

import socket
import threading
from ipaddress import ip_address, ip_network

import pytest
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.net.addresses import Addresses, LocalNetworks, detect_networks
from aerobee.broker.settings import load_settings
from aerobee.protocol.files.ids import encode_host

BRIDGE = LocalNetworks((ip_network("10.88.0.0/16"),), frozenset({ip_address("10.88.0.1")}))
OURS = ("10.88.0.5", 10911)
ADVERTISED = {"advertisedAddr": "203.0.113.9:20911"}


def addresses(
    settings: dict[str, str] | None = None, local_networks: LocalNetworks | None = BRIDGE
) -> Addresses:
    return Addresses(load_settings(None, settings or {}, {}), Clock(), local_networks)


@pytest.mark.parametrize(
    ("settings", "peer", "expected"),
    [
        ({}, "10.88.0.7", "10.88.0.5:10911"),
        ({}, "198.51.100.1", "10.88.0.5:10911"),
        (ADVERTISED, "10.88.0.7", "10.88.0.5:10911"),  # a container beside us
        (ADVERTISED, "10.88.0.5", "10.88.0.5:10911"),  # ourselves
        (ADVERTISED, "127.0.0.1", "10.88.0.5:10911"),
        (ADVERTISED, "10.88.0.1", "203.0.113.9:20911"),  # the host, which forwards the port
        (ADVERTISED, "198.51.100.1", "203.0.113.9:20911"),
        (ADVERTISED, "::ffff:198.51.100.1", "203.0.113.9:20911"),
        ({"brokerIP1": "192.0.2.7"}, "10.88.0.7", "192.0.2.7:10911"),
        ({"brokerIP1": "192.0.2.7"} | ADVERTISED, "198.51.100.1", "203.0.113.9:20911"),
        ({"brokerIP1": "192.0.2.7"} | ADVERTISED, "10.88.0.7", "192.0.2.7:10911"),
    ],
)
def test_route_and_store_host_agree(settings: dict[str, str], peer: str, expected: str) -> None:
    ours = addresses(settings)
    assert ours.route_address((peer, 40000), OURS) == expected
    host, _, port = expected.rpartition(":")
    assert ours.store_host((peer, 40000), OURS) == encode_host(host, int(port))


def test_an_advertised_name_is_in_routes_and_its_address_in_message_ids() -> None:
    ours = addresses({"advertisedAddr": "localhost:20911"})
    assert ours.route_address(("198.51.100.1", 1), OURS) == "localhost:20911"
    assert ours.store_host(("198.51.100.1", 1), OURS) == encode_host("127.0.0.1", 20911)


def test_a_name_that_does_not_resolve_leaves_the_inner_address_in_message_ids() -> None:
    ours = addresses({"advertisedAddr": "no-such-host.invalid:20911"})
    assert ours.store_host(("198.51.100.1", 1), OURS) == encode_host(*OURS)


async def test_a_name_is_not_looked_up_again_for_each_message_nor_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    answered: list[str] = []
    answer = threading.Event()

    def slow(host: str) -> str:
        asked.append(host)
        assert answer.wait(60)
        answered.append(host)
        return "203.0.113.9"

    monkeypatch.setattr(socket, "gethostbyname", slow)
    ours = addresses({"advertisedAddr": "slow.example:20911"})
    for _ in range(5):
        assert ours.store_host(("198.51.100.1", 1), OURS) == encode_host(*OURS)
    assert asked == ["slow.example"] and answered == []
    answer.set()
    known = encode_host("203.0.113.9", 20911)
    await until(lambda: ours.store_host(("198.51.100.1", 1), OURS) == known)


def test_internal_networks_replace_those_of_the_interfaces() -> None:
    ours = addresses({"internalNetworks": "198.51.100.0/24"} | ADVERTISED, None)
    assert ours.route_address(("198.51.100.1", 1), OURS) == "10.88.0.5:10911"
    assert ours.route_address(("192.0.2.200", 1), OURS) == "203.0.113.9:20911"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"bindAddress": "0.0.0.0"}, "10.88.0.5:10911"),
        ({"bindAddress": "192.0.2.3"}, "192.0.2.3:10911"),
        ({"bindAddress": "0.0.0.0"} | ADVERTISED, "203.0.113.9:20911"),
        ({"bindAddress": "0.0.0.0", "brokerIP1": "192.0.2.7"} | ADVERTISED, "192.0.2.7:10911"),
    ],
)
def test_name_servers_get_the_address_that_clients_reach(
    settings: dict[str, str], expected: str
) -> None:
    assert addresses(settings).for_name_server(("10.88.0.5", 55555)) == expected


def test_the_machine_knows_networks_that_it_is_in() -> None:
    local_networks = detect_networks()
    assert local_networks.networks
    assert not local_networks.is_outside(ip_address("127.0.0.1"), ip_address("127.0.0.1"))
    assert local_networks.is_outside(ip_address("198.51.100.77"), ip_address("127.0.0.1"))


def test_an_ipv6_address_is_written_in_brackets() -> None:
    ours = addresses()
    assert ours.route_address(("fd00::2", 1), ("fd00::5", 10911)) == "[fd00::5]:10911"
