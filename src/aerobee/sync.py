"""The SDK for programs without asyncio: the same client on a loop in a background thread.

from aerobee.sync import connect

with connect("mq://localhost:9876") as mq:
    mq.send("orders", b"...", tag="paid")
    with mq.consumer("orders", group="billing") as inbox:
        for message in inbox:
            ...
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, Self, TypedDict, TypeVar, Unpack

from aerobee.client import accumulator, admin, client, consumer, message, producer, transactions
from aerobee.client.consumer import Start
from aerobee.client.errors import Closed
from aerobee.client.message import Receipt
from aerobee.client.options import ConsumerOptions
from aerobee.client.producer import BUFFER_BYTES
from aerobee.client.pulling import Pulled
from aerobee.client.sender import Body
from aerobee.client.transactions import Half, Verdict
from aerobee.protocol.fastjson import MessageQueue

T = TypeVar("T")
ENDING_SECONDS: Final = 1.0  # what calls of other threads get to end by themselves on closing


class SendOptions(TypedDict, total=False):
    """The options of a send; `aerobee.Client.send` explains them."""

    tag: str | None
    key: str | Iterable[str] | None
    order_key: str | None
    delay: float | None
    deliver_at: datetime | float | None
    properties: Mapping[str, str] | None
    durable: bool


class BatchOptions(TypedDict, total=False):
    """The options of messages that travel together, without an answer, or as a half message."""

    tag: str | None
    key: str | Iterable[str] | None
    order_key: str | None
    properties: Mapping[str, str] | None


class _Loop:
    """A loop in a daemon thread; `run` waits for a coroutine there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()  # between calling and closing
        self._closed = False
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aerobee", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the synchronous client cannot be called from its own callbacks")
        future = self._call(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Closed("the client was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    @property
    def is_alive(self) -> bool:
        """Not closed, and not the copy that a fork makes, which has no thread."""
        return self._thread.is_alive() and not self._closed

    def _call(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self.is_alive:  # else the lock may be a copy that nobody frees
            with self._lock:
                if not self._closed:
                    future = asyncio.run_coroutine_threadsafe(work, self._loop)
                    self._calls.add(future)
                    future.add_done_callback(self._calls.discard)
                    return future
        work.close()
        raise Closed("this client is closed, or was made before a fork", hint="connect anew")

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> tuple[bool, Any]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        while True:
            more, item = self.run(following())
            if not more:
                return
            yield item

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        concurrent.futures.wait(list(self._calls), timeout=ENDING_SECONDS)
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_all(self) -> None:
        """Whoever still waits for something here would wait for ever."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


def connect(url: str | None = None, *, timeout: float = 3.0) -> Client:
    """Connect to the cluster behind name servers; close the client, or use it in `with`."""
    return Client(url, timeout=timeout)


class Client:
    """The blocking twin of `aerobee.Client`."""

    def __init__(self, url: str | None = None, *, timeout: float = 3.0) -> None:
        self._client = client.Client(url, timeout=timeout)
        self._loop = _Loop()
        try:
            self._loop.run(self._client.open())
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; calls that other threads are in end with an error."""
        if self._loop.is_alive:
            try:
                self._loop.run(self._client.close())
            finally:
                self._loop.close()

    def send(
        self,
        topic: str,
        body: Body,
        *,
        timeout: float | None = None,
        **options: Unpack[SendOptions],
    ) -> Receipt:
        """Store one message and give its receipt."""
        return self._loop.run(self._client.send(topic, body, timeout=timeout, **options))

    def send_oneway(self, topic: str, body: Body, **options: Unpack[BatchOptions]) -> str:
        return self._loop.run(self._client.send_oneway(topic, body, **options))

    def producer(self, topic: str, *, timeout: float | None = None) -> Producer:
        return Producer(self._loop, self._client.producer(topic, timeout=timeout))

    def buffered_producer(
        self, topic: str, *, linger: float = 0.005, buffer_bytes: int = BUFFER_BYTES
    ) -> BufferedProducer:
        """A producer that sends in batches from a buffer."""
        made = self._client.producer(topic, linger=linger, buffer_bytes=buffer_bytes)
        return BufferedProducer(self._loop, made)

    def transactions(
        self, topic: str, *, group: str, check: Callable[[message.Message], Verdict]
    ) -> TransactionProducer:
        """`check` is called in the background thread; it must not call this client."""
        made = self._client.transactions(topic, group=group, check=check)
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
        async def make() -> consumer.Consumer:  # its events belong to the loop
            return self._client.consumer(
                topic,
                group=group,
                tags=tags,
                sql=sql,
                orderly=orderly,
                broadcast=broadcast,
                start=start,
                options=options,
            )

        return Consumer(self._loop, self._loop.run(make()))

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._loop.run(self._client.queues(topic))

    def pull(
        self, queue: MessageQueue, queue_offset: int, *, count: int = 256, wait: float = 0.0
    ) -> Pulled:
        return self._loop.run(self._client.pull(queue, queue_offset, count=count, wait=wait))

    def min_offset(self, queue: MessageQueue) -> int:
        return self._loop.run(self._client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return self._loop.run(self._client.max_offset(queue))

    def offset_at(self, queue: MessageQueue, moment: datetime | float) -> int:
        return self._loop.run(self._client.offset_at(queue, moment))

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
    ) -> Iterator[message.Message]:
        found = self._client.find(
            topic, key=key, since=since, until=until, tags=tags, sql=sql, limit=limit
        )
        return self._loop.iterate(found)

    def message(self, message_id: str, *, topic: str | None = None) -> message.Message:
        return self._loop.run(self._client.message(message_id, topic=topic))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a delayed message before its time; gives its id."""
        return self._loop.run(self._client.recall(topic, recall_handle))

    @property
    def client_id(self) -> str:
        return self._client.client_id

    @property
    def name_servers(self) -> list[str]:
        return self._client.name_servers

    @property
    def admin(self) -> Admin:
        return Admin(self._loop, self._client.admin)


class Producer:
    """The blocking twin of `aerobee.Producer`."""

    def __init__(self, loop: _Loop, made: producer.Producer) -> None:
        self._loop = loop
        self._producer = made

    def __enter__(self) -> Self:
        self._loop.run(self._producer.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._producer.__aexit__())

    def send(self, body: Body, **options: Unpack[SendOptions]) -> Receipt:
        return self._loop.run(self._producer.send(body, **options))

    def send_batch(self, bodies: list[Body], **options: Unpack[BatchOptions]) -> list[Receipt]:
        return self._loop.run(self._producer.send_batch(bodies, **options))

    def send_oneway(self, body: Body, **options: Unpack[BatchOptions]) -> str:
        return self._loop.run(self._producer.send_oneway(body, **options))

    @property
    def topic(self) -> str:
        return self._producer.topic


class BufferedProducer:
    """The blocking twin of `aerobee.BufferedProducer`."""

    def __init__(self, loop: _Loop, made: producer.BufferedProducer) -> None:
        self._loop = loop
        self._producer = made

    def __enter__(self) -> Self:
        self._loop.run(self._producer.__aenter__())
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._loop.run(self._producer.__aexit__(kind, error, trace))

    def send(self, body: Body, **options: Unpack[SendOptions]) -> accumulator.Delivery:
        return self._loop.run(self._producer.send(body, **options))

    def receipt(self, delivery: accumulator.Delivery) -> Receipt:
        return self._loop.run(delivery.receipt())

    def flush(self) -> None:
        self._loop.run(self._producer.flush())

    @property
    def buffered(self) -> int:
        """Bytes that wait for their receipt."""
        return self._producer.buffered


class TransactionProducer:
    """The blocking twin of `aerobee.TransactionProducer`."""

    def __init__(self, loop: _Loop, made: transactions.TransactionProducer) -> None:
        self._loop = loop
        self._producer = made

    def __enter__(self) -> Self:
        self._loop.run(self._producer.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._producer.__aexit__())

    @contextmanager
    def begin(self, body: Body, **options: Unpack[BatchOptions]) -> Iterator[Half]:
        """Store a half message; leaving the block commits it, an exception rolls it back."""

        async def enter() -> Half:
            return await block.__aenter__()

        async def leave(error: BaseException | None) -> None:
            await block.__aexit__(type(error) if error else None, error, None)

        block = self._producer.begin(body, **options)
        half = self._loop.run(enter())
        try:
            yield half
        except BaseException as error:
            self._loop.run(leave(error))
            raise
        self._loop.run(leave(None))

    def send(
        self, body: Body, execute: Callable[[Half], Verdict], **options: Unpack[BatchOptions]
    ) -> Receipt:
        """The listener form: `execute` does the local work and gives the verdict."""
        with self.begin(body, **options) as half:
            half.verdict = execute(half) or Verdict.UNKNOWN
        return half.receipt


class Message:
    """A message of a consumer, with blocking `ack` and `retry`; all else as `aerobee.Message`."""

    __slots__ = ("_loop", "message")

    def __init__(self, loop: _Loop, received: message.Message) -> None:
        self._loop = loop
        self.message = received

    def ack(self) -> None:
        self._loop.run(self.message.ack())

    def retry(self, delay: float | None = None) -> None:
        self._loop.run(self.message.retry(delay))

    @property
    def body(self) -> bytes:
        return self.message.body

    def __getattr__(self, name: str) -> Any:
        return getattr(self.message, name)

    def __repr__(self) -> str:
        return repr(self.message)


class Consumer:
    """The blocking twin of `aerobee.Consumer`: iterate over it."""

    def __init__(self, loop: _Loop, made: consumer.Consumer) -> None:
        self._loop = loop
        self._consumer = made

    def __enter__(self) -> Self:
        self._loop.run(self._consumer.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._loop.is_alive:  # a closed client has closed it
            self._loop.run(self._consumer.close())

    def __iter__(self) -> Iterator[Message]:
        for received in self._loop.iterate(aiter(self._consumer)):
            yield Message(self._loop, received)

    def get(self, timeout: float | None = None) -> Message | None:
        """The next message, None when none came in time; acked by its `ack` only."""

        async def take() -> message.Message | None:
            try:
                async with asyncio.timeout(timeout):
                    return await self._consumer.get()
            except TimeoutError:
                return None

        received = self._loop.run(take())
        return None if received is None else Message(self._loop, received)

    @property
    def queues(self) -> list[MessageQueue]:
        return self._do(lambda: self._consumer.queues)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Fetch no more from these queues (None: all) until `resume`; what is here still comes."""
        self._do(lambda: self._consumer.pause(queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        self._do(lambda: self._consumer.resume(queues))

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on from there; what is taken and not finished is forgotten."""
        self._do(lambda: self._consumer.seek(queue, queue_offset))

    def seek_to(self, start: Start) -> None:
        self._loop.run(self._consumer.seek_to(start))

    def commit(self) -> None:
        self._loop.run(self._consumer.commit())

    def _do(self, work: Callable[[], T]) -> T:
        """In the loop, which may be changing the queues."""

        async def there() -> T:
            return work()

        return self._loop.run(there())


class Admin:
    """Every coroutine of `aerobee.Admin` as a blocking method."""

    def __init__(self, loop: _Loop, made: admin.Admin) -> None:
        self._loop = loop
        self._admin = made

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._admin, name)

        def blocking(*arguments: Any, **options: Any) -> Any:
            return self._loop.run(method(*arguments, **options))

        blocking.__name__ = name
        blocking.__doc__ = method.__doc__
        return blocking
