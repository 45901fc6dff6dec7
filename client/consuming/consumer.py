"""The consumer: messages of a group one by one (`async for`) or to a callback (`run`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal, Self, overload

from aerobee.client.consuming.handling import Handler, Handling, traced
from aerobee.client.consuming.membership import Membership
from aerobee.client.consuming.options import ConsumerOptions, Start
from aerobee.client.consuming.subscription import Subscription
from aerobee.client.core import Core
from aerobee.client.errors import Closed, Misuse
from aerobee.client.message import Message
from aerobee.protocol.json.fastjson import MessageQueue

MESSAGES_PER_TURN: Final = 64
_CLOSED_EARLY: Final = "the consumer of group {!r} was closed while it was being entered"


class Consumer:
    """A member of a consumer group, from entering its block until leaving it.

    Inside `async for` a message is acked when the next one is requested, unless it was acked or
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
        self.group = group
        self.orderly = orderly
        self.broadcast = broadcast
        self.options = options
        self._siblings = siblings  # the client's open consumers, by group
        self._telemetry = core.telemetry
        self._member = Membership(
            core,
            subscriptions,
            group=group,
            orderly=orderly,
            broadcast=broadcast,
            start=start,
            options=options,
        )
        self._asked = 0
        self._workers: set[asyncio.Task[None]] = set()
        self._state: Literal["new", "open", "closing", "closed"] = "new"
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    # -- life

    async def __aenter__(self) -> Self:
        if self.group in self._siblings:
            raise Misuse(f"this client already has a consumer of group {self.group!r}")
        self._siblings[self.group] = self
        self._state = "new"
        starting = self._member.assignment.start()
        self._starting = asyncio.create_task(starting, name=f"enter {self.group}")
        try:
            await self._starting
        except BaseException as error:
            is_closed = self._state != "new"
            await self.close()
            if is_closed and self._starting.cancelled() and not _is_cancelled():
                raise Closed(_CLOSED_EARLY.format(self.group)) from error
            raise
        if self._state != "new":
            raise Closed(_CLOSED_EARLY.format(self.group))
        self._state = "open"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop taking messages, let running callbacks end, commit what is finished, leave.

        Cancelling the caller does not cancel the closing.
        """
        if self._siblings.get(self.group) is not self:
            return  # not entered, or closed
        caller = asyncio.current_task()
        closing = self._closing
        if closing is None:
            others = [worker for worker in self._workers if worker is not caller]
            closing = self._begin_to_close(others)
        elif caller in self._workers:
            return  # a callback: the closing waits for it to return
        await asyncio.shield(closing)

    def _close_later(self) -> None:
        """For one that cannot wait for the closing, such as a handler that blocks a thread."""
        if self._siblings.get(self.group) is self and self._closing is None:
            self._begin_to_close(list(self._workers))

    def _begin_to_close(self, workers: list[asyncio.Task[None]]) -> asyncio.Task[None]:
        self._state = "closing"
        self._closing = asyncio.create_task(self._close(workers), name=f"close {self.group}")
        return self._closing

    async def _close(self, workers: list[asyncio.Task[None]]) -> None:
        starting = self._starting
        if starting is not None and not starting.done():  # else it would take queues afterwards
            starting.cancel()
            await asyncio.wait([starting])
        self._member.arrived.set()
        self._member.assignment.stop_reading()
        try:
            if workers:
                await asyncio.wait(workers)
            await self._member.assignment.stop()
        finally:
            self._siblings.pop(self.group, None)
            self._state = "closed"
            self._closing = None

    # -- receiving messages

    def __aiter__(self) -> AsyncIterator[Message]:
        return _Inbox(self)

    @overload
    async def get(self, timeout: None = None) -> Message: ...

    @overload
    async def get(self, timeout: float) -> Message | None: ...

    async def get(self, timeout: float | None = None) -> Message | None:
        """The next message; it is acked by `ack` only. Raises Closed once the consumer is closed.

        None when none came within `timeout` seconds.
        """
        if timeout is not None:
            found = await self.get_batch(1, timeout)
            return found[0] if found else None
        await self._let_others_run()
        return await self._next()

    async def _let_others_run(self) -> None:
        """A caller that never awaits anything else must not starve the pull loops."""
        self._asked += 1
        if self._asked % MESSAGES_PER_TURN == 0:
            await asyncio.sleep(0)

    async def _next(self) -> Message:
        while True:
            message = self._next_ready()
            if message is not None:
                return message  # no await from here on: a cancellation would lose it
            self._check_entered()
            if self._state != "open":
                raise Closed(f"the consumer of group {self.group!r} is not open")
            self._member.arrived.clear()
            await self._member.arrived.wait()

    def _check_entered(self) -> None:
        if self._state == "new":
            raise Misuse(f"the consumer of group {self.group!r} was not entered: use `async with`")

    def _next_ready(self) -> Message | None:
        return self._member.next_ready() if self._state == "open" else None

    async def get_batch(self, count: int, timeout: float | None = None) -> list[Message]:
        """Up to `count` messages: waits for the first, then takes those that have arrived.

        Empty when none came within `timeout` seconds. Each is acked by its `ack`.
        """
        if count < 1:
            raise Misuse("count is at least 1")
        await self._let_others_run()  # before the timeout starts: it may be 0
        try:
            async with asyncio.timeout(timeout):
                found = [await self._next()]
        except TimeoutError:
            return []
        while len(found) < count and (message := self._next_ready()) is not None:
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
        if self._telemetry is not None:
            handler = traced(handler, self.processing)
        handling = Handling(self._member, self.get, handler, concurrency, time_limit)
        self._workers.update(handling.workers)
        try:
            await handling.join()
        finally:
            self._workers.difference_update(handling.workers)

    def processing(self, message: Message) -> AbstractContextManager[object]:
        """`with inbox.processing(message)`: a span of its handling, for code that does not `run` a
        handler. Does nothing unless the client was made with `telemetry`."""
        telemetry = self._telemetry
        if telemetry is None:
            return nullcontext()
        size = len(message.stored.body)
        return telemetry.processing(
            message.topic, self.group, message.properties, size, self.broadcast
        )

    # -- queues and offsets

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member reads now, without those of the retry topic."""
        return self._member.assignment.queues

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stop fetching from these queues (None: all) until `resume`; buffered ones still come."""
        self._member.assignment.pause(queues)

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        self._member.assignment.resume(queues)

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue from this offset; unfinished messages of the queue are dropped."""
        if queue_offset < 0:
            raise Misuse(f"an offset is 0 or more, not {queue_offset}")
        for process_queue in self._member.assignment.select([queue]):
            self._member.assignment.move(process_queue, queue_offset)

    async def seek_to(self, start: Start) -> None:
        """Move every queue of this member to the first, the last, or the first since a time."""
        for process_queue in self._member.assignment.select(None):
            offset = await self._member.assignment.start_offset(process_queue.queue, start)
            self._member.assignment.move(process_queue, offset)

    async def commit(self) -> None:
        """Commit the finished offsets now."""
        await self._member.assignment.commit(confirm=True)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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
