"""Names of topics and groups: which are allowed, which the broker keeps for itself.

Names become folders and map keys, so they are checked here, once, before anything is made of them.
"""

import re
from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

TOPIC_SIZE_MAX: Final = 127  # a record keeps the length in one signed byte
GROUP_SIZE_MAX: Final = 120  # so that %RETRY%group is a topic's name too

TEMPLATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TRANSACTION_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRACE_DATA_PREFIX: Final = "rmq_sys_TRACE_DATA_"  # and the region: where C++ puts its traces

NO_SENDING_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_TOPIC,
        TRANSACTION_GIVEN_UP_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
SYSTEM_TOPICS: Final = NO_SENDING_TOPICS | {TEMPLATE_TOPIC, "BenchmarkTest", TRACE_TOPIC}

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_SEPARATORS: Final = re.compile(r"[/\\\0]")


def topic_problem(name: str) -> str | None:
    """What is wrong with a topic's name, as a sentence; None when nothing is."""
    return _problem("topic", name, TOPIC_SIZE_MAX)


def group_problem(name: str) -> str | None:
    """What is wrong with a group's name, as a sentence; None when nothing is."""
    return _problem("group", name, GROUP_SIZE_MAX)


def producer_group_problem(name: str) -> str | None:
    """The same for a producer's group, of which nothing is made: it may be longer."""
    return _problem("producer group", name, TOPIC_SIZE_MAX)


def _problem(kind: str, name: str, size_max: int) -> str | None:
    if not name:
        return f"the {kind} has no name; give one"
    if len(name) > size_max:
        return f"the {kind} {name[:40]}... has {len(name)} characters; at most {size_max} may be"
    if not _ALLOWED.fullmatch(name):
        return f"the {kind} {name!r} has a character that is not one of a-z A-Z 0-9 _ - % |"
    return None


def is_safe_as_folder(name: str) -> bool:
    """Whether a name from a config file, perhaps of another broker's rules, stays in its folder."""
    return name not in ("", ".", "..") and not _SEPARATORS.search(name)


def may_be_sent_to(topic: str) -> bool:
    """Whether clients may: all but the topics that the broker keeps for itself."""
    if topic.startswith(SYSTEM_TOPIC_PREFIX):
        return topic.startswith(TRACE_DATA_PREFIX)
    return topic not in NO_SENDING_TOPICS


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    return topic.startswith(DLQ_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def is_system_group(group: str) -> bool:
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)
