"""Messages waiting to be sent together: lanes of batches, a bounded buffer, linger.

Messages without an order key share one lane whose batches are sent concurrently. Each queue that
order keys map to has a lane of its own with one batch in flight, so that order survives retries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import msgspec

from aerobee.client.errors import AerobeeError, Unconfirmed
from aerobee.client.message import Outgoing, Receipt, given_body
from aerobee.client.producing.outgoing import Stored, receipt
from aerobee.client.producing.sender import Sender

BATCH_BYTES: Final = 256 * 1024
BATCH_COUNT: Final = 1024
LANE_IN_FLIGHT: Final = 8
MESSAGE_OVERHEAD: Final = 256  # what a buffered message costs besides its body, roughly

Outcome = Stored | AerobeeError


class Batch:
    """Messages that one request carries, and what became of them."""

    __slots__ = ("_waiters", "messages", "outcome", "size", "watched")

    def __init__(self) -> None:
        self.messages: list[Outgoing] = []
        self.size = 0
        self.outcome: Outcome | None = None
        self.watched: set[int] = set()
        self._waiters: list[asyncio.Future[None]] = []

    def finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def receipt(self, index: int) -> Receipt:
        while self.outcome is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        self.watched.add(index)  # only now: a caller cancelled above has not seen the error
        if isinstance(self.outcome, AerobeeError):
            raise self.error(index)
        return receipt(self.messages[index], self.outcome, index)

    def error(self, index: int) -> AerobeeError:
        """The batch's error as that of one message."""
        error = self.outcome
        assert isinstance(error, AerobeeError)
        if isinstance(error, Unconfirmed):
            message = self.messages[index]
            return Unconfirmed(
                f"it is unknown whether message {message.message_id} was stored: {error.__cause__}",
                message_id=message.message_id,
                topic=message.topic,
            )
        return error


class Delivery(msgspec.Struct, gc=False, eq=False):
    """A message in the buffer; `receipt` waits until it is stored."""

    _batch: Batch
    _index: int

    @property
    def message_id(self) -> str:
        return self._batch.messages[self._index].message_id

    async def receipt(self) -> Receipt:
        """The receipt, or the error that this message met."""
        return await self._batch.receipt(self._index)


class _Lane:
    __slots__ = ("in_flight", "in_flight_max", "open", "timer", "waiting")

    def __init__(self, in_flight_max: int) -> None:
        self.in_flight_max = in_flight_max
        self.open: Batch | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.waiting: deque[Batch] = deque()
        self.in_flight = 0


class Accumulator:
    """Collects messages of one topic into batches and sends them."""

    def __init__(
        self, sender: Sender, topic: str, *, linger: float, buffer_bytes: int, timeout: float
    ) -> None:
        self._sender = sender
        self._topic = topic
        self._linger = linger
        self._limit = buffer_bytes
        self._timeout = timeout
        self._lanes: dict[int | None, _Lane] = {}
        self._buffered = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._space_waiters: deque[asyncio.Future[None]] = deque()
        self._failed: list[Batch] = []

    @property
    def is_full(self) -> bool:
        return self._buffered >= self._limit

    @property
    def buffered(self) -> int:
        """Bytes of messages without an outcome yet."""
        return self._buffered

    def add(self, message: Outgoing) -> tuple[Delivery, bool]:
        """Add a message; True when it has filled its batch."""
        key = message.order_key
        number = None if key is None else self._sender.order_lane(self._topic, key)
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _Lane(LANE_IN_FLIGHT if number is None else 1)
        size = len(message.body) + len(message.properties)
        batch = lane.open
        if batch is not None and (
            not message.batchable or batch.size + size > BATCH_BYTES or _is_alone(batch)
        ):
            self._close(lane)
            batch = None
        if batch is None:
            batch = lane.open = Batch()
            loop = asyncio.get_running_loop()
            lane.timer = loop.call_later(self._linger, self._close, lane)
        batch.messages.append(message)
        batch.size += size
        self._buffered += size + MESSAGE_OVERHEAD
        delivery = Delivery(batch, len(batch.messages) - 1)
        full = batch.size >= BATCH_BYTES or len(batch.messages) >= BATCH_COUNT
        if full or not message.batchable:
            self._close(lane)
        return delivery, full

    @property
    def has_failed(self) -> bool:
        return bool(self._failed)

    def take_failures(self) -> list[tuple[bytes, AerobeeError]]:
        """Failures since the last call that no receipt has reported."""
        failed, self._failed = self._failed, []
        return [
            (given_body(message), batch.error(index))
            for batch in failed
            for index, message in enumerate(batch.messages)
            if index not in batch.watched
        ]

    async def wait_for_space(self) -> None:
        while self.is_full:
            for lane in self._lanes.values():
                self._close(lane)  # lingering is of no use: no message can join these batches
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._space_waiters.append(waiter)
            await waiter

    async def flush(self) -> None:
        """Send everything now and wait until each message has its outcome."""
        for lane in list(self._lanes.values()):
            self._close(lane)
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _close(self, lane: _Lane) -> None:
        batch, lane.open = lane.open, None
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        if batch is not None:
            lane.waiting.append(batch)
        self._launch(lane)

    def _launch(self, lane: _Lane) -> None:
        while lane.waiting and lane.in_flight < lane.in_flight_max:
            lane.in_flight += 1
            task = asyncio.create_task(self._deliver(lane, lane.waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _deliver(self, lane: _Lane, batch: Batch) -> None:
        outcome: Outcome
        try:
            outcome = await self._send(batch.messages)
        except AerobeeError as error:
            outcome = error
        except asyncio.CancelledError:
            batch.finish(AerobeeError("the send was cancelled; its outcome is unknown"))
            raise
        except Exception as error:  # a batch without an outcome would be lost silently
            outcome = AerobeeError(f"{len(batch.messages)} message(s) were not sent: {error!r}")
            outcome.__cause__ = error
        finally:
            lane.in_flight -= 1
        batch.finish(outcome)
        if isinstance(outcome, AerobeeError):
            await asyncio.sleep(0)  # those awaiting a receipt see the error first
            if len(batch.watched) < len(batch.messages):
                self._failed.append(batch)
        self._release(batch)
        self._launch(lane)

    async def _send(self, batch: list[Outgoing]) -> Outcome:
        if len(batch) > 1:
            return await self._sender.send_batch(self._topic, batch, self._timeout)
        return await self._sender.store(batch[0], self._timeout)

    def _release(self, batch: Batch) -> None:
        self._buffered -= batch.size + MESSAGE_OVERHEAD * len(batch.messages)
        while self._space_waiters and not self.is_full:
            waiter = self._space_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)  # it checks again: others may have taken the space


def _is_alone(batch: Batch) -> bool:
    return bool(batch.messages) and not batch.messages[0].batchable
