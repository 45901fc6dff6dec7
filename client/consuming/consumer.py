"""The consumer: messages of a group one by one (`async for`) or to a callback (`run`)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal, Self, overload

from aerobee.client.consuming import order_locks, redelivery
from aerobee.client.consuming.assignment import Assignment
from aerobee.client.consuming.handling import Handler, Handling, traced
from aerobee.client.consuming.options import ConsumerOptions, Start
from aerobee.client.consuming.process_queue import ProcessQueue
from aerobee.client.consuming.subscription import Subscription
from aerobee.client.core import Core
from aerobee.client.errors import Closed, Misuse
from aerobee.client.message import Body, Message
from aerobee.client.producing import requests
from aerobee.protocol.files.record import StoredMessage
from aerobee.protocol.json.fastjson import MessageQueue

log = logging.getLogger("aerobee.consumer")

MESSAGES_PER_TURN: Final = 64


class Consumer:
    """A member of a consumer group, from entering its block until leaving it.

    Inside `async for` a message is acked when the next one is asked for, unless it was acked or
    retried before; leaving the loop by break, return or an exception does not ack the last one.
    """

    def __init__(
        self,
        core: Core,
        siblings: dict[str, Consumer],
        subscriptions: list[Subscription],
        *,
        group: str,
        orderly: bool,
        broadcast: bool,
        start: Start | None,
        options: ConsumerOptions,
    ) -> None:
        self.core = core
        self._siblings = siblings  # the client's open consumers, by group
        self.group = group
        self.orderly = orderly
        self.broadcast = broadcast
        self.locks_queues = orderly and not broadcast  # broadcast readers share no queue
        self.options = options
        self.serializer = options.serializer or core.sender.serializer
        self.room = asyncio.Event()  # set while there is room for more messages
        self.room.set()
        self._limits = redelivery.Limits(group, options.max_retries)
        self._assignment = Assignment(self, subscriptions, start)
        self._ready: deque[Message] = deque()
        self._ready_queues: deque[ProcessQueue] = deque()  # orderly
        self._arrived = asyncio.Event()
        self._count = 0
        self._bytes = 0
        self._asked = 0
        self._workers: set[asyncio.Task[None]] = set()
        self._state: Literal["new", "open", "closing", "closed"] = "new"
        self._closing: asyncio.Task[None] | None = None

    # -- life

    async def __aenter__(self) -> Self:
        if self.group in self._siblings:
            raise Misuse(f"this client already has a consumer of group {self.group!r}")
        self._siblings[self.group] = self
        try:
            await self._assignment.start()
        except BaseException:
            await self.close()
            raise
        self._state = "open"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop taking messages, let running callbacks end, commit what is finished, leave.

        Who is cancelled while it lasts stops waiting for it only.
        """
        if self._siblings.get(self.group) is not self:
            return  # not entered, or closed
        caller = asyncio.current_task()
        if self._closing is None:
            self._state = "closing"
            others = [worker for worker in self._workers if worker is not caller]
            self._closing = asyncio.create_task(self._close(others), name=f"close {self.group}")
        elif caller in self._workers:
            return  # a callback, for whose end the closing waits
        await asyncio.shield(self._closing)

    async def _close(self, workers: list[asyncio.Task[None]]) -> None:
        self._arrived.set()
        self._assignment.stop_reading()
        try:
            if workers:
                await asyncio.wait(workers)
            await self._assignment.stop()
        finally:
            self._siblings.pop(self.group, None)
            self._state = "closed"
            self._closing = None

    # -- taking messages

    def __aiter__(self) -> AsyncIterator[Message]:
        return _Inbox(self)

    @overload
    async def get(self, timeout: None = None) -> Message: ...

    @overload
    async def get(self, timeout: float) -> Message | None: ...

    async def get(self, timeout: float | None = None) -> Message | None:
        """The next message; it is acked by `ack` only. Closed when the consumer is.

        None when none came within `timeout` seconds.
        """
        if timeout is not None:
            found = await self.get_batch(1, timeout)
            return found[0] if found else None
        self._asked += 1
        if self._asked % MESSAGES_PER_TURN == 0:
            await asyncio.sleep(0)  # a caller that never waits must not stop the pulling
        while True:
            message = self.get_ready()
            if message is not None:
                return message  # no wait from here on: a cancelled one would lose it
            self._check_entered()
            if self._state != "open":
                raise Closed(f"the consumer of group {self.group!r} is not open")
            self._arrived.clear()
            await self._arrived.wait()

    def _check_entered(self) -> None:
        if self._state == "new":
            raise Misuse(f"the consumer of group {self.group!r} was not entered: `async with` it")

    def get_ready(self) -> Message | None:
        """The next message if one is here."""
        if self._state != "open":
            return None
        if self.orderly:
            return self._next_orderly()
        ready = self._ready
        while ready:
            message = ready.popleft()
            if message._delivery is not None and not message._delivery.revoked:
                return message
        return None

    def _next_orderly(self) -> Message | None:
        while self._ready_queues:
            process_queue = self._ready_queues.popleft()
            process_queue.busy = False
            if process_queue.revoked or process_queue.leaving or not process_queue.buffer:
                continue
            now = asyncio.get_running_loop().time()
            if self.locks_queues and process_queue.locked_until < now:
                self._assignment.drop(process_queue)
                continue
            process_queue.busy = process_queue.in_hand = True
            return process_queue.buffer.popleft()
        return None

    async def get_batch(self, count: int, timeout: float | None = None) -> list[Message]:
        """Up to `count` messages: waits for the first, then takes what is here.

        Empty when none came within `timeout` seconds. Each is acked by its `ack`.
        """
        if count < 1:
            raise Misuse("a batch has at least one message")
        try:
            async with asyncio.timeout(timeout):
                found = [await self.get()]
        except TimeoutError:
            return []
        while len(found) < count and (message := self.get_ready()) is not None:
            found.append(message)
        return found

    async def run(
        self, handler: Handler, *, concurrency: int = 16, time_limit: float | None = None
    ) -> None:
        """Call `handler` for each message, at most `concurrency` at a time, until closed.

        A plain function is called in a thread. A message whose handler returns is acked; one whose
        handler raises, or takes longer than `time_limit` seconds, is logged and retried; one whose
        handler raises Reject goes to the dead letters. (Broadcast messages are not redelivered.)
        """
        self._check_entered()
        if self.core.telemetry is not None:
            handler = traced(handler, self.processing)
        handling = Handling(self, handler, concurrency, time_limit)
        self._workers.update(handling.workers)
        try:
            await handling.join()
        finally:
            self._workers.difference_update(handling.workers)

    def processing(self, message: Message) -> AbstractContextManager[object]:
        """`with inbox.processing(message)`: a span of its handling, for those who do not `run` a
        handler. Does nothing unless the client was made with `telemetry`."""
        telemetry = self.core.telemetry
        if telemetry is None:
            return nullcontext()
        size = len(message.stored.body)
        return telemetry.processing(
            message.topic, self.group, message.properties, size, self.broadcast
        )

    # -- called by the queues and their readers

    def offer(self, process_queue: ProcessQueue, stored: list[StoredMessage]) -> None:
        """Messages that a pull brought."""
        if process_queue.revoked:
            return
        before = process_queue.unfinished_bytes
        messages = process_queue.take(stored)
        if self.core.telemetry is not None and messages:
            found = [message.properties for message in messages]
            self.core.telemetry.received(messages[0].topic, self.group, found, self.broadcast)
        self._count += len(messages)
        self._bytes += process_queue.unfinished_bytes - before
        if self.orderly:
            process_queue.buffer.extend(messages)
            self.make_ready(process_queue)
        else:
            self._ready.extend(messages)
            self._arrived.set()
        self._measure()

    def hand_in(self, message: Message) -> None:
        """A message from no queue of ours, to be taken next; orderly ones have no place for it."""
        if self.orderly:
            raise Misuse(f"group {self.group!r} reads in order: nothing can be put in between")
        self._ready.appendleft(message)
        self._arrived.set()

    def make_ready(self, process_queue: ProcessQueue) -> None:
        """Orderly: the next message of the queue may be taken."""
        if not process_queue.busy and process_queue.buffer and not process_queue.revoked:
            process_queue.busy = True
            self._ready_queues.append(process_queue)
            self._arrived.set()

    def on_finished(self, process_queue: ProcessQueue, message: Message) -> None:
        if process_queue.revoked:
            return
        self._count -= 1
        self._bytes -= message.stored.size
        if not self.room.is_set():
            self._measure()
        if self.orderly:
            self._put_down(process_queue)
            process_queue.busy = False
            self.make_ready(process_queue)

    def _put_down(self, process_queue: ProcessQueue) -> None:
        process_queue.in_hand = False
        if process_queue.leaving:
            self.request_rebalance()

    def forget(self, process_queue: ProcessQueue) -> None:
        """A queue was taken away with what is unfinished in it."""
        self._count = self._bytes = 0
        kept = [
            message
            for message in self._ready
            if message._delivery is not None and not message._delivery.revoked
        ]
        self._ready = deque(kept)
        for other in self._assignment.process_queues:
            self._count += other.unfinished
            self._bytes += other.unfinished_bytes
        self._measure()

    def _measure(self) -> None:
        options = self.options
        if self._count < options.prefetch_count and self._bytes < options.prefetch_bytes:
            self.room.set()
        else:
            self.room.clear()

    async def retry(
        self, process_queue: ProcessQueue, message: Message, delay: float | None, reason: str
    ) -> None:
        self._check_redelivers()
        limit = await self._limits.most(self.core, message.broker)
        if message.finished:
            return  # by another task, meanwhile
        # Elsewhere than in an orderly queue only the broker's own count makes a dead letter.
        tries = message.reconsume_times if self.orderly else message.stored.reconsume_times
        is_last = limit is not None and tries >= limit
        if delay is None:
            delay = self.options.delay_before(message.reconsume_times + 1)
        if self.orderly and not is_last:
            self.again_here(message, order_locks.pause(message) if delay is None else delay)
            return
        told = limit if self.orderly else self.options.max_retries
        await redelivery.send_back(
            self.core, self.group, message, delay, told, reason, in_place=self.orderly
        )
        process_queue.finish(message)
        if is_last:
            self._log_dead_letter(message, f"after {tries} retries", reason)

    async def reject(self, process_queue: ProcessQueue, message: Message, reason: str) -> None:
        self._check_redelivers()
        await redelivery.reject(self.core, self.group, message, reason)
        process_queue.finish(message)
        self._log_dead_letter(message, "it was rejected", reason)

    def _check_redelivers(self) -> None:
        if self.broadcast:
            raise Misuse("broadcast messages are not redelivered: ack, or handle the failure here")

    def _log_dead_letter(self, message: Message, why: str, reason: str) -> None:
        log.warning(
            "%r goes to the dead letters of group %s, %s%s",
            *(message, self.group, why, f": {reason}" if reason else ""),
        )

    async def reply(
        self, message: Message, body: Body, properties: Mapping[str, str] | None
    ) -> bool:
        core = self.core
        return await requests.reply(
            core.sender, core.remoting, core.routes, message, body, properties
        )

    def again_here(self, message: Message, seconds: float) -> None:
        """Deliver the same message again, without the broker; an orderly queue waits for it."""
        process_queue = message._delivery
        assert isinstance(process_queue, ProcessQueue), "it came by a queue"
        again = message.again()

        def resume() -> None:
            if self.orderly:
                process_queue.buffer.appendleft(again)
                process_queue.busy = False
                self.make_ready(process_queue)
            elif not process_queue.revoked:
                self._ready.append(again)
                self._arrived.set()

        self._put_down(process_queue)
        asyncio.get_running_loop().call_later(seconds, resume)

    def move(self, process_queue: ProcessQueue, queue_offset: int) -> None:
        self._assignment.move(process_queue, queue_offset)

    def subscription(self, topic: str) -> Subscription:
        return self._assignment.subscriptions[topic]

    def request_rebalance(self) -> None:
        self._assignment.request()

    # -- by hand

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member reads now, those of retries apart."""
        return self._assignment.queues

    @property
    def process_queues(self) -> list[ProcessQueue]:
        return self._assignment.process_queues

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Fetch no more from these queues (None: all) until `resume`; what is here still comes."""
        for process_queue in self._named(queues):
            process_queue.running.clear()

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        for process_queue in self._named(queues):
            process_queue.running.set()

    def _named(self, queues: Iterable[MessageQueue] | None) -> list[ProcessQueue]:
        """None: all, those of retries too."""
        return self.process_queues if queues is None else self._assignment.select(queues)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on from there; what is taken and not finished is forgotten."""
        if queue_offset < 0:
            raise Misuse(f"an offset is not negative: {queue_offset}")
        for process_queue in self._assignment.select([queue]):
            self._assignment.move(process_queue, queue_offset)

    async def seek_to(self, start: Start) -> None:
        """Move every queue of this member to the first, the last, or the first since a time."""
        for process_queue in self._assignment.select(None):
            offset = await self._assignment.start_offset(process_queue.queue, start)
            self._assignment.move(process_queue, offset)

    async def commit(self) -> None:
        """Commit the finished offsets now."""
        await self._assignment.commit(confirm=True)

    async def unlock(self, queues: list[MessageQueue]) -> None:
        await order_locks.unlock(self.core, self.group, queues)


class _Inbox:
    """One `async for` over a consumer; several may share the consumer."""

    __slots__ = ("_consumer", "_previous")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._previous: Message | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        previous, self._previous = self._previous, None
        if previous is not None and not previous.finished:
            await previous.ack()
        try:
            message = self._previous = await self._consumer.get()
        except Closed:
            raise StopAsyncIteration from None
        return message
