"""SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, the general path.

Plain sends take `hot_path`, which puts all those of one read at once. It serves the queues that are
registered in `Sends.plain` here: their sends need no further check of the topic.
"""

import random
import time
from functools import partial
from typing import Final

from aerobee.broker.base import resource_names
from aerobee.broker.base.refused import Refused
from aerobee.broker.compiled import hot
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.send_batch import messages_of_batch, put_plain_batch
from aerobee.broker.handlers.send_rules import (
    LATE,
    STORED,
    code_of,
    complete,
    flush_failed_text,
)
from aerobee.broker.net.answers import send_answers
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.requests import Handler, Request, failed
from aerobee.broker.services.topics.config import WRITE, TopicConfig
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.results import PutResult, PutStatus
from aerobee.protocol import names
from aerobee.protocol.files import properties
from aerobee.protocol.files.ids import UniqueIds, encode_host, offset_message_id
from aerobee.protocol.files.record import Message
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import SendRequest, decode_ext, decode_send_v2

# The client counts retries itself, and says how many there may be, from this version (3.4.9) on.
VERSION_WITH_MAX_RECONSUME: Final = 121


class Sends:
    """What all sends of a broker share."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        # By topic and queue id, where sends need no further check.
        self.plain: dict[str, dict[int, ConsumeQueue]] = {}
        # By topic, for those that are not on disk yet.
        self._held: dict[str, dict[Connection, list[tuple[Request, SendRequest]]]] = {}
        self.takes_plain_batches = hot is not None  # in C; tests compare with the general path
        self.added = ""  # the properties that every message gets
        self.unique_ids = UniqueIds()
        self._settings_changed(set())
        broker.settings.listeners.append(self._settings_changed)
        broker.topics.on_change.append(self._topic_changed)

    def _settings_changed(self, _keys: set[str]) -> None:
        settings = self.broker.settings
        self.answers = send_answers(settings.region_id, settings.trace_on)
        cluster = {properties.CLUSTER: settings.broker_cluster_name}
        self.added = properties.encode(self.answers.fixed | cluster)
        self.plain.clear()  # permissions and limits may have changed as well

    def _topic_changed(self, name: str) -> None:
        self.plain.pop(name, None)

    # --- handlers

    def send(self, request: Request) -> Command | None:
        """SEND_MESSAGE, with the long names."""
        return self._send(request, decode_ext(request.command.ext, SendRequest))

    def send_v2(self, request: Request) -> Command | None:
        """SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, with the names of one letter."""
        return self._send(request, decode_send_v2(request.command.ext))

    def _send(self, request: Request, fields: SendRequest, *, held: bool = False) -> Command | None:
        try:
            config = self.checked_topic(fields)
            if not held and self._must_wait(request.connection, config.name):
                self._hold(request, fields, config.name, fields.queue_id)
                return None
            if fields.batch:
                return self._send_batch(request, fields, config)
            message = self._message(request, fields, config)
            if not held and self._must_wait(request.connection, message.topic):
                self._hold(request, fields, message.topic, message.queue_id)
                return None
            queue_id = message.queue_id  # before a delay or a transaction takes it elsewhere
            message = self.broker.put_hooks.apply(message)
        except Refused as refused:
            return self._refuse(request, refused.code, refused.remark)
        return self._put(request, message, queue_id)

    def _must_wait(self, connection: Connection, topic: str) -> bool:
        """Whether the topic is not on disk yet, or earlier sends of the connection wait for it."""
        return not self.broker.topics.is_durable(topic) or connection in self._held.get(topic, ())

    def _hold(self, request: Request, fields: SendRequest, topic: str, queue_id: int) -> None:
        """Hold a send until its new topic is on disk: after a crash that loses the topic, nobody
        could read the message. The sends of a connection keep their order. The queue's first file
        is created in the meantime."""
        if queue_id >= 0:  # else the broker is going to choose
            self.broker.store.prepare_queue(topic, queue_id)
        request.connection.waits_begin(1, len(request.command.body))
        held = self._held.setdefault(topic, {})
        if request.connection in held:
            held[request.connection].append((request, fields))
        else:
            held[request.connection] = [(request, fields)]
            release = partial(self._release, topic, request.connection)
            self.broker.topics.when_durable(topic, release)

    def _release(self, topic: str, connection: Connection, error: OSError | None) -> None:
        """Carry out all held sends of a connection at once: in pieces, a client that sends again
        after each answer would have its messages held for ever."""
        held = self._held[topic]
        released = held.pop(connection)
        if not held:
            del self._held[topic]
        for request, fields in released:
            answer = self._send_held(request, fields, error)
            connection.waits_end(1, len(request.command.body))
            if answer is not None:
                request.reply(answer)

    def _send_held(
        self, request: Request, fields: SendRequest, error: OSError | None
    ) -> Command | None:
        if error is not None:
            remark = (
                f"the message is not stored: its topic {fields.topic} is new, and "
                f"{self.broker.topics.file.path} cannot be saved: {error}; send again later"
            )
            return self._refuse(request, ResponseCode.SYSTEM_ERROR, remark)
        try:
            return self._send(request, fields, held=True)
        except Exception as failure:
            return failed(request, failure)

    # --- the checks, in RocketMQ's order

    def checked_topic(self, fields: SendRequest) -> TopicConfig:
        """The topic that may be sent to, created if need be; Refused says why not."""
        settings, topics = self.broker.settings, self.broker.topics
        topic = fields.topic
        accepts_from_ms = settings.start_accept_send_request_time_stamp
        if accepts_from_ms and self.broker.clock.now_ms() < accepts_from_ms:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the broker takes no messages before {_time_text(accepts_from_ms)} "
                f"(startAcceptSendRequestTimeStamp)",
            )
        config: TopicConfig | None = topics.get(topic)
        if not settings.broker_permission & WRITE and config is not None and config.order:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{settings.broker_name}] sending message is forbidden "
                f"(brokerPermission={settings.broker_permission})",
            )
        if config is None and (problem := resource_names.topic_problem(topic)):
            raise Refused(ResponseCode.INVALID_PARAMETER, problem)
        if not resource_names.may_be_sent_to(topic):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic}] is kept for the broker itself: sending to it is forbidden",
            )
        if config is None:
            config = self._create(fields)
        if max(0, fields.queue_id) >= config.queue_nums:  # -1 leaves the choice to the broker
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{fields.queue_id}] is illegal: topic {topic} has "
                f"{config.queue_nums} queues, numbered from 0",
            )
        if self._is_plain(config) and topics.is_durable(topic) and topic not in self._held:
            queue = self.broker.store.queue_table.get(topic, fields.queue_id)
            if queue is not None and queue.topic_field:
                self.plain.setdefault(topic, {})[fields.queue_id] = queue
        return config

    def _create(self, fields: SendRequest) -> TopicConfig:
        unit_sub = fields.unit_mode and resource_names.is_retry_topic(fields.topic)
        created: TopicConfig = self.broker.topics.create_on_send(
            fields.topic, fields.default_topic, fields.default_topic_queue_nums, unit_sub=unit_sub
        )
        return created

    def _is_plain(self, config: TopicConfig) -> bool:
        may_change = config.order and not self.broker.settings.broker_permission & WRITE
        return not may_change and not resource_names.is_retry_topic(config.name)

    # --- from a request to a message

    def _message(self, request: Request, fields: SendRequest, config: TopicConfig) -> Message:
        connection = request.connection
        queue_id = fields.queue_id
        if queue_id < 0:
            queue_id = random.randrange(max(1, config.write_queue_nums))
        message = Message(
            fields.topic,
            queue_id,
            request.command.body,
            complete(fields.properties, self.added, self.unique_ids),
            fields.flag,
            fields.sys_flag,
            fields.born_timestamp,
            encode_host(*connection.peer),
            self.broker.addresses.store_host(connection.peer, connection.local),
            fields.reconsume_times,
        )
        if resource_names.is_retry_topic(fields.topic):
            self._bound_retries(request, fields, message)
        return message

    def _bound_retries(self, request: Request, fields: SendRequest, message: Message) -> None:
        """A consumer sent a failed message itself: the last time, it goes to the dead letters."""
        group = fields.topic.removeprefix(names.RETRY_PREFIX)
        config = self.broker.groups.get(group)
        if config is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist: {group} is unknown and may not be created",
            )
        most = config.retry_max_times
        limit = fields.max_reconsume_times
        if limit is not None and request.command.version >= VERSION_WITH_MAX_RECONSUME:
            most = limit
        # An orderly group retries in place: a message that it sends here has had its last try.
        in_order = self.broker.order_locks.has_live(group)
        if fields.reconsume_times > most or in_order:
            message.topic = self.broker.topics.create_dlq(group).name
            origin = properties.get(message.properties, properties.RETRY_TOPIC) or ""
            if self.broker.topics.get(origin) is None:  # clients must not make up counters
                origin = fields.topic
            self.broker.stats.add_dead(origin, group)
            message.queue_id = 0
            message.properties = properties.remove(
                message.properties,
                *(properties.DELAY, properties.TIMER_DELIVER_MS),
                *(properties.TIMER_DELAY_MS, properties.TIMER_DELAY_SEC),
            )

    # --- putting and answering

    def _put(self, request: Request, message: Message, queue_id: int) -> Command | None:
        result: PutResult = self.broker.store.put([message])[0]
        if not result.ok:
            return self._refuse(request, code_of(result.status), result.reason)
        self.broker.stats.add_put(message.topic, 1, result.size)
        ext = self.answers.fields(
            offset_message_id(message.store_host, result.physical_offset),
            str(queue_id),
            str(result.queue_offset),
            properties.get(message.properties, properties.UNIQ_KEY),
        )
        hooks = self.broker.put_hooks
        if hooks is not None and (handle := hooks.recall_handle(message)):
            ext["recallHandle"] = handle
        wait = properties.get(message.properties, properties.WAIT) != "false"
        return self._answer_durable(request, result, ext, wait)

    def _send_batch(
        self, request: Request, fields: SendRequest, config: TopicConfig
    ) -> Command | None:
        unique_key = properties.get(fields.properties, properties.UNIQ_KEY)
        queue = self.plain.get(fields.topic, {}).get(fields.queue_id)
        if self.takes_plain_batches and queue is not None:
            stored = put_plain_batch(self.broker, request, fields, queue)
            if stored is not None:
                put, ids = stored
                ext = self.answers.fields(
                    ids, str(fields.queue_id), str(put.queue_offset), unique_key
                )
                return self._answer_durable(request, put, ext, wait=True)
        messages = messages_of_batch(self.broker, request, fields, config)
        result: PutResult = self.broker.store.put_batch(messages)
        if not result.ok:
            return self._refuse(request, code_of(result.status), result.reason)
        first = messages[0]
        self.broker.stats.add_put(first.topic, len(messages), result.size)
        host = first.store_host.hex().upper()
        ids = ",".join([f"{host}{offset:016X}" for offset in result.physical_offsets or ()])
        ext = self.answers.fields(ids, str(first.queue_id), str(result.queue_offset), unique_key)
        wait = any(properties.get(each.properties, properties.WAIT) != "false" for each in messages)
        return self._answer_durable(request, result, ext, wait)

    def _answer_durable(
        self, request: Request, result: PutResult, ext: dict[str, str], wait: bool
    ) -> Command | None:
        """The answer, now or once the message is as safe as the settings promise."""
        store = self.broker.store
        if not (store.puts_wait and wait):
            return request.command.answer(ResponseCode.SUCCESS, ext)
        connection = request.connection
        connection.waits_begin()

        def durable(status: PutStatus) -> None:
            connection.waits_end()
            if status in STORED:
                remark = LATE.get(status)
                request.reply(request.command.answer(code_of(status), ext, remark=remark))
            else:
                request.reply(self._refuse(request, code_of(status), flush_failed_text(status)))

        store.when_durable(result.end_offset, durable)
        return None

    def _refuse(self, request: Request, code: int, remark: str) -> Command:
        return request.command.answer(code, dict(self.answers.fixed), remark=remark)


def _time_text(timestamp_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ms / 1000))


def handlers(sends: Sends) -> dict[int, Handler]:
    return {
        RequestCode.SEND_MESSAGE: sends.send,
        RequestCode.SEND_MESSAGE_V2: sends.send_v2,
        RequestCode.SEND_BATCH_MESSAGE: sends.send_v2,
    }
