"""Sending: builds the request, picks a queue, retries elsewhere, distinguishes refused from
unknown."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from aerobee.client import message as messages
from aerobee.client.errors import (
    AerobeeError,
    Closed,
    Misuse,
    NoRoute,
    RequestTimeout,
    Unconfirmed,
    refusal,
)
from aerobee.client.message import Body, Outgoing, Receipt
from aerobee.client.producing.in_flight import InFlight
from aerobee.client.producing.outgoing import Delayed, Stored, receipt
from aerobee.client.serializers import Serializer
from aerobee.client.transport.connection import Connection
from aerobee.client.transport.remoting import Remoting, is_outcome_unknown
from aerobee.client.transport.routes import AUTO_CREATE_QUEUES, Route, Routes
from aerobee.protocol.files import ids
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.files.compression import deflate
from aerobee.protocol.files.java_hash import java_hash
from aerobee.protocol.files.record import TRANSACTION_PREPARED
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.names import TEMPLATE_TOPIC
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

BODY_SIZE_MAX: Final = 4 << 20
STORED_CODES: Final = frozenset((0, 10, 11, 12))
RETRY_CODES: Final = frozenset((1, 2, 14, 17, 204, 205, 1500))
ATTEMPTS: Final = 3
SICK_SECONDS: Final = 2.0
PAUSE_MAX: Final = 0.25  # between checks for a new master


class Sender:
    """Sends messages of any topic for one client."""

    def __init__(
        self,
        remoting: Remoting,
        routes: Routes,
        *,
        group: str,
        serializer: Serializer | None = None,
    ) -> None:
        self.group = group
        self.serializer = serializer
        self._remoting = remoting
        self._routes = routes
        self._ids = ids.UniqueIds()
        # Round robin per topic: with one counter, topics sent to in turn would each skip queues.
        # Each starts at random, or the first queues would get most of many clients' messages.
        self._turns: defaultdict[str, Iterator[int]] = defaultdict(_turns)
        self._in_flight = InFlight()
        self._sick: dict[str, float] = {}
        self._queue_counts: dict[str, int] = {}

    # -- building

    def make(
        self,
        topic: str,
        body: Body,
        tag: str | None = None,
        key: str | Iterable[str] | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay: float | None = None,
        deliver_at: datetime | float | None = None,
        durable: bool = True,
        serializer: Serializer | None = None,
    ) -> Outgoing:
        """Check everything that can be checked here, and give the message its id."""
        if type(body) is not bytes:
            body = _as_bytes(body, serializer or self.serializer)
        if len(body) > BODY_SIZE_MAX:
            raise Misuse(f"a body of {len(body)} bytes; at most {BODY_SIZE_MAX} are allowed")
        message_id = self._ids.next()
        text = props.pair(props.UNIQ_KEY, message_id)
        if tag is not None:
            text += props.pair(props.TAGS, messages.checked_text("tag", tag))
        if key is not None:
            text += props.pair(props.KEYS, messages.key_text(key))
        if order_key is not None:
            text += props.pair(props.SHARDING_KEY, messages.checked_text("order key", order_key))
        if properties:
            messages.check_properties(properties)
            text += props.encode(dict(properties))
        if not durable:
            text += props.pair(props.WAIT, "false")
        messages.check_encoded(text)
        sys_flag = 0
        if len(body) >= messages.COMPRESS_OVER:
            body, sys_flag = deflate(body)
        if delay is None and deliver_at is None:
            batchable = not sys_flag and durable
            return Outgoing(topic, body, text, message_id, order_key, sys_flag, batchable, durable)
        if delay is not None and (deliver_at is not None or not 0 <= delay < math.inf):
            raise Misuse("give a delay of 0 or more, or deliver_at, not both")
        return Delayed(
            *(topic, body, text, message_id, order_key, sys_flag, False, durable),
            delay_ms=None if delay is None else round(delay * 1000),
            deliver_ms=None if deliver_at is None else messages.timestamp_ms(deliver_at),
        )

    def command(self, message: Outgoing, queue: MessageQueue, connection: Connection) -> Command:
        """SEND_MESSAGE_V2 of one message."""
        text = message.properties
        if isinstance(message, Delayed):
            text += message.timing(connection)
        ext = self._ext(queue, message.sys_flag, text)
        return Command(RequestCode.SEND_MESSAGE_V2, ext, message.body)

    def _ext(self, queue: MessageQueue, sys_flag: int, properties: str) -> dict[str, str]:
        return {
            "a": self.group,
            "b": queue.topic,
            "c": TEMPLATE_TOPIC,
            "d": str(AUTO_CREATE_QUEUES),
            "e": str(queue.queue_id),
            "f": str(sys_flag),
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "false",
            "n": queue.broker_name,
        }

    # -- sending

    async def send(self, message: Outgoing, timeout: float) -> Receipt:
        """Store one message."""
        return receipt(message, await self.store(message, timeout))

    async def store(self, message: Outgoing, timeout: float) -> Stored:
        return await self.deliver(
            message.topic,
            lambda queue, connection: self.command(message, queue, connection),
            order_key=message.order_key,
            message_id=message.message_id,
            timeout=timeout,
        )

    async def send_batch(self, topic: str, batch: Sequence[Outgoing], timeout: float) -> Stored:
        """Store messages of one topic and one order key together; one answer for all."""
        body = encode_batch([(0, message.body, message.properties) for message in batch])

        def build(queue: MessageQueue, _: Connection) -> Command:
            ext = self._ext(queue, 0, "")
            ext["m"] = "true"
            return Command(RequestCode.SEND_BATCH_MESSAGE, ext, body)

        first = batch[0]
        return await self.deliver(
            topic,
            build,
            order_key=first.order_key,
            message_id=first.message_id,
            timeout=timeout,
        )

    async def send_half(self, message: Outgoing, group: str, timeout: float) -> Stored:
        """Store the half message of a transaction."""
        message.properties += props.encode({props.TRAN_MSG: "true", props.PGROUP: group})
        message.sys_flag |= TRANSACTION_PREPARED

        def build(queue: MessageQueue, connection: Connection) -> Command:
            command = self.command(message, queue, connection)
            command.ext["a"] = group
            return command

        return await self.deliver(
            message.topic,
            build,
            order_key=message.order_key,
            message_id=message.message_id,
            timeout=timeout,
        )

    async def send_oneway(self, message: Outgoing) -> None:
        """Send without an answer: the message may be lost without an error."""
        route = await self._routes.for_sending(message.topic)
        queue = self._choose(route, message.order_key, set())
        connection = await self._remoting.connection(self._routes.address(queue.broker_name))
        await connection.drain(self._remoting.timeout)
        connection.oneway(self.command(message, queue, connection))

    async def deliver(
        self,
        topic: str,
        build: Callable[[MessageQueue, Connection], Command],
        *,
        order_key: str | None,
        message_id: str,
        timeout: float,
    ) -> Stored:
        """Store it once a slot is free; `timeout` counts from then on."""
        turns = self._in_flight
        if not turns.enter():
            await turns.wait(timeout)
        try:
            stored = await self._try_brokers(topic, build, order_key, message_id, timeout)
            turns.succeeded()
            return stored
        finally:
            turns.leave()

    async def _try_brokers(
        self,
        topic: str,
        build: Callable[[MessageQueue, Connection], Command],
        order_key: str | None,
        message_id: str,
        timeout: float,
    ) -> Stored:
        """Try up to three brokers or queues; a failed connect does not count as a try, nor does a
        broker that is not the master. `timeout` limits the connecting, and starts over with the
        first request: time in which the caller was busy must not look like a lost answer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        failed: set[str] = set()
        unknown: AerobeeError | None = None
        last: AerobeeError = RequestTimeout(f"no connection for {topic!r} within {timeout:g} s")
        tries, reached = 0, False
        pause = 0.02
        while (left := deadline - loop.time()) > 0:
            asked = False
            try:
                queue, connection = await self._reach(topic, order_key, failed, left)
                asked = True
                tries += 1
                if not reached:
                    reached, deadline = True, loop.time() + timeout
                answer = await connection.ask(build(queue, connection), deadline - loop.time())
            except TimeoutError:
                break
            except AerobeeError as error:
                last = error
                if isinstance(error, Misuse | Closed):
                    break
                if asked:
                    unknown = error if is_outcome_unknown(error) else unknown
                    self._avoid(queue.broker_name, failed)
                if isinstance(error, NoRoute) and not tries and not self._routes.was_there(topic):
                    raise  # waiting does not help: the topic never had a route
            else:
                if answer.code in STORED_CODES:
                    return Stored(queue, answer, connection)
                last = refusal(answer.code, answer.remark, what=f"a message for {topic!r}")
                if _is_no_master(answer):  # the message was certainly not stored
                    tries -= 1
                if answer.code not in RETRY_CODES and not _is_drained(answer):
                    break
                self._avoid(queue.broker_name, failed)
            if tries >= ATTEMPTS:
                break
            await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))
            pause = min(2 * pause, PAUSE_MAX)
            await self._renew(topic, deadline)
        if unknown is not None:
            text = f"it is unknown whether message {message_id} for {topic!r} was stored: {unknown}"
            raise Unconfirmed(text, message_id=message_id, topic=topic) from unknown
        raise last

    async def _reach(
        self, topic: str, order_key: str | None, failed: set[str], seconds: float
    ) -> tuple[MessageQueue, Connection]:
        """A queue and an open connection to its broker; one that fails is avoided for a while."""
        async with asyncio.timeout(seconds):
            route = await self._routes.for_sending(topic)
            if not route.created:
                self._routes.refresh_soon(topic)  # the first message creates it
            queue = self._choose(route, order_key, failed)
            try:
                address = self._routes.address(queue.broker_name)
                connection = await self._remoting.connection(address)
                await connection.drain(seconds)
            except BaseException:
                self._avoid(queue.broker_name, failed)
                raise
            return queue, connection

    def _avoid(self, broker: str, failed: set[str]) -> None:
        """Avoid this broker for this message, and for others for a while."""
        failed.add(broker)
        self._sick[broker] = asyncio.get_running_loop().time() + SICK_SECONDS

    async def _renew(self, topic: str, deadline: float) -> None:
        """Refresh the route: the topic may have moved, or was just created."""
        left = deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(left, 0.001)):
                await self._routes.refresh(topic)
        except (AerobeeError, TimeoutError):
            return  # the old route is still the best that is known

    async def prepare(self, topic: str) -> None:
        """Learn the topic's route before the first message."""
        await self._routes.for_sending(topic)

    def order_lane(self, topic: str, order_key: str | None) -> int | None:
        """Which queue an order key maps to; None without a key."""
        if order_key is None:
            return None
        route = self._routes.cached(topic)
        if route is not None:
            self._queue_counts[topic] = len(route.write_queues())
        return abs(java_hash(order_key)) % (self._queue_counts.get(topic) or 1)

    def _choose(self, route: Route, order_key: str | None, failed: set[str]) -> MessageQueue:
        queues = route.write_queues()
        if order_key is not None:
            return queues[abs(java_hash(order_key)) % len(queues)]
        turn = next(self._turns[route.topic])
        if failed or self._sick:
            now = asyncio.get_running_loop().time()
            self._sick = {broker: until for broker, until in self._sick.items() if until > now}
            avoided = failed | self._sick.keys()
            healthy = [queue for queue in queues if queue.broker_name not in avoided]
            if healthy:
                return healthy[turn % len(healthy)]
        return queues[turn % len(queues)]


def _turns() -> Iterator[int]:
    return itertools.count(random.randrange(1 << 20))


def _as_bytes(body: Body, serializer: Serializer | None) -> bytes:
    if isinstance(body, bytearray | memoryview | bytes):
        return bytes(body)
    if serializer is None:
        what = "encode the text" if isinstance(body, str) else f"not {type(body).__name__}"
        raise Misuse(f"a body is bytes: {what}, or give a serializer to `connect`")
    try:
        return serializer.dumps(body)
    except (TypeError, ValueError) as error:
        raise Misuse(f"the serializer refuses this body: {error}") from error


def _is_no_master(answer: Command) -> bool:
    """Whether the broker refuses because another one is, or will be, its group's master."""
    remark = answer.remark or ""
    return answer.code == ResponseCode.SERVICE_NOT_AVAILABLE and (
        "is a slave" in remark or "another broker" in remark
    )


def _is_drained(answer: Command) -> bool:
    """Whether the broker accepts no messages at all (brokerPermission), in its wording or Apache's:
    another broker may. A user without the right is refused everywhere."""
    return answer.code == ResponseCode.NO_PERMISSION and "is forbidden" in (answer.remark or "")
