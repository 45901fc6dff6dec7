"""One topic's configuration, in RocketMQ's JSON shape."""

from dataclasses import dataclass, field
from typing import Any, Final

from aerobee.broker.services.config_files.config_file import as_bool, as_int

INHERIT: Final = 1  # permission bits: the topic is a template for others
WRITE: Final = 2
READ: Final = 4

UNIT_FLAG: Final = 1
UNIT_SUB_FLAG: Final = 2

_FIELDS: Final = {
    "topicName",
    "readQueueNums",
    "writeQueueNums",
    "perm",
    "topicFilterType",
    "topicSysFlag",
    "order",
    "attributes",
}
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic; replaced whole when it changes."""

    name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = READ | WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, Any] = field(default_factory=dict)  # keys of other versions, kept

    @property
    def readable(self) -> bool:
        return bool(self.perm & READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & WRITE)

    @property
    def inheritable(self) -> bool:
        return bool(self.perm & INHERIT)

    @property
    def queue_nums(self) -> int:
        """How many queues it has, for readers or for writers."""
        return max(self.read_queue_nums, self.write_queue_nums)

    def to_json(self) -> dict[str, Any]:
        return self.unknown | {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }


def topic_from_json(value: dict[Any, Any], name: str = "") -> TopicConfig:
    """The configuration in a file or a request; what is absent has RocketMQ's default."""
    attributes = value.get("attributes")
    filter_type = value.get("topicFilterType")
    if isinstance(filter_type, int) and 0 <= filter_type < len(FILTER_TYPES):
        filter_type = FILTER_TYPES[filter_type]
    return TopicConfig(
        str(value.get("topicName") or name),
        as_int(value.get("readQueueNums"), 16),
        as_int(value.get("writeQueueNums"), 16),
        as_int(value.get("perm"), READ | WRITE),
        str(filter_type or FILTER_TYPES[0]),
        as_int(value.get("topicSysFlag"), 0),
        as_bool(value.get("order"), False),
        {str(key): str(item) for key, item in attributes.items()}
        if isinstance(attributes, dict)
        else {},
        {str(key): item for key, item in value.items() if str(key) not in _FIELDS},
    )
