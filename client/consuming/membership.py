"""A consumer's membership in its group: its queues, the messages taken from them, their outcome."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping

from aerobee.client.consuming import order_locks, redelivery
from aerobee.client.consuming.assignment import Assignment
from aerobee.client.consuming.options import ConsumerOptions, Start
from aerobee.client.consuming.process_queue import ProcessQueue
from aerobee.client.consuming.subscription import Subscription
from aerobee.client.core import Core
from aerobee.client.errors import Misuse
from aerobee.client.message import Body, Message
from aerobee.client.producing import requests
from aerobee.protocol.files.record import StoredMessage

log = logging.getLogger("aerobee.consumer")


class Membership:
    """Between a consumer and its queues: readers offer messages, the consumer takes them."""

    def __init__(
        self,
        core: Core,
        subscriptions: list[Subscription],
        *,
        group: str,
        orderly: bool,
        broadcast: bool,
        start: Start | None,
        options: ConsumerOptions,
    ) -> None:
        self.core = core
        self.group = group
        self.orderly = orderly
        self.broadcast = broadcast
        self.locks_queues = orderly and not broadcast  # broadcast readers share no queue
        self.options = options
        self.serializer = options.serializer or core.sender.serializer
        self.room = asyncio.Event()  # set while there is room for more messages
        self.room.set()
        self.arrived = asyncio.Event()  # set when a message may be ready, or on closing
        self.assignment = Assignment(self, subscriptions, start)
        self.ready: deque[Message] = deque()
        self.unfinished = 0
        self._limits = redelivery.Limits(group, options.max_retries)
        self._ready_queues: deque[ProcessQueue] = deque()  # orderly
        self._bytes = 0

    # -- called by the consumer

    def next_ready(self) -> Message | None:
        """The next message, if one has arrived."""
        if self.orderly:
            return self._next_orderly()
        ready = self.ready
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
                self.assignment.drop(process_queue)
                continue
            process_queue.busy = process_queue.in_hand = True
            return process_queue.buffer.popleft()
        return None

    def hand_in(self, message: Message) -> None:
        """A message passed by an operator: it is received next. Misuse in an orderly group."""
        if self.orderly:
            raise Misuse(f"group {self.group!r} is orderly: no message can be handed in between")
        self.ready.appendleft(message)
        self.arrived.set()

    # -- called by the queues and their readers

    def offer(self, process_queue: ProcessQueue, stored: list[StoredMessage]) -> None:
        """Make pulled messages ready to be received."""
        if process_queue.revoked:
            return
        before = process_queue.unfinished_bytes
        messages = process_queue.take(stored)
        if self.core.telemetry is not None and messages:
            found = [message.properties for message in messages]
            self.core.telemetry.received(messages[0].topic, self.group, found, self.broadcast)
        self.unfinished += len(messages)
        self._bytes += process_queue.unfinished_bytes - before
        if self.orderly:
            process_queue.buffer.extend(messages)
            self.make_ready(process_queue)
        else:
            self.ready.extend(messages)
            self.arrived.set()
        self._measure()

    def make_ready(self, process_queue: ProcessQueue) -> None:
        """Orderly: the next message of the queue may be taken."""
        if not process_queue.busy and process_queue.buffer and not process_queue.revoked:
            process_queue.busy = True
            self._ready_queues.append(process_queue)
            self.arrived.set()

    def on_finished(self, process_queue: ProcessQueue, message: Message) -> None:
        if process_queue.revoked:
            return
        self.unfinished -= 1
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

    def forget_revoked(self) -> None:
        """Queues were given up: drop their unfinished messages."""
        self.unfinished = self._bytes = 0
        kept = [
            message
            for message in self.ready
            if message._delivery is not None and not message._delivery.revoked
        ]
        self.ready = deque(kept)
        for other in self.assignment.process_queues:
            self.unfinished += other.unfinished
            self._bytes += other.unfinished_bytes
        self._measure()

    def _measure(self) -> None:
        options = self.options
        if self.unfinished < options.prefetch_count and self._bytes < options.prefetch_bytes:
            self.room.set()
        else:
            self.room.clear()

    async def retry(
        self, process_queue: ProcessQueue, message: Message, delay: float | None, reason: str
    ) -> None:
        self._check_redelivers()
        limit = await self._limits.most(self.core, message.broker)
        if message.finished:
            return  # by another task in the meantime
        if self._is_left(process_queue, message):
            return
        # Without order only the broker's own count decides about the dead letters.
        tries = message.reconsume_times if self.orderly else message.stored.reconsume_times
        is_last = limit is not None and tries >= limit
        if delay is None:
            delay = self.options.delay_before(message.reconsume_times + 1)
        if self.orderly and not is_last:
            self.again_here(message, order_locks.pause(message) if delay is None else delay)
            return
        retries = limit if self.orderly else self.options.max_retries
        await redelivery.send_back(
            self.core, self.group, message, delay, retries, reason, in_place=self.orderly
        )
        process_queue.finish(message)
        if is_last:
            self._log_dead_letter(message, f"after {tries} retries", reason)

    async def reject(self, process_queue: ProcessQueue, message: Message, reason: str) -> None:
        self._check_redelivers()
        if self._is_left(process_queue, message):
            return
        await redelivery.reject(self.core, self.group, message, reason)
        process_queue.finish(message)
        self._log_dead_letter(message, "it was rejected", reason)

    def _is_left(self, process_queue: ProcessQueue, message: Message) -> bool:
        """Whether the message is left to whoever reads its queue now: it was not committed, so that
        member gets it anyway, and a copy besides would be handled twice."""
        if not process_queue.is_elsewhere:
            return False
        process_queue.finish(message)
        log.info("%r is left to the reader that has its queue now", message)
        return True

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
        """Redeliver the message locally after a pause; an orderly queue waits for it."""
        process_queue = message._delivery
        assert isinstance(process_queue, ProcessQueue), "it came from a queue"
        again = message._next_attempt()

        def resume() -> None:
            if self.orderly:
                process_queue.buffer.appendleft(again)
                process_queue.busy = False
                self.make_ready(process_queue)
            elif not process_queue.revoked:
                self.ready.append(again)
                self.arrived.set()

        self._put_down(process_queue)
        asyncio.get_running_loop().call_later(seconds, resume)

    def move(self, process_queue: ProcessQueue, queue_offset: int) -> None:
        self.assignment.move(process_queue, queue_offset)

    async def begin_anew(self, process_queue: ProcessQueue) -> None:
        await self.assignment.begin_anew(process_queue)

    def subscription(self, topic: str) -> Subscription:
        return self.assignment.subscriptions[topic]

    def request_rebalance(self) -> None:
        self.assignment.request()
