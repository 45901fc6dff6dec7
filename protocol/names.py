"""The topics and groups that RocketMQ keeps for itself, and how names are built from a group's."""

from collections.abc import Container
from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LIGHT_PREFIX: Final = "%LMQ%"  # of RocketMQ's light queues
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TRACE_DATA_PREFIX: Final = "rmq_sys_TRACE_DATA_"  # and the region: where C++ puts its traces

TEMPLATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TRANSACTION_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
# Marks of replayed dead letters: stored after those, so that retention removes the marks later.
REPLAYED_TOPIC: Final = "AEROBEE_DLQ_REPLAYED"

NO_SENDING_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_TOPIC,
        TRANSACTION_GIVEN_UP_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
SYSTEM_TOPICS: Final = NO_SENDING_TOPICS | {TEMPLATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
SYSTEM_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)


def is_system_topic(topic: str) -> bool:
    """Whether it is a system topic, of any kind of broker, which lists of topics leave out."""
    return (
        topic in SYSTEM_TOPICS
        or topic == REPLAYED_TOPIC
        or topic.startswith((SYSTEM_TOPIC_PREFIX, "RMQ_SYS_"))
    )


def is_users_topic(topic: str, servers: Container[str]) -> bool:
    """Whether lists show it to people; `servers`: the names of brokers and clusters, each of which
    is also a topic."""
    return (
        topic not in servers
        and not is_system_topic(topic)
        and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        and not topic.endswith(REPLY_SUFFIX)
    )


def is_system_group(group: str) -> bool:
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group
