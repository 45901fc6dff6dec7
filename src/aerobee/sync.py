"""The SDK for programs without asyncio: the same client on a loop in a background thread.

from aerobee.sync import connect

with connect("mq://localhost:9876") as mq:
    mq.send("orders", b"...", tag="paid")
    with mq.consumer("orders", group="billing") as inbox:
        for message in inbox:
            ...
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Self, TypeVar, overload

from aerobee.client import client
from aerobee.client.admin import admin
from aerobee.client.blocking import Block, LoopThread, Twin, blocking
from aerobee.client.consuming import consumer
from aerobee.client.consuming.options import ConsumerOptions, Start
from aerobee.client.message import Body, Receipt, Received
from aerobee.client.message import Message as AsyncMessage
from aerobee.client.producing import accumulator, producer, transactions
from aerobee.client.producing.producer import BUFFER_BYTES
from aerobee.client.producing.transactions import Half, Verdict
from aerobee.client.serializers import Serializer
from aerobee.client.transport.remoting import ConnectionEvent
from aerobee.protocol.json.fastjson import MessageQueue

T = TypeVar("T")


class Client(Twin[client.Client]):
    """The blocking twin of `aerobee.Client`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout: float = 3.0,
        wait: float = 0.0,
        on_connection: Callable[[ConnectionEvent], object] | None = None,
        serializer: Serializer | None = None,
        telemetry: bool | None = None,
    ) -> None:
        """As `aerobee.connect`; `on_connection` is called in the background thread."""
        made = client.Client(
            url,
            timeout=timeout,
            wait=wait,
            on_connection=on_connection,
            serializer=serializer,
            telemetry=telemetry,
        )
        super().__init__(LoopThread(), made)
        try:
            self._loop.run(made.open())
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; calls in progress in other threads end with an error."""
        if self._loop.handled_here is not None:  # the closing would wait for the handler
            raise RuntimeError("a handler cannot close its client: it can close its consumer")
        if self._loop.is_alive:
            try:
                self._loop.run(self._made.close())
            finally:
                self._loop.close()

    send = blocking(client.Client.send)
    send_oneway = blocking(client.Client.send_oneway)
    request = blocking(client.Client.request)
    recall = blocking(client.Client.recall)
    queues = blocking(client.Client.queues)
    pull = blocking(client.Client.pull)
    min_offset = blocking(client.Client.min_offset)
    max_offset = blocking(client.Client.max_offset)
    offset_at = blocking(client.Client.offset_at)
    message = blocking(client.Client.message)
    why = blocking(client.Client.why)

    def producer(
        self, topic: str, *, timeout: float | None = None, serializer: Serializer | None = None
    ) -> Producer:
        return Producer(
            self._loop, self._made.producer(topic, timeout=timeout, serializer=serializer)
        )

    def buffered_producer(
        self,
        topic: str,
        *,
        linger: float = 0.005,
        buffer_bytes: int = BUFFER_BYTES,
        timeout: float | None = None,
        serializer: Serializer | None = None,
    ) -> BufferedProducer:
        """A producer that sends in batches from a buffer."""
        made = self._made.producer(
            topic,
            linger=linger,
            buffer_bytes=buffer_bytes,
            timeout=timeout,
            serializer=serializer,
        )
        return BufferedProducer(self._loop, made)

    def transactions(
        self,
        topic: str,
        *,
        group: str,
        check: Callable[[AsyncMessage], Verdict],
        timeout: float | None = None,
    ) -> TransactionProducer:
        """`check` is called in the background thread; it must not call this client."""
        made = self._made.transactions(topic, group=group, check=check, timeout=timeout)
        return TransactionProducer(self._loop, made)

    def consumer(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        orderly: bool = False,
        broadcast: bool = False,
        start: Start | None = None,
        options: ConsumerOptions | None = None,
    ) -> Consumer:
        def make() -> consumer.Consumer:  # its events belong to the loop
            return self._made.consumer(
                topic,
                group=group,
                tags=tags,
                sql=sql,
                orderly=orderly,
                broadcast=broadcast,
                start=start,
                options=options,
            )

        return Consumer(self._loop, self._there(make))

    def find(
        self,
        topic: str,
        *,
        key: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Received]:
        found = self._made.find(
            topic, key=key, since=since, until=until, tags=tags, sql=sql, limit=limit
        )
        return self._loop.iterate(found)

    @property
    def client_id(self) -> str:
        return self._made.client_id

    @property
    def name_servers(self) -> list[str]:
        return self._made.name_servers

    @property
    def admin(self) -> Admin:
        return Admin(self._loop, self._made.admin)


connect = Client


class Producer(Block[producer.Producer]):
    """The blocking twin of `aerobee.Producer`."""

    send = blocking(producer.Producer.send)
    send_batch = blocking(producer.Producer.send_batch)
    send_oneway = blocking(producer.Producer.send_oneway)

    @property
    def topic(self) -> str:
        return self._made.topic


class BufferedProducer(Block[producer.BufferedProducer]):
    """The blocking twin of `aerobee.BufferedProducer`."""

    send = blocking(producer.BufferedProducer.send)
    flush = blocking(producer.BufferedProducer.flush)

    def receipt(self, delivery: accumulator.Delivery) -> Receipt:
        return self._loop.run(delivery.receipt())

    @property
    def buffered(self) -> int:
        """Bytes without a receipt yet."""
        return self._made.buffered


class TransactionProducer(Block[transactions.TransactionProducer]):
    """The blocking twin of `aerobee.TransactionProducer`."""

    @contextmanager
    def begin(
        self,
        body: Body,
        *,
        tag: str | None = None,
        key: str | Iterable[str] | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Iterator[Half]:
        """Store a half message; leaving the block commits it, on an exception `check` decides."""

        async def enter() -> Half:
            return await block.__aenter__()

        async def leave(error: BaseException | None) -> None:
            await block.__aexit__(type(error) if error else None, error, None)

        block = self._made.begin(body, tag=tag, key=key, order_key=order_key, properties=properties)
        half = self._loop.run(enter())
        try:
            yield half
        except BaseException as error:
            self._loop.run(leave(error))
            raise
        self._loop.run(leave(None))

    def send(
        self,
        body: Body,
        execute: Callable[[Half], Verdict],
        *,
        tag: str | None = None,
        key: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Receipt:
        """The listener form: `execute` does the local work and returns the verdict."""
        with self.begin(body, tag=tag, key=key, properties=properties) as half:
            half.verdict = execute(half) or Verdict.UNKNOWN
        return half.receipt


class Message(Received):
    """A message of a consumer; `aerobee.Message` with calls that block."""

    __slots__ = ("_loop", "_message")

    def __init__(self, loop: LoopThread, received: AsyncMessage) -> None:
        super().__init__(received.stored, received.broker, received._delivery)
        self.reconsume_times = received.reconsume_times
        self._loop = loop
        self._message = received

    def ack(self) -> None:
        """Acknowledge it: the group does not get it again."""
        self._do(self._message.ack())

    def retry(self, delay: float | None = None, *, reason: str = "") -> None:
        """Ask for it again after `delay` seconds."""
        self._do(self._message.retry(delay, reason=reason))

    def reject(self, reason: str = "") -> None:
        """Move it to the group's dead letters at once."""
        self._do(self._message.reject(reason))

    def reply(self, body: Body, *, properties: Mapping[str, str] | None = None) -> bool:
        """Reply to a message that was sent by `request`; False when the sender is gone."""
        return self._do(self._message.reply(body, properties=properties))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        result = self._loop.run(work)
        self.finished = self._message.finished
        return result


class Consumer(Twin[consumer.Consumer]):
    """The blocking twin of `aerobee.Consumer`: iterate over it, or `run` a handler."""

    def __enter__(self) -> Self:
        self._loop.run(self._made.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let running handlers end, commit, leave. A handler that calls it does not wait for it."""
        if self._loop.is_alive:  # a closed client has closed it
            if self._loop.handled_here is self:
                self._there(self._made._close_later)
            else:
                self._loop.run(self._made.close())

    def __iter__(self) -> Iterator[Message]:
        for received in self._loop.iterate(aiter(self._made)):
            yield Message(self._loop, received)

    @overload
    def get(self, timeout: None = None) -> Message: ...

    @overload
    def get(self, timeout: float) -> Message | None: ...

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message, None when none came in time; acked by its `ack` only."""
        found = self.get_batch(1, timeout)
        return found[0] if found else None

    def get_batch(self, count: int, timeout: float | None = None) -> list[Message]:
        """Up to `count` messages: waits for the first, then takes those that have arrived."""
        found = self._loop.run(self._made.get_batch(count, timeout))
        return [Message(self._loop, received) for received in found]

    def run(
        self,
        handler: Callable[[Message], object],
        *,
        concurrency: int = 16,
        time_limit: float | None = None,
    ) -> None:
        """Call `handler` for each message in `concurrency` threads, until it is closed."""

        def handle(received: AsyncMessage) -> object:
            with self._loop.handling(self):
                return handler(Message(self._loop, received))

        self._loop.run(self._made.run(handle, concurrency=concurrency, time_limit=time_limit))

    def processing(self, message: Message) -> AbstractContextManager[object]:
        """A span of its handling, for code that does not `run` a handler."""
        return self._made.processing(message._message)

    @property
    def queues(self) -> list[MessageQueue]:
        return self._there(lambda: self._made.queues)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stop fetching from these queues (None: all) until `resume`; buffered ones still come."""
        self._there(lambda: self._made.pause(queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        self._there(lambda: self._made.resume(queues))

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue from this offset; unfinished messages of the queue are dropped."""
        self._there(lambda: self._made.seek(queue, queue_offset))

    seek_to = blocking(consumer.Consumer.seek_to)
    commit = blocking(consumer.Consumer.commit)


class Admin(Twin[admin.Admin]):
    """The blocking twin of `aerobee.Admin`."""

    brokers = blocking(admin.Admin.brokers)
    runtime = blocking(admin.Admin.runtime)
    settings = blocking(admin.Admin.settings)
    change_settings = blocking(admin.Admin.change_settings)
    ping = blocking(admin.Admin.ping)
    replication = blocking(admin.Admin.replication)
    promote = blocking(admin.Admin.promote)
    topics = blocking(admin.Admin.topics)
    create_topic = blocking(admin.Admin.create_topic)
    update_topic = blocking(admin.Admin.update_topic)
    delete_topic = blocking(admin.Admin.delete_topic)
    topic_config = blocking(admin.Admin.topic_config)
    topic_stats = blocking(admin.Admin.topic_stats)
    groups = blocking(admin.Admin.groups)
    group_config = blocking(admin.Admin.group_config)
    create_group = blocking(admin.Admin.create_group)
    update_group = blocking(admin.Admin.update_group)
    delete_group = blocking(admin.Admin.delete_group)
    members = blocking(admin.Admin.members)
    conflicts = blocking(admin.Admin.conflicts)
    is_broadcasting = blocking(admin.Admin.is_broadcasting)
    timers = blocking(admin.Admin.timers)
    lag = blocking(admin.Admin.lag)
    reset = blocking(admin.Admin.reset)
