"""Settings of replication: the role, the stream of the log, how many copies a send needs."""

from dataclasses import dataclass

from aerobee.broker.settings.daemon import check_host, check_host_port
from aerobee.broker.settings.failover import FailoverSettings
from aerobee.broker.settings.fields import setting

SLAVE = "SLAVE"
ROLES = ("ASYNC_MASTER", "SYNC_MASTER", SLAVE)


@dataclass(init=False, repr=False, eq=False)  # a part of Settings
class ReplicationSettings(FailoverSettings):
    """Roles, links and acknowledgement by copies."""

    broker_role: str = setting(
        "ASYNC_MASTER",
        "SYNC_MASTER: a send is answered once slaves have it; SLAVE: a copy of its master.",
        choices=ROLES,
    )
    broker_ip2: str = setting(
        "",
        "Replication address that slaves get; empty: that of brokerAddr.",
        key="brokerIP2",
        check=check_host,
    )
    ha_listen_port: int = setting(
        0,
        "Port where slaves fetch the log. 0: listenPort + 1, -1: none.",
        low=-1,
        high=65535,
        upstream="10912",
        why="it follows listenPort",
    )
    ha_master_address: str = setting(
        "",
        "SLAVE: the master's replication port; empty: from the name server.",
        unit="host:port",
        check=check_host_port,
    )
    ha_send_heartbeat_interval: int = setting(
        5000, "Heartbeat interval of a replication link.", unit="ms", low=10
    )
    ha_housekeeping_interval: int = setting(
        20000, "Idle time after which a replication link is closed.", unit="ms", low=100
    )
    ha_transfer_batch_size: int = setting(
        1 << 20,
        "Largest piece of the log in one frame.",
        unit="bytes",
        low=1024,
        high=(4 << 20) - 12,
        upstream="32768",
        why="fewer, larger frames take less time of both sides; slaves of any version take them",
    )
    ha_slave_fallbehind_max: int = setting(
        256 << 20,
        "SYNC_MASTER: do not wait for a slave that is further behind than this.",
        unit="bytes",
        low=1,
        aliases=("haMaxGapNotInSync",),
    )
    ha_flow_control_enable: bool = setting(
        False, "Limit the rate at which a slave is sent the log."
    )
    max_ha_transfer_byte_in_second: int = setting(
        100 << 20, "That limit.", unit="bytes/s", low=1024
    )
    in_sync_replicas: int = setting(
        1,
        "SYNC_MASTER: copies that a send waits for, including the master's; 1 counts as 2.",
        low=1,
    )
    slave_timeout: int = setting(
        3000,
        "SYNC_MASTER: how long a send waits for its copies before FLUSH_SLAVE_TIMEOUT.",
        unit="ms",
        low=1,
    )
    slave_read_enable: bool = setting(
        False, "Redirect consumers that are far behind to a slave.", runtime=True
    )

    @property
    def is_slave(self) -> bool:
        return self.broker_role == SLAVE
