"""`connect` and the client that it returns: the entry point of the SDK."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Self, overload

from aerobee.client.admin import query
from aerobee.client.admin.admin import Admin
from aerobee.client.consuming import positions
from aerobee.client.consuming.consumer import Consumer
from aerobee.client.consuming.options import ConsumerOptions, Start
from aerobee.client.consuming.pulling import Pulled
from aerobee.client.consuming.subscription import subscribe
from aerobee.client.core import Core
from aerobee.client.errors import Misuse
from aerobee.client.message import Body, Message, Receipt, timestamp_ms
from aerobee.client.producing.producer import BUFFER_BYTES, BufferedProducer, Producer
from aerobee.client.producing.transactions import Check, TransactionProducer
from aerobee.client.serializers import Serializer
from aerobee.client.session import PRODUCER_GROUP, ClientSession
from aerobee.client.transport.remoting import ConnectionEvent
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.recall_handle import decode as recall_handle_of

if TYPE_CHECKING:  # imported when first used
    from aerobee.client.why.answer import Why


class connect:
    """Connect to the cluster behind name servers: `async with connect(url) as mq` or `await`.

    `url` is `mq://[key:secret@]host:port[,host:port...]` of name servers (an Aerobee broker is one
    itself); without it AEROBEE_URL, then mq://127.0.0.1:9876. `timeout` is for single requests,
    `wait` is how long to wait for a cluster that is not up yet. `on_connection` is called
    when a connection is lost and when it is back. With a `serializer` bodies may be values.
    `telemetry` makes OpenTelemetry's spans and metrics (`aerobee[otel]`).
    """

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
        self._client = Client(
            url,
            timeout=timeout,
            wait=wait,
            on_connection=on_connection,
            serializer=serializer,
            telemetry=telemetry,
        )

    def __await__(self) -> Generator[None, None, Client]:
        return self._client.open().__await__()

    async def __aenter__(self) -> Client:
        return await self._client.open()

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


class Client:
    """A connection to a cluster. Make it with `connect`, close it when done."""

    telemetry_default = False  # where `telemetry` is not given; `opentelemetry-instrument` sets it

    def __init__(
        self,
        url: str | None,
        *,
        timeout: float,
        wait: float = 0.0,
        on_connection: Callable[[ConnectionEvent], object] | None = None,
        serializer: Serializer | None = None,
        telemetry: bool | None = None,
    ) -> None:
        wanted = self.telemetry_default if telemetry is None else telemetry
        self._session = ClientSession(
            url,
            timeout=timeout,
            wait=wait,
            on_connection=on_connection,
            serializer=serializer,
            telemetry=wanted,
        )
        self._timeout = timeout

    # -- life

    async def open(self) -> Self:
        """Connect to the first name server that answers; the error says why none did."""
        await self._session.open()
        return self

    async def close(self) -> None:
        """Close it and all that it opened: consumers drain and leave their groups."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self if self._session.is_open else await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def _core(self) -> Core:
        return self._session.core

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client."""
        return self._core.client_id

    @property
    def name_servers(self) -> list[str]:
        return list(self._session.name_servers)

    # -- sending

    async def send(
        self,
        topic: str,
        body: Body,
        *,
        tag: str | None = None,
        key: str | Iterable[str] | None = None,
        order_key: str | None = None,
        delay: float | None = None,
        deliver_at: datetime | float | None = None,
        properties: Mapping[str, str] | None = None,
        durable: bool = True,
        timeout: float | None = None,
    ) -> Receipt:
        """Store one message and return its receipt.

        `tag` is what consumers filter by, `key` what queries find it by; messages with the same
        `order_key` share a queue and stay in order. `delay` (seconds) or `deliver_at` defer it.
        `durable=False` does not wait for the flush that the broker is set to.
        Unconfirmed is raised when it is unknown whether the message was stored.
        """
        sender = self._core.sender
        message = sender.make(
            topic, body, tag, key, order_key, properties, delay, deliver_at, durable
        )
        return await sender.send(message, timeout or self._timeout)

    async def send_oneway(
        self,
        topic: str,
        body: Body,
        *,
        tag: str | None = None,
        key: str | Iterable[str] | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Send without waiting for an answer: the message may be lost. Returns its id."""
        sender = self._core.sender
        message = sender.make(topic, body, tag, key, order_key, properties)
        await sender.send_oneway(message)
        return message.message_id

    @overload
    def producer(
        self,
        topic: str,
        *,
        linger: None = None,
        timeout: float | None = None,
        serializer: Serializer | None = None,
    ) -> Producer: ...

    @overload
    def producer(
        self,
        topic: str,
        *,
        linger: float,
        buffer_bytes: int = BUFFER_BYTES,
        timeout: float | None = None,
        serializer: Serializer | None = None,
    ) -> BufferedProducer: ...

    def producer(
        self,
        topic: str,
        *,
        linger: float | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        timeout: float | None = None,
        serializer: Serializer | None = None,
    ) -> Producer | BufferedProducer:
        """A producer of one topic; with `linger` (seconds) it sends in batches from a buffer."""
        seconds = timeout or self._timeout
        if linger is None:
            return Producer(self._core.sender, topic, timeout=seconds, serializer=serializer)
        return BufferedProducer(
            self._core.sender,
            topic,
            linger=linger,
            buffer_bytes=buffer_bytes,
            timeout=seconds,
            serializer=serializer,
        )

    def transactions(
        self, topic: str, *, group: str, check: Check, timeout: float | None = None
    ) -> TransactionProducer:
        """A producer of transactions; `check` answers when the broker asks for a half's outcome."""
        core = self._core
        return TransactionProducer(
            core.sender,
            core.remoting,
            core.presence,
            self._session.members.producers,
            topic=topic,
            group=group,
            check=check,
            timeout=timeout or self._timeout,
        )

    async def request(
        self,
        topic: str,
        body: Body,
        *,
        tag: str | None = None,
        key: str | Iterable[str] | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Message:
        """Send a message and return the reply of the consumer that handles it (`message.reply`).

        RequestTimeout when none comes within `timeout`.
        """
        message = self._core.sender.make(topic, body, tag, key, order_key, properties)
        return await self._session.requests.ask(message, timeout or self._timeout)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Cancel a delayed message before it is due; returns its id. (Receipts have the handle.)"""
        core = self._core
        try:
            broker = recall_handle_of(recall_handle).broker_name
        except ValueError as error:
            raise Misuse(f"{recall_handle!r}: {error}") from None
        await core.routes.for_sending(topic)
        answer = await core.remoting.ask(
            core.routes.address(broker),
            RequestCode.RECALL_MESSAGE,
            {"producerGroup": PRODUCER_GROUP, "topic": topic, "recallHandle": recall_handle},
            what="the recall",
        )
        return answer.ext.get("msgId", "")

    # -- consuming

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
        """A member of a consumer group: `async with` it, then `async for` or `run`.

        `tags` or `sql` select messages. `orderly` keeps the order within a queue. `broadcast`:
        every member gets every message. `start` is for a group without offsets: "first" (default),
        "last" (broadcasting's default) or a time.
        """
        topics = [topic] if isinstance(topic, str) else list(topic)
        if not topics or not group:
            raise Misuse("a consumer needs a topic and a group")
        version = time.time_ns() // 1_000_000
        wanted = tags if tags is None or isinstance(tags, str) else list(tags)
        return Consumer(
            self._core,
            self._session.members.consumers,
            [subscribe(name, wanted, sql, version) for name in topics],
            group=group,
            orderly=orderly,
            broadcast=broadcast,
            start=start,
            options=options or ConsumerOptions(),
        )

    # -- reading without a group, queries, administration

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read."""
        return sorted((await self._core.routes.refresh(topic)).read_queues())

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        *,
        count: int = 256,
        wait: float = 0.0,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
    ) -> Pulled:
        """Read a queue without a group; waits up to `wait` seconds for the first message."""
        subscription = subscribe(queue.topic, tags, sql, 0)
        return await query.pull_queue(
            self._core, queue, queue_offset, count=count, wait=wait, subscription=subscription
        )

    async def min_offset(self, queue: MessageQueue) -> int:
        await self._core.routes.get(queue.topic)
        return await positions.min_offset(self._core, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        await self._core.routes.get(queue.topic)
        return await positions.max_offset(self._core, queue)

    async def offset_at(self, queue: MessageQueue, moment: datetime | float) -> int:
        """The offset of the first message stored at `moment` or later."""
        await self._core.routes.get(queue.topic)
        return await positions.offset_at(self._core, queue, timestamp_ms(moment))

    async def find(
        self,
        topic: str,
        *,
        key: str | None = None,
        since: datetime | float | None = None,
        until: datetime | float | None = None,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Message]:
        """Stored messages: those with a key, or those of a time range (by default all).

        By key the newest ones, oldest first: each broker gives at most 64 (`maxMsgsNumBatch`).
        """
        if key is not None and (tags is not None or sql is not None):
            raise Misuse("give either a key, or tags or sql: the index finds messages by key only")
        if key is None:
            subscription = subscribe(topic, tags, sql, 0)
            count = 0
            async for message in query.by_time(
                self._core, topic, since=since, until=until, subscription=subscription
            ):
                if limit is not None and count >= limit:
                    return
                count += 1
                yield message
            return
        found = await query.by_key(
            self._core,
            topic,
            key,
            since_ms=0 if since is None else timestamp_ms(since),
            until_ms=query.TIME_MAX if until is None else timestamp_ms(until),
            limit=limit,
        )
        for message in found:
            yield message

    async def message(self, message_id: str, *, topic: str | None = None) -> Message:
        """The message with that id; NotFound when there is none. A unique id needs the topic."""
        return await query.by_id(self._core, message_id, topic)

    async def why(self, message_id: str, topic: str | None = None, group: str | None = None) -> Why:
        """Where a message is: its history, and one verdict for the group (by default for each).

        Nothing is guessed: without evidence from a broker the verdict is `unknown`. A missing
        message gets a verdict, too. Without `topic` all topics are searched.
        """
        from aerobee.client.why.why import explain

        return await explain(self._core, message_id, topic, group)

    @property
    def admin(self) -> Admin:
        """Topics, groups, lag, resets, brokers."""
        return Admin(self._core)
