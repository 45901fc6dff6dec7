"""Limits of stored messages, and the refusals of those that exceed them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from aerobee.broker.store.queues.queue_table import is_safe_topic
from aerobee.broker.store.results import PutStatus, RefusedPut
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files.properties import PROPERTIES_SIZE_MAX
from aerobee.protocol.files.record import Message
from aerobee.protocol.files.record_layout import (
    BLANK_SIZE,
    CRC_PROPERTY_SIZE,
    HEADS,
    TOPIC_SIZE_MAX_V1,
    V6_HOSTS,
)

TOPIC_SIZE_MAX: Final = 255  # a topic is the name of a folder
HEAD_SIZE_MAX: Final = HEADS[V6_HOSTS].size + 2 + 2  # IPv6 hosts, V2, properties' length
QUEUE_ID_MAX: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Sizes in bytes."""

    topic_size: int
    body_size: int
    properties_size: int
    file_size: int

    def check(self, message: Message) -> RefusedPut | None:
        """The refusal of a message that cannot be stored at all."""
        topic_size = len(message.topic.encode(errors="replace"))
        props_size = len(message.properties.encode(errors="replace"))
        illegal = PutStatus.MESSAGE_ILLEGAL
        if not 0 < topic_size <= self.topic_size:
            limit = self.topic_size
            reason = f"the topic's name is {topic_size} bytes long; 1 to {limit} are allowed"
            return RefusedPut(illegal, reason)
        if not is_safe_topic(message.topic):
            return RefusedPut(illegal, f"topic {message.topic!r} cannot be a folder's name")
        if not 0 <= message.queue_id <= QUEUE_ID_MAX:
            return RefusedPut(illegal, f"queue id {message.queue_id} is out of range")
        if len(message.body) > self.body_size:
            return self.too_big(f"the body of a message to {message.topic}", len(message.body))
        if props_size > self.properties_size:
            reason = (
                f"the properties of a message to {message.topic} are {props_size} bytes; the limit "
                f"is {self.properties_size}: send fewer or shorter properties"
            )
            return RefusedPut(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason)
        return None

    def check_room(self, message: Message) -> RefusedPut | None:
        """The refusal of a message that might not fit even an empty file."""
        size = record_size_max(message)
        if size + BLANK_SIZE <= self.file_size:
            return None
        return self.too_big(f"the message to {message.topic}", size)

    def for_accepted(self) -> MessageLimits:
        """For messages that were accepted before: `maxMessageSize` may have been lowered since."""
        return replace(self, body_size=self.file_size)

    def too_big(self, what: str, size: int) -> RefusedPut:
        limit = min(self.body_size, self.file_size - BLANK_SIZE)
        setting = "maxMessageSize" if size > self.body_size else "mappedFileSizeCommitLog"
        reason = f"{what} takes {size} bytes; the limit is {limit} ({setting})"
        return RefusedPut(PutStatus.MESSAGE_ILLEGAL, reason)


def record_size_max(message: Message) -> int:
    """The largest size of its record in any format."""
    texts = len(message.topic.encode()) + len(message.properties.encode())
    return HEAD_SIZE_MAX + len(message.body) + texts + CRC_PROPERTY_SIZE + 1


def record_size_bound(message: Message) -> int:
    """An upper bound of its record's size, found without encoding texts."""
    texts = 4 * (len(message.topic) + len(message.properties))
    return HEAD_SIZE_MAX + len(message.body) + texts + CRC_PROPERTY_SIZE + 1


def limits_of(settings: StoreSettings) -> MessageLimits:
    long_topics = settings.auto_message_version_on_topic_len
    # One byte for the separator that the checksum may need before it.
    checksum = CRC_PROPERTY_SIZE + 1 if settings.enabled_append_prop_crc else 0
    return MessageLimits(
        TOPIC_SIZE_MAX if long_topics else TOPIC_SIZE_MAX_V1,
        settings.max_message_size,
        PROPERTIES_SIZE_MAX - checksum,
        settings.mapped_file_size_commit_log,
    )
