"""What the name service keeps of brokers and topics: queues, addresses, registrations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aerobee.broker.services.topics.config import READ, WRITE, TopicConfig

MASTER_ID: Final = 0
EXPIRY_MS: Final = 120_000  # of a broker that does not say another


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of one topic on one broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }


@dataclass(slots=True)
class BrokerData:
    """A broker by name: the addresses of its master (0) and replicas."""

    cluster: str
    name: str
    addresses: dict[int, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerAddrs": dict(self.addresses),
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": False,
        }


@dataclass(slots=True)
class Registration:
    """A broker's own description."""

    cluster: str
    name: str
    address: str
    broker_id: int
    ha_address: str
    data_version: dict[str, int]
    topics: dict[str, TopicConfig]
    filter_servers: list[str] = field(default_factory=list)
    timeout_ms: int = EXPIRY_MS

    @property
    def epoch(self) -> int:
        """A master's epoch, if it reports one; RocketMQ 5 calls it the state version."""
        return self.data_version.get("stateVersion", 0)


class NewerMaster(ValueError):
    """A registration is refused: another broker of the name has become the master since."""

    def __init__(self, name: str, address: str | None, epoch: int, known: int) -> None:
        """`address`: of the later master, None: it is away."""
        later = f"{address} is" if address else "one that is away now was"
        remedy = "start this broker as its slave"
        if address is None:
            remedy += "; if that one is gone for good, promote the slave"
        super().__init__(
            f"register broker failed: {later} the master of {name} in epoch {known}, later than "
            f"{epoch}; {remedy}"
        )
        self.epoch = known


def _no_epoch() -> int:
    return 0


def _ignored(_epoch: int, _address: str) -> None:
    """There is no local master."""


@dataclass(frozen=True, slots=True)
class Local:
    """The broker in this process."""

    cluster: str
    name: str
    topics: Callable[[], Mapping[str, TopicConfig]]
    permission: Callable[[], int]
    broker_id: int = MASTER_ID
    epoch: Callable[[], int] = _no_epoch
    superseded: Callable[[int, str], None] = _ignored  # a master of a later epoch, its address


def permission_mask(permission: int) -> int:
    """The bits of a topic's permission that a broker-wide one leaves."""
    return ~((READ | WRITE) & ~permission)


def queue_data(broker_name: str, config: TopicConfig) -> QueueData:
    return QueueData(
        broker_name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.topic_sys_flag,
    )
