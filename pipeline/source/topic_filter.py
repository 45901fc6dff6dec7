"""Which topics a read of a store wants."""

import re
from collections.abc import Sequence

from aerobee.protocol.names import LIGHT_PREFIX, is_system_topic, is_users_topic


class topic_filter:
    """Whether a topic is wanted; an object, not a closure, so that Spark can ship it."""

    def __init__(self, topics: Sequence[str] | None, pattern: str | None) -> None:
        self.topics = None if topics is None else frozenset(topics)
        self.pattern = None if pattern is None else re.compile(pattern)

    def __call__(self, topic: str) -> bool:
        if self.topics is not None:
            return topic in self.topics
        if self.pattern is None or self.pattern.pattern.startswith("%"):
            shown = not is_system_topic(topic)
        else:
            shown = is_users_topic(topic, ())
        if topic.startswith(LIGHT_PREFIX):  # its entries point to records of other topics
            return False
        return shown and (self.pattern is None or self.pattern.fullmatch(topic) is not None)
