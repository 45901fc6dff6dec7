"""Settings of automatic failover: etcd or RocketMQ's controller, the in-sync set."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from aerobee.broker.settings.fields import setting


def endpoints_of(text: str) -> list[str]:
    return [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]


def addresses_of(text: str) -> list[str]:
    return endpoints_of(text)


def _check_addresses(value: str) -> str | None:
    for part in addresses_of(value):
        host, _, port = part.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            return f"{part} is not like 10.0.0.1:9878; separate them by semicolons"
    return None


def _check_endpoints(value: str) -> str | None:
    for part in endpoints_of(value):
        try:
            url = urlsplit(part)
            is_good = url.scheme in ("http", "https") and url.hostname and url.port is not None
        except ValueError:
            is_good = False
        if is_good and url.username is not None:
            return "write the user and the password as etcdUser and etcdPassword, not in the url"
        if not is_good:
            return f"{part} is not like http://10.0.0.1:2379; separate them by semicolons"
    return None


def _check_prefix(value: str) -> str | None:
    return None if value.startswith("/") and value.rstrip("/") else "write it as /NAME"


@dataclass(init=False, repr=False, eq=False)  # a part of Settings
class FailoverSettings:
    """Who elects the master, and which replicas must have acknowledged messages."""

    etcd_endpoints: str = setting(
        "",
        "etcd servers for automatic failover; empty: promote by hand (`aerobee promote`).",
        unit="urls",
        ours=True,
        check=_check_endpoints,
    )
    etcd_prefix: str = setting(
        "/aerobee", "Prefix of the keys in etcd.", ours=True, check=_check_prefix
    )
    etcd_user: str = setting("", "User in etcd; empty: none.", ours=True)
    etcd_password: str = setting("", "Its password.", ours=True, secret=True)
    etcd_ca_file: str = setting("", "CA certificates for etcd; empty: the system's.", ours=True)
    etcd_cert_file: str = setting("", "Client certificate for etcd; empty: none.", ours=True)
    etcd_key_file: str = setting("", "Its private key.", ours=True)
    enable_controller_mode: bool = setting(
        False, "Automatic failover by RocketMQ 5's controller: see controllerAddr."
    )
    controller_addr: str = setting(
        "",
        "RocketMQ's controllers; the leader is found automatically.",
        unit="addresses",
        check=_check_addresses,
    )
    fetch_controller_addr_by_dns_lookup: bool = setting(
        False, "Resolve each name in controllerAddr to all its addresses."
    )
    controller_heart_beat_timeout_mills: int = setting(
        10000,
        "The controller replaces a master after this time without a heartbeat, one whose "
        "connection ends at once.",
        unit="ms",
        low=1000,
        high=600000,
    )
    broker_election_priority: int = setting(
        2147483647,
        "Among replicas with equal logs the controller elects the lowest value.",
        high=2147483647,
    )
    failover_lease: int = setting(
        3000,
        "A master is replaced after this time without contact to etcd.",
        unit="ms",
        low=1000,
        high=60000,
        ours=True,
    )
    failover_ack: str = setting(
        "IN_SYNC",
        "With etcd or a controller, a send is answered once all in-sync replicas have it "
        "(IN_SYNC), or before any has (MASTER), which a failover may lose.",
        choices=("IN_SYNC", "MASTER"),
        ours=True,
    )
    all_ack_in_sync_state_set: bool = setting(
        False, "Always the case with etcd or a controller, unless failoverAck=MASTER."
    )
    ha_max_time_slave_not_catchup: int = setting(
        3000,
        "With etcd or a controller, a replica that is further behind than this leaves the "
        "in-sync set.",
        unit="ms",
        low=100,
        upstream="15000",
        why="sends wait that long for it",
    )
    min_in_sync_replicas: int = setting(
        1,
        "With etcd or a controller, refuse messages while fewer replicas are in sync, the "
        "master included.",
        low=1,
    )

    @property
    def has_arbiter(self) -> bool:
        return bool(self.etcd_endpoints) or self.enable_controller_mode

    @property
    def arbiter_name(self) -> str:
        return "the controller" if self.enable_controller_mode else "etcd"

    @property
    def lease_ms(self) -> int:
        """How long the arbiter's lease lasts."""
        if self.enable_controller_mode:
            return self.controller_heart_beat_timeout_mills
        return self.failover_lease
