"""Which names of topics and groups are allowed.

Names become folders and map keys, so they are checked here, once, before anything is made of them.
"""

import re
from typing import Final

from aerobee.protocol.files.record_layout import TOPIC_SIZE_MAX_V1
from aerobee.protocol.names import (
    DLQ_PREFIX,
    NO_SENDING_TOPICS,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    TRACE_DATA_PREFIX,
)

TOPIC_SIZE_MAX: Final = TOPIC_SIZE_MAX_V1
GROUP_SIZE_MAX: Final = 120  # so that %RETRY%group is a topic's name too

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
    """Whether clients may: all but the system topics."""
    if topic.startswith(SYSTEM_TOPIC_PREFIX):
        return topic.startswith(TRACE_DATA_PREFIX)
    return topic not in NO_SENDING_TOPICS


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    return topic.startswith(DLQ_PREFIX)
