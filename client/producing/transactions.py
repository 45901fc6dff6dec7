"""Transactions: a half message, the local work, commit or rollback, and the broker's checks."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from aerobee.client.errors import AerobeeError, Misuse
from aerobee.client.message import Body, Message, Outgoing, Receipt
from aerobee.client.producing.outgoing import Stored, receipt
from aerobee.client.producing.sender import Sender
from aerobee.client.serializers import Serializer
from aerobee.client.transport.connection import Connection
from aerobee.client.transport.presence import Presence
from aerobee.client.transport.remoting import Remoting
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.ids import parse_offset_message_id
from aerobee.protocol.files.record import StoredMessage, decode_record
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command

log = logging.getLogger("aerobee.transactions")


class Verdict(IntEnum):
    """The outcome of a half message."""

    UNKNOWN = 0  # the broker asks again later
    COMMIT = 8
    ROLLBACK = 12


Check = Callable[[Message], "Verdict | Awaitable[Verdict]"]


@dataclass(slots=True)
class Half:
    """A half message: stored, and invisible to consumers until it is committed."""

    receipt: Receipt
    verdict: Verdict | None = None

    def commit(self) -> None:
        """Commit it on leaving the block, also by an exception."""
        self.verdict = Verdict.COMMIT

    def rollback(self) -> None:
        """Roll it back on leaving the block."""
        self.verdict = Verdict.ROLLBACK


class TransactionProducer:
    """Sends half messages of one topic in one producer group and answers the broker's checks."""

    def __init__(
        self,
        sender: Sender,
        remoting: Remoting,
        presence: Presence,
        checks: dict[str, TransactionProducer],
        *,
        topic: str,
        group: str,
        check: Check,
        timeout: float,
    ) -> None:
        self.topic = topic
        self.group = group
        self._sender = sender
        self._remoting = remoting
        self._presence = presence
        self._checks = checks
        self._check = check
        self._timeout = timeout
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        if self.group in self._checks:
            raise Misuse(f"this client already has transactions of group {self.group!r}")
        await self._sender.prepare(self.topic)
        self._checks[self.group] = self
        try:
            await self._presence.join_producer(self.group)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._tasks:
                await asyncio.wait(list(self._tasks))
        finally:
            await self._leave()

    async def _leave(self) -> None:
        self._checks.pop(self.group, None)
        await self._presence.leave_producer(self.group)

    @asynccontextmanager
    async def begin(
        self,
        body: Body,
        *,
        tag: str | None = None,
        key: str | Iterable[str] | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Half]:
        """Store a half message; leaving the block commits it.

        After an exception `check` is called at once, for only it knows whether the local work was
        done. A cancelled task leaves the half open: the broker checks it later. `half.rollback`
        and `half.commit` decide outright; the verdict UNKNOWN leaves it to the broker's check.
        """
        message = self._sender.make(self.topic, body, tag, key, order_key, properties)
        stored = await self._sender.send_half(message, self.group, self._timeout)
        half = Half(receipt(message, stored))
        try:
            yield half
        except Exception:
            if half.verdict is None:
                half.verdict = await self._checked(
                    _as_stored(message, half.receipt, self._sender.serializer)
                )
            await self._end(half, stored)
            raise
        except BaseException:  # cancelled, or the program ends: the outcome is not known here
            half.verdict = half.verdict or Verdict.UNKNOWN
            await self._end(half, stored)
            raise
        if half.verdict is None:
            half.verdict = Verdict.COMMIT
        await self._end(half, stored)

    async def send(
        self,
        body: Body,
        execute: Callable[[Half], Verdict | Awaitable[Verdict]],
        *,
        tag: str | None = None,
        key: str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Receipt:
        """The listener form: `execute` does the local work and returns the verdict."""
        async with self.begin(body, tag=tag, key=key, properties=properties) as half:
            half.verdict = await _decided(execute(half))
        return half.receipt

    async def _checked(self, message: Message) -> Verdict:
        """The verdict of the application's check; UNKNOWN when it fails."""
        try:
            return await _decided(self._check(message))
        except Exception:
            log.exception("the check of %s failed; the broker asks again", message.message_id)
            return Verdict.UNKNOWN

    async def _end(self, half: Half, stored: Stored) -> None:
        verdict = half.verdict
        if not verdict:
            return
        _, physical_offset = parse_offset_message_id(half.receipt.offset_message_id)
        ext = self._end_ext(
            verdict,
            half_offset=half.receipt.queue_offset,
            physical_offset=physical_offset,
            message_id=half.receipt.message_id,
            transaction_id=stored.answer.ext.get("transactionId", half.receipt.message_id),
            checked=False,
        )
        try:
            await self._remoting.ask(
                stored.connection.address,
                RequestCode.END_TRANSACTION,
                ext,
                what=f"the {verdict.name.lower()} of {half.receipt.message_id}",
                timeout=self._timeout,
            )
        except AerobeeError as error:
            log.warning("%s; the broker will check the transaction", error)

    def _end_ext(
        self,
        verdict: Verdict,
        *,
        half_offset: int,
        physical_offset: int,
        message_id: str,
        transaction_id: str,
        checked: bool,
    ) -> dict[str, str]:
        return {
            "topic": self.topic,
            "producerGroup": self.group,
            "tranStateTableOffset": str(half_offset),
            "commitLogOffset": str(physical_offset),
            "commitOrRollback": str(int(verdict)),
            "fromTransactionCheck": "true" if checked else "false",
            "msgId": message_id,
            "transactionId": transaction_id,
        }

    def _on_check(self, connection: Connection, command: Command, stored: StoredMessage) -> None:
        """The broker asks for the outcome of a half message."""
        message = Message(stored, command.ext.get("bname", ""), serializer=self._sender.serializer)
        task = asyncio.create_task(self._answer_check(connection, command, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_check(
        self, connection: Connection, command: Command, message: Message
    ) -> None:
        verdict = await self._checked(message)
        if verdict is Verdict.UNKNOWN:
            return
        ext = self._end_ext(
            verdict,
            half_offset=int(command.ext["tranStateTableOffset"]),
            physical_offset=int(command.ext["commitLogOffset"]),
            message_id=command.ext.get("msgId", message.message_id),
            transaction_id=command.ext.get("transactionId", message.message_id),
            checked=True,
        )
        connection.oneway(Command(RequestCode.END_TRANSACTION, ext))


def _as_stored(message: Outgoing, receipt: Receipt, serializer: Serializer | None) -> Message:
    """A half message as the broker's check would show it."""
    queue = receipt.queue
    store_host, physical_offset = parse_offset_message_id(receipt.offset_message_id)
    stored = StoredMessage(
        queue.topic,
        queue.queue_id,
        message.body,
        message.properties,
        sys_flag=message.sys_flag,
        store_host=store_host,
        queue_offset=receipt.queue_offset,
        physical_offset=physical_offset,
    )
    return Message(stored, queue.broker_name, serializer=serializer)


async def _decided(verdict: Verdict | Awaitable[Verdict]) -> Verdict:
    """A callback's verdict; None means UNKNOWN."""
    found = await verdict if inspect.isawaitable(verdict) else verdict
    return Verdict.UNKNOWN if found is None else found


def dispatch_check(
    checks: Mapping[str, TransactionProducer], connection: Connection, command: Command
) -> None:
    """Route CHECK_TRANSACTION_STATE to the producer of the message's group."""
    stored = decode_record(command.body)
    group = props.get(stored.properties, props.PGROUP) or ""
    producer = checks.get(group)
    if producer is None:
        log.warning(
            "the broker checks a transaction of group %r, of which this client has no producer",
            group,
        )
        return
    producer._on_check(connection, command, stored)
