"""The check loop: asks producers about open transactions."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.services.clients.clients import Clients
from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.transactions.service import Transactions
from aerobee.broker.settings import Settings
from aerobee.broker.store.results import PutResult
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.ids import offset_message_id
from aerobee.protocol.files.record import StoredMessage, encode_record
from aerobee.protocol.names import TRANSACTION_HALF_TOPIC
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.command import Command

log = structlog.get_logger("aerobee.transactions")

BEHIND_MAX: Final = 10_000  # half messages that ended after an open one, then it is brought up
_PER_TURN: Final = 64  # half messages checked before the event loop runs again


class TransactionChecks:
    """Goes through the open transactions, every `transactionCheckInterval`."""

    def __init__(
        self, transactions: Transactions, clients: Clients, settings: Settings, clock: Clock
    ) -> None:
        self._transactions = transactions
        self._clients = clients
        self._settings = settings
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._unreachable: set[str] = set()  # groups without a producer that were logged

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="transaction-checks")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._transactions.commit_progress()

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(self._settings.transaction_check_interval / 1000)
            try:
                for _ in self._round(self._clock.now_ms()):
                    await asyncio.sleep(0)
            except Exception as error:  # the next round must come, whatever is wrong with this
                self._transactions.report_failed_round(error)

    def step(self, now_ms: int) -> None:
        """One whole round."""
        for _ in self._round(now_ms):
            pass

    def _round(self, now_ms: int) -> Iterator[None]:
        transactions = self._transactions
        if not transactions.prepare():
            return
        transactions.write_due_ops()
        transactions.read_halves()
        looked_at = looked_at_bytes = 0
        for root, queue_offset in transactions.open_halves():
            half = transactions.half_at(root, queue_offset)
            if half is not None:
                self._try(root, half, now_ms)
                looked_at_bytes += half.size
            looked_at += 1
            if looked_at >= _PER_TURN or looked_at_bytes >= put_again.BATCH_BYTES_MAX:
                looked_at = looked_at_bytes = 0
                yield
        transactions.commit_progress()

    def _try(self, root: int, half: StoredMessage, now_ms: int) -> None:
        """Check one; a failure must not stop the others, or the progress."""
        try:
            self._look_at(root, half, now_ms)
        except Exception as error:
            self._transactions.report_failed_round(error)

    def _look_at(self, root: int, half: StoredMessage, now_ms: int) -> None:
        settings = self._settings
        age_ms = now_ms - half.born_timestamp
        checks = _number(half, props.TRANSACTION_CHECK_TIMES) or 0
        if checks >= settings.transaction_check_max:
            self._transactions.give_up(root, half)
            return
        immunity_s = _number(half, props.CHECK_IMMUNITY_TIME)
        immunity_ms = settings.transaction_time_out if immunity_s is None else immunity_s * 1000
        if 0 <= age_ms <= immunity_ms:
            self._copy_forward(root, half, checks)
            return
        group = half.property(props.PGROUP) or ""
        producer = self._clients.producer_channel(group)
        if producer is None:
            if group not in self._unreachable:
                self._unreachable.add(group)
                log.warning("no producer is online to check a transaction", producer_group=group)
            self._copy_forward(root, half, checks)
            return
        self._unreachable.discard(group)
        copied = self._transactions.copy(root, half, checks + 1)
        if copied is not None:
            producer.send_oneway(check_request(half, copied, settings.broker_name))

    def _copy_forward(self, root: int, half: StoredMessage, checks: int) -> None:
        """Copy an open half message that is not checked now if many after it have ended: those
        would have to be kept in memory, and read again at a start, because of this one. If more
        are open than have ended, keeping them is cheaper."""
        ended = self._transactions.ended_after(half)
        if ended > max(BEHIND_MAX, self._transactions.open_count):
            self._transactions.copy(root, half, checks)


def check_request(half: StoredMessage, copied: PutResult, broker_name: str) -> Command:
    """CHECK_TRANSACTION_STATE: the message as it will be, and where its newest copy is."""
    topic, queue_id = put_again.real_place(half) or (half.topic, half.queue_id)
    unique_key = half.property(props.UNIQ_KEY) or ""
    text = put_again.own_properties(half)
    body = encode_record(
        put_again.copy_for(half, topic, queue_id, text),
        copied.queue_offset,
        copied.physical_offset,
        copied.store_timestamp,
    )
    ext = {
        "bname": broker_name,
        "commitLogOffset": str(copied.physical_offset),
        "msgId": unique_key,
        "offsetMsgId": offset_message_id(half.store_host, copied.physical_offset),
        "topic": TRANSACTION_HALF_TOPIC,
        "tranStateTableOffset": str(copied.queue_offset),
        "transactionId": unique_key,
    }
    return Command(RequestCode.CHECK_TRANSACTION_STATE, ext, body)


def _number(half: StoredMessage, name: str) -> int | None:
    text = half.property(name)
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 12 else None
