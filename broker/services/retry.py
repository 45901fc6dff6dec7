"""Retries and dead letters: a message that a consumer could not handle comes again, later.

It goes to %RETRY%group through the delay level that grows with its retries, and after the last one
to %DLQ%group, which can be read like any topic.
"""

import random
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from aerobee.broker.base.refused import Refused
from aerobee.broker.base.resource_names import is_dlq_topic
from aerobee.broker.services.groups.table import Groups
from aerobee.broker.services.put_hooks import PutHooks
from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.stats import Stats
from aerobee.broker.services.topics.table import Topics
from aerobee.broker.store.results import PutResult
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import Message, StoredMessage
from aerobee.protocol.wire.codes import ResponseCode

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.retry")

FIRST_LEVEL: Final = 3  # of the first retry, when the consumer leaves it to the broker
_TIMES_MAX: Final = 2**31 - 1  # that a record holds; any producer can send it


class SentBack(NamedTuple):
    """A consumer's request to retry a message that it could not handle."""

    group: str
    physical_offset: int
    delay_level: int  # 0: the broker's choice; below 0: no retry any more
    retry_max: int | None = None  # None: as the group's configuration says
    unit_mode: bool = False
    reason: str = ""  # why; kept with the retry or the dead letter


class Retry:
    """Stores returned messages as retries or dead letters."""

    def __init__(
        self,
        store: "MessageStore",
        topics: Topics,
        groups: Groups,
        hooks: PutHooks,
        stats: Stats,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._hooks = hooks
        self._stats = stats

    def send_back(self, request: SentBack, store_host: bytes) -> PutResult | None:
        """Store the retry or the dead letter; None when the group keeps none. Refused says why."""
        config = self._groups.get(request.group)
        if config is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist: {request.group} is unknown and may not be created",
            )
        if config.retry_queue_nums <= 0:
            return None
        topic = self._topics.create_retry(
            request.group, config.retry_queue_nums, unit=request.unit_mode
        )
        if not topic.writable:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic.name}] sending message is forbidden (its perm is {topic.perm})",
            )
        failed = put_again.message_at(self._store, request.physical_offset)
        if failed is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"look message by offset failed, {request.physical_offset}: no message begins "
                "there, or it was removed by age",
            )
        most = config.retry_max_times if request.retry_max is None else request.retry_max
        # The topic may have fewer queues than the group's configuration: others would not be read.
        queue_id = random.randrange(max(1, min(config.retry_queue_nums, topic.read_queue_nums)))
        message = _retried(failed, topic.name, queue_id, store_host)
        _note(message, request.reason)
        if failed.reconsume_times >= most or request.delay_level < 0:
            self._to_dead_letters(message, request.group, failed)
        else:
            level = request.delay_level or FIRST_LEVEL + failed.reconsume_times
            message.properties = props.put(message.properties, props.DELAY, str(level))
            message = self._hooks.schedule(message)
        result = self._store.put_accepted([message])[0]
        if result.ok:
            self._stats.add_put(message.topic, 1, result.size)
            origin = props.get(message.properties, props.RETRY_TOPIC) or ""
            if self._topics.get(origin) is None:  # clients must not make up counters
                origin = failed.topic
            self._stats.add_send_back(origin, request.group)
            if is_dlq_topic(message.topic):
                self._stats.add_dead(origin, request.group)
        return result

    def _to_dead_letters(self, message: Message, group: str, failed: StoredMessage) -> None:
        message.topic = self._topics.create_dlq(group).name
        message.queue_id = 0
        text = props.put(message.properties, props.DELAY, "0")
        origin = props.get(text, props.RETRY_TOPIC) or failed.topic
        text = props.put(text, props.DLQ_ORIGIN_TOPIC, origin)
        message_id = props.get(text, props.ORIGIN_MESSAGE_ID) or failed.message_id
        message.properties = props.put(text, props.DLQ_ORIGIN_MESSAGE_ID, message_id)
        log.warning(
            "a message goes to the dead letters",
            group=group,
            topic=origin,
            message_id=message_id,
            retries=failed.reconsume_times,
        )


def _retried(failed: StoredMessage, topic: str, queue_id: int, store_host: bytes) -> Message:
    text = put_again.own_properties(failed)
    if props.get(text, props.RETRY_TOPIC) is None:
        text = props.put(text, props.RETRY_TOPIC, failed.topic)
    if props.get(text, props.ORIGIN_MESSAGE_ID) is None:
        text = props.put(text, props.ORIGIN_MESSAGE_ID, failed.message_id)
    message = put_again.copy_for(failed, topic, queue_id, text)
    message.store_host = store_host
    message.reconsume_times = min(failed.reconsume_times + 1, _TIMES_MAX)
    return message


def _note(message: Message, reason: str) -> None:
    """Record why it is retried, where there is room for it."""
    if reason and not {props.NAME_END, props.PAIR_END} & set(reason):
        text = props.put(message.properties, props.LAST_FAILURE, reason[: props.FAILURE_SIZE_MAX])
        if (
            len(text.encode()) <= props.PROPERTIES_SIZE_MAX - 1024
        ):  # the rest is for the broker's own
            message.properties = text
