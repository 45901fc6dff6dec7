"""Which of our addresses a client gets, in routes and as the store host of its messages.

    brokerIP1 set                              brokerIP1:listenPort, for clients from inside
    advertisedAddr set, client from outside    advertisedAddr
    otherwise                                  the address by which this client reached us

A client is from outside when it comes through a port mapping: its address is neither loopback nor
ours nor in a network of our interfaces (or in `internalNetworks`, where that is set), or it is the
gateway of one of them, which is what a container sees of clients that the host forwards.
"""

import socket
import struct
import threading
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)
from pathlib import Path

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.settings import Settings
from aerobee.protocol.files.ids import encode_host, parse_ip

log = structlog.get_logger("aerobee.addresses")

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Endpoint = tuple[str, int]

_ROUTES_V4 = Path("/proc/self/net/route")
_ADDRESSES_V6 = Path("/proc/self/net/if_inet6")
_ROUTES_V6 = Path("/proc/self/net/ipv6_route")
_DETECT_AGAIN_S = 10.0  # interfaces change while a broker runs
_FIRST_ANSWER_S = 0.2  # how long the first message waits for the address of our name
_ASK_AGAIN_S = 60.0  # while it cannot be resolved


@dataclass(frozen=True, slots=True)
class LocalNetworks:
    """The networks of this machine and their gateways."""

    networks: tuple[Network, ...]
    gateways: frozenset[Address]

    def is_outside(self, peer: Address, local: Address) -> bool:
        if peer.is_loopback or peer == local:
            return False
        return peer in self.gateways or not any(peer in network for network in self.networks)


class Addresses:
    """Decides which address of this broker each client gets."""

    def __init__(
        self, settings: Settings, clock: Clock, local_networks: LocalNetworks | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._fixed = local_networks
        self._detected: tuple[float, LocalNetworks] | None = None
        self._resolved: dict[str, str] = {}
        self._asked_at: dict[str, float] = {}
        self.port = settings.listen_port  # the real one once the sockets are open
        self.ha_port = -1  # of replication; -1: none

    def for_client(self, peer: Endpoint, local: Endpoint) -> Endpoint:
        """Host and port for a client with these two ends of its connection."""
        settings = self._settings
        if settings.advertised_addr and self._is_outside(peer, local):
            host, _, port = settings.advertised_addr.rpartition(":")
            return host.strip("[]"), int(port)
        if settings.broker_ip1:
            return settings.broker_ip1, self.port
        return str(parse_ip(local[0])), self.port

    def route_address(self, peer: Endpoint, local: Endpoint) -> str:
        return join(*self.for_client(peer, local))

    def store_host(self, peer: Endpoint, local: Endpoint) -> bytes:
        """The same as bytes, for records and message ids; host names are resolved."""
        host, port = self.for_client(peer, local)
        ip = self._resolve(host)
        return encode_host(ip or local[0], port if ip else self.port)

    def for_name_server(self, local: Endpoint) -> str:
        """What we register with a name server that we reach from our address `local`."""
        settings = self._settings
        if settings.broker_ip1:
            return join(settings.broker_ip1, self.port)
        if settings.advertised_addr:
            return settings.advertised_addr
        bound = settings.bind_address
        return join(str(parse_ip(local[0])) if _is_wildcard(bound) else bound, self.port)

    def ha_address(self, address: str) -> str:
        """Where a slave that reaches us at `address` fetches our log; "": no replication port."""
        if self.ha_port < 0:
            return ""
        host = self._settings.broker_ip2 or address.rpartition(":")[0].strip("[]")
        return join(host, self.ha_port)

    def _is_outside(self, peer: Endpoint, local: Endpoint) -> bool:
        return self._local_networks().is_outside(parse_ip(peer[0]), parse_ip(local[0]))

    def _local_networks(self) -> LocalNetworks:
        if self._fixed is not None:
            return self._fixed
        now = self._clock.monotonic()
        if self._detected is None or now - self._detected[0] > _DETECT_AGAIN_S:
            self._detected = (now, detect_networks(self._settings.internal_networks))
        return self._detected[1]

    def _resolve(self, host: str) -> str | None:
        if host not in self._resolved:
            try:
                self._resolved[host] = str(parse_ip(host))
            except ValueError:
                self._look_up(host)
        return self._resolved.get(host)

    def _look_up(self, name: str) -> None:
        """Resolve a host name in a thread: a slow resolver must not block the loop."""
        now = self._clock.monotonic()
        asked_at = self._asked_at.get(name)
        if asked_at is not None and now - asked_at < _ASK_AGAIN_S:
            return
        self._asked_at[name] = now
        asking = threading.Thread(target=self._ask, args=(name,), name="aerobee-dns", daemon=True)
        asking.start()
        if asked_at is None:
            asking.join(_FIRST_ANSWER_S)

    def _ask(self, name: str) -> None:
        try:
            self._resolved[name] = socket.gethostbyname(name)
        except OSError as error:
            log.warning("our own name cannot be resolved", host=name, reason=str(error))


def detect_networks(internal_networks: str = "") -> LocalNetworks:
    """The networks of this machine; where the system does not list them, all private ones."""
    networks, gateways = _from_proc()
    if internal_networks:
        parts = internal_networks.replace(";", ",").split(",")
        given = tuple(ip_network(part.strip(), strict=False) for part in parts if part.strip())
        return LocalNetworks(given, frozenset(gateways))
    if not networks:
        private = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7")
        networks = [ip_network(text) for text in private]
    return LocalNetworks(tuple(networks), frozenset(gateways))


def _from_proc() -> tuple[list[Network], set[Address]]:
    """Linux: connected networks and gateways, of both families."""
    networks: list[Network] = []
    gateways: set[Address] = set()
    for _, target, gateway, _, _, _, _, mask, *_rest in _table(_ROUTES_V4)[1:]:
        if gateway != "00000000":
            gateways.add(_little_endian(gateway))
        elif mask != "00000000":
            networks.append(IPv4Network((int(_little_endian(target)), _prefix(mask))))
    for address, _, prefix, *_rest in _table(_ADDRESSES_V6):
        networks.append(IPv6Network((int(address, 16), int(prefix, 16)), strict=False))
    for _, _, _, _, next_hop, *_rest in _table(_ROUTES_V6):
        if int(next_hop, 16):
            gateways.add(IPv6Address(int(next_hop, 16)))
    return networks, gateways


def _table(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return []


def _little_endian(text: str) -> IPv4Address:
    return IPv4Address(struct.pack("<I", int(text, 16)))


def _prefix(mask: str) -> int:
    return bin(int(mask, 16)).count("1")


def _is_wildcard(bound: str) -> bool:
    return bound in ("", "*", "0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return parse_ip(host).is_loopback
    except ValueError:
        return host == "localhost"


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
