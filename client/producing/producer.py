"""Producers of one topic: `Producer` awaits each receipt, `BufferedProducer` sends in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Self

from aerobee.client.errors import Closed, Misuse, SendsFailed
from aerobee.client.message import Body, Receipt
from aerobee.client.producing.accumulator import BATCH_BYTES, Accumulator, Delivery
from aerobee.client.producing.outgoing import receipt
from aerobee.client.producing.sender import Sender
from aerobee.client.serializers import Serializer

log = logging.getLogger("aerobee.producer")

BUFFER_BYTES: Final = 32 << 20


class Producer:
    """Sends messages to one topic and awaits the receipt of each."""

    def __init__(
        self,
        sender: Sender,
        topic: str,
        *,
        timeout: float,
        serializer: Serializer | None = None,
    ) -> None:
        self.topic = topic
        self._sender = sender
        self._serializer = serializer
        self._timeout = timeout

    async def __aenter__(self) -> Self:
        await self._sender.prepare(self.topic)
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def send(
        self,
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
        """Store one message. See `Client.send` for the options."""
        message = self._sender.make(
            *(self.topic, body, tag, key, order_key, properties, delay, deliver_at, durable),
            serializer=self._serializer,
        )
        return await self._sender.send(message, timeout or self._timeout)

    async def send_batch(
        self,
        bodies: Sequence[Body],
        *,
        tag: str | None = None,
        key: str | Iterable[str] | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """Store several messages with one request, in one queue and in order."""
        batch = [
            self._sender.make(
                *(self.topic, body, tag, key, order_key, properties), serializer=self._serializer
            )
            for body in bodies
        ]
        if not batch:
            return []
        if any(not message.batchable for message in batch):
            raise Misuse("a batch takes bodies under 4096 bytes: send larger ones one by one")
        size = sum(len(message.body) + len(message.properties) for message in batch)
        if size > 4 * BATCH_BYTES:
            raise Misuse(f"a batch of {size} bytes; at most {4 * BATCH_BYTES} are allowed")
        stored = await self._sender.send_batch(self.topic, batch, timeout or self._timeout)
        return [receipt(message, stored, index) for index, message in enumerate(batch)]

    async def send_oneway(
        self,
        body: Body,
        *,
        tag: str | None = None,
        key: str | Iterable[str] | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Send without waiting for an answer: it may be lost. Returns the message's id."""
        message = self._sender.make(
            *(self.topic, body, tag, key, order_key, properties), serializer=self._serializer
        )
        await self._sender.send_oneway(message)
        return message.message_id


class BufferedProducer:
    """Sends messages to one topic in batches; leaving its block sends what is still buffered.

    `send` returns when the message is in the buffer and waits when the buffer is full. A failure
    that no `Delivery.receipt` has reported is raised, as SendsFailed, by the next `send`, by
    `flush` or on leaving the block.
    """

    def __init__(
        self,
        sender: Sender,
        topic: str,
        *,
        linger: float,
        timeout: float,
        buffer_bytes: int = BUFFER_BYTES,
        serializer: Serializer | None = None,
    ) -> None:
        if linger < 0 or buffer_bytes <= 0:
            raise Misuse("linger and buffer_bytes are positive numbers")
        self.topic = topic
        self._sender = sender
        self._serializer = serializer
        self._accumulator = Accumulator(
            sender, topic, linger=linger, buffer_bytes=buffer_bytes, timeout=timeout
        )
        self._closed = False

    @property
    def buffered(self) -> int:
        """Bytes without a receipt yet."""
        return self._accumulator.buffered

    async def __aenter__(self) -> Self:
        await self._sender.prepare(self.topic)
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._closed = True
        await self._accumulator.flush()
        try:
            self._raise_failures()
        except SendsFailed as failed:
            if error is None:
                raise
            log.error("%s; the block of the producer was left by %r", failed, error)

    async def send(
        self,
        body: Body,
        *,
        tag: str | None = None,
        key: str | Iterable[str] | None = None,
        order_key: str | None = None,
        delay: float | None = None,
        deliver_at: datetime | float | None = None,
        properties: Mapping[str, str] | None = None,
        durable: bool = True,
    ) -> Delivery:
        """Put one message into the buffer. See `Client.send` for the options."""
        self._check_open()
        accumulator = self._accumulator
        if accumulator.has_failed:
            self._raise_failures()
        if accumulator.is_full:
            await accumulator.wait_for_space()
            self._check_open()  # nothing would be sent after the last flush
        message = self._sender.make(
            *(self.topic, body, tag, key, order_key, properties, delay, deliver_at, durable),
            serializer=self._serializer,
        )
        delivery, batch_full = accumulator.add(message)
        if batch_full:
            await asyncio.sleep(0)  # send the full batch even if the caller never awaits
        return delivery

    async def flush(self) -> None:
        """Send what is buffered and wait for every receipt."""
        await self._accumulator.flush()
        self._raise_failures()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"this producer of {self.topic!r} is closed")

    def _raise_failures(self) -> None:
        failures = self._accumulator.take_failures()
        if failures:
            raise SendsFailed(failures)
