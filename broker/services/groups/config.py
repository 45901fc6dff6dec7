"""One consumer group's configuration, in RocketMQ's JSON shape."""

from dataclasses import dataclass, field
from typing import Any, Final

from aerobee.broker.services.config_files.config_file import as_bool, as_int

# Wire name -> attribute, for numbers and for switches.
_NUMBERS: Final = {
    "brokerId": "broker_id",
    "consumeTimeoutMinute": "consume_timeout_minute",
    "groupSysFlag": "group_sys_flag",
    "retryMaxTimes": "retry_max_times",
    "retryQueueNums": "retry_queue_nums",
    "whichBrokerWhenConsumeSlowly": "which_broker_when_consume_slowly",
}
_SWITCHES: Final = {
    "consumeBroadcastEnable": "consume_broadcast_enable",
    "consumeEnable": "consume_enable",
    "consumeFromMinEnable": "consume_from_min_enable",
    "consumeMessageOrderly": "consume_message_orderly",
    "notifyConsumerIdsChangedEnable": "notify_consumer_ids_changed_enable",
}
_FIELDS: Final = {*_NUMBERS, *_SWITCHES, "groupName", "attributes", "groupRetryPolicy"}


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A consumer group; replaced whole when it changes."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, Any] = field(default_factory=dict)  # keys of other versions, kept

    @property
    def numbers(self) -> list[int]:
        """All that are numbers."""
        return [getattr(self, name) for name in _NUMBERS.values()]

    def to_json(self) -> dict[str, Any]:
        return (
            self.unknown
            | {key: getattr(self, name) for key, name in _NUMBERS.items()}
            | {key: getattr(self, name) for key, name in _SWITCHES.items()}
            | {
                "attributes": self.attributes,
                "groupName": self.name,
                "groupRetryPolicy": self.group_retry_policy,
            }
        )


def group_from_json(value: dict[Any, Any], name: str = "") -> GroupConfig:
    """The configuration in a file or a request; what is absent has RocketMQ's default."""
    default = GroupConfig(str(value.get("groupName") or name))
    attributes = value.get("attributes")
    policy = value.get("groupRetryPolicy")
    numbers = {
        attribute: as_int(value.get(key), getattr(default, attribute))
        for key, attribute in _NUMBERS.items()
    }
    switches = {
        attribute: as_bool(value.get(key), getattr(default, attribute))
        for key, attribute in _SWITCHES.items()
    }
    known: dict[str, Any] = numbers | switches
    return GroupConfig(
        default.name,
        **known,
        group_retry_policy=policy if isinstance(policy, dict) else default.group_retry_policy,
        attributes={str(key): str(item) for key, item in attributes.items()}
        if isinstance(attributes, dict)
        else {},
        unknown={str(key): item for key, item in value.items() if str(key) not in _FIELDS},
    )
