"""A queue that a consumer reads: messages taken, messages finished, the offset to commit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from aerobee.client.message import Body, Message
from aerobee.client.serializers import Serializer
from aerobee.protocol.files.record import StoredMessage
from aerobee.protocol.json.fastjson import MessageQueue


class QueueOwner(Protocol):
    """What a queue needs of its consumer's membership."""

    serializer: Serializer | None

    def on_finished(self, process_queue: ProcessQueue, message: Message) -> None: ...

    async def retry(
        self, process_queue: ProcessQueue, message: Message, delay: float | None, reason: str
    ) -> None: ...

    async def reject(self, process_queue: ProcessQueue, message: Message, reason: str) -> None: ...

    async def reply(
        self, message: Message, body: Body, properties: Mapping[str, str] | None
    ) -> bool: ...


class ProcessQueue:
    """The consumer's side of one queue, from its assignment until it is revoked."""

    __slots__ = (
        "_consumer",
        "_done",
        "_unfinished",
        "buffer",
        "busy",
        "committed",
        "confirmed",
        "gone",
        "in_hand",
        "leaving",
        "locked_until",
        "max_offset",
        "moved",
        "next_offset",
        "queue",
        "reader",
        "revoked",
        "running",
        "unfinished_bytes",
    )

    def __init__(self, consumer: QueueOwner, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.next_offset = next_offset
        self.max_offset = next_offset
        self.committed = -1  # as sent
        self.confirmed = -1  # as acknowledged
        self.revoked = False
        self.moved = False  # revoked because this member goes on from another offset
        self.gone = False  # its topic was deleted: offsets mean nothing in one made anew
        self.running = asyncio.Event()  # cleared by pause
        self.running.set()
        self.unfinished_bytes = 0
        self.busy = False  # orderly: a message of this queue is in flight or about to be
        self.in_hand = False  # orderly: the application holds a message
        self.leaving = False  # orderly: to be given up once no message is in hand
        self.locked_until = 0.0
        self.buffer: deque[Message] = deque()  # orderly: messages behind the one in flight
        self.reader: asyncio.Task[None] | None = None
        self._consumer = consumer
        self._unfinished: deque[int] = deque()
        self._done: set[int] = set()

    @property
    def serializer(self) -> Serializer | None:
        return self._consumer.serializer

    @property
    def commit_offset(self) -> int:
        """Everything below this offset is finished."""
        return self._unfinished[0] if self._unfinished else self.next_offset

    @property
    def unfinished(self) -> int:
        return len(self._unfinished) - len(self._done)

    @property
    def span(self) -> int:
        """Messages taken since the oldest unfinished one."""
        return len(self._unfinished)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its unfinished messages come again by themselves, from the committed offset."""
        return self.revoked and not self.moved

    def take(self, stored: list[StoredMessage]) -> list[Message]:
        """Track pulled messages."""
        broker = self.queue.broker_name
        self._unfinished.extend([message.queue_offset for message in stored])
        self.unfinished_bytes += sum([message.size for message in stored])
        return [Message(message, broker, self) for message in stored]

    def finish(self, message: Message) -> None:
        """The message is done; the order in which messages finish does not matter."""
        if message.finished:
            return
        message.finished = True
        self.unfinished_bytes -= message.stored.size
        unfinished = self._unfinished
        offset = message.stored.queue_offset
        if unfinished and unfinished[0] == offset:
            unfinished.popleft()
            done = self._done
            while done and unfinished and unfinished[0] in done:
                done.discard(unfinished.popleft())
        else:
            self._done.add(offset)
        self._consumer.on_finished(self, message)

    async def retry(self, message: Message, delay: float | None, reason: str) -> None:
        if not message.finished:
            await self._consumer.retry(self, message, delay, reason)

    async def reject(self, message: Message, reason: str) -> None:
        if not message.finished:
            await self._consumer.reject(self, message, reason)

    async def reply(
        self, message: Message, body: Body, properties: Mapping[str, str] | None
    ) -> bool:
        return await self._consumer.reply(message, body, properties)
