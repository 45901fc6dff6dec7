"""A master's progress with consumers, delays, timers and batches, as its slave takes it over.

All of it refers to the master's log. A slave whose log is shorter may be promoted at any moment: it
would skip messages that it never got. So a snapshot of the tables is held back until our log has
all that the master's had then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.ha.master_client import MasterClient
from aerobee.broker.net.request_link import LinkError
from aerobee.broker.services.config_files.config_file import as_int
from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.ledger_book import LedgerBook
from aerobee.broker.services.ledger_log import end_of
from aerobee.broker.services.offsets import Offsets
from aerobee.broker.services.timers.checkpoint import Checkpoints
from aerobee.broker.store.message_store import MessageStore
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.sink_codes import SINK_LIST

PATIENCE_S: Final = 1.0  # of one round; tables still waiting are checked in the next one
CHECK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot of the master's progress."""

    offsets: dict[Any, Any]
    delays: dict[Any, Any]
    timers: tuple[bytes, int] | None  # the checkpoint, and the log offset that it covers
    ledger: tuple[list[dict[str, Any]], int] | None
    log_start: int | None  # pending messages before it are stored again; None: not by this master
    log_end: int  # requested last: the tables above do not reach beyond it


class ProgressSync:
    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        offsets: Offsets,
        schedule: Schedule,
        timers: Checkpoints | None,
        ledger: LedgerBook,
    ) -> None:
        self._store = store
        self._clock = clock
        self._offsets = offsets
        self._schedule = schedule
        self._timers = timers
        self._ledger = ledger
        self._waiting: Progress | None = None  # for our log

    def forget(self) -> None:
        """The master is no longer followed: our log may never get there."""
        self._waiting = None

    async def step(
        self, client: MasterClient, *, is_ours: bool, is_followed: Callable[[], bool]
    ) -> None:
        """Ask, unless an answer is pending; apply it if our log gets there in time."""
        if self._waiting is None:
            self._waiting = await self._ask(client, is_ours)
        found = self._waiting
        until = self._clock.monotonic() + PATIENCE_S
        while self._store.max_physical_offset < found.log_end:
            if not is_followed() or self._clock.monotonic() >= until:
                return
            await self._clock.sleep(CHECK_S)
        if is_followed():
            self._waiting = None
            await self._take_over(found)

    async def _ask(self, client: MasterClient, is_ours: bool) -> Progress:
        offsets = await client.ask_json(RequestCode.GET_ALL_CONSUMER_OFFSET)
        delays = await client.ask_json(RequestCode.GET_ALL_DELAY_OFFSET)
        timers = await self._ask_timers(client)
        ledger = await self._ask_ledger(client) if is_ours else None
        start, end = await client.log_bounds()
        return Progress(offsets, delays, timers, ledger, start if is_ours else None, end)

    async def _ask_timers(self, client: MasterClient) -> tuple[bytes, int] | None:
        """The timers' checkpoint; None from a master that has none (4.9)."""
        if self._timers is None:
            return None
        try:
            answer = await client.ask(RequestCode.GET_TIMER_CHECK_POINT)
        except LinkError:
            return None
        mark = as_int(answer.ext.get("logOffset"), self._store.flushed_offset)
        return (bytes(answer.body), mark) if answer.body else None

    async def _ask_ledger(self, client: MasterClient) -> tuple[list[dict[str, Any]], int]:
        """The ledger's commits; newer ones are in the log."""
        noted_end = end_of(self._store)  # the answer covers what is noted below it
        return (await client.ask_json(SINK_LIST)).get("queries") or [], noted_end

    async def _take_over(self, found: Progress) -> None:
        self._store.clean.kept_by_master = found.log_start
        self._offsets.take_over(found.offsets)
        self._schedule.take_over(found.delays)
        if found.timers is not None and self._timers is not None:
            await asyncio.to_thread(self._timers.take_over, *found.timers)
        if found.ledger is not None and self._ledger.take_over(*found.ledger):
            await self._ledger.save()
