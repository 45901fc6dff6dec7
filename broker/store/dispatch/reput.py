"""reput: hands appended records to the dispatcher, at once if a consumer waits, else in batches.

It works from the facts that append noted; when it is behind it scans the log instead. It never goes
past `limit()`: what is flushed with SYNC_FLUSH, what is committed with the buffer pool.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

import structlog

from aerobee.broker.base.wake import Wake
from aerobee.broker.store.base import StoreBase
from aerobee.broker.store.dispatch.dispatcher import RecordDispatcher
from aerobee.broker.store.dispatch.facts import FactQueue
from aerobee.broker.store.dispatch.log_walk import LogWalk
from aerobee.broker.store.errors import StoreError, remedy_for
from aerobee.broker.store.index.index_service import BATCH, IndexService
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.log.facts import Fact, are_listened, begin_of_all
from aerobee.broker.store.refusals import Cause
from aerobee.protocol.files.record_layout import CorruptRecord

log = structlog.get_logger("aerobee.store")

STEP_FACTS: Final = 2048  # dispatched before yielding to the event loop
FEW_BYTES: Final = 64 << 10  # of replicated log: a larger piece is usually followed by more
MANY_BYTES: Final = 2 << 20
REST_BYTES: Final = 512 << 10  # of replicated log: less is left for the next dispatch
TRIES: Final = 30
RETRY_S: Final = 1.0
LINGER_S: Final = 0.02  # how long records and keys without listeners may wait to be batched


class Reput:
    def __init__(
        self,
        base: StoreBase,
        commit_log: CommitLog,
        index: IndexService | None,
        dispatcher: RecordDispatcher,
        limit: Callable[[], int],
    ) -> None:
        self._log = commit_log
        self._index = index
        self._limit = limit
        self._clock = base.clock
        self._refusals = base.refusals
        self._reports = base.reports
        self.dispatcher = dispatcher
        self.facts = FactQueue()
        self._first_files = commit_log.queues.first_files
        self._walk = LogWalk(commit_log, dispatcher)
        self.failures = 0
        self.wake = Wake()
        self.wake_late = Wake()

    # -- when to dispatch

    def nudge(self, are_listened: bool) -> None:
        """Records were appended and may be dispatched: at once if a queue has listeners, else when
        there are many."""
        if are_listened or self.facts.behind or len(self.facts.waiting) >= STEP_FACTS:
            self.wake.set()
        elif not self.wake_late.is_set and self.facts.waiting:
            self.wake_late.set()

    def flushed(self) -> None:
        """More may be dispatched, because it is on disk. Listeners are checked now, not at the
        append: a consumer that subscribed in between has read only up to what was dispatched."""
        count, new = self.facts.newly_below(self._limit())
        if self.facts.behind or count >= STEP_FACTS or are_listened(new):
            self.wake.set()
        elif count and not self.wake_late.is_set:
            self.wake_late.set()

    def catch_up(self) -> None:
        """Dispatch the pending batch now, because a reader asks for it."""
        if self.facts.waiting and not self.facts.behind and not self.failures:
            try:
                while self.step():
                    pass
            except (OSError, StoreError, CorruptRecord):
                self.wake.set()  # the coroutine meets the error again, and counts it

    def drain(self, *, kept: bool = True) -> bool:
        """Dispatch everything up to the limit and write its keys, and the entries that queues have
        `kept`; False if that failed."""
        try:
            while self.step():
                pass
            if self._index is not None:
                self._index.write_pending()
            for queue in self._log.queues if kept else ():
                queue.write_kept()
        except Exception as error:
            event = "not all messages were dispatched"
            self._reports.failed(event, error, then="the next start does it, from the log")
            return False
        return True

    def start_at(self, physical_offset: int) -> None:
        """Start, or start over, by scanning the log from here."""
        self.dispatcher.dispatched_offset = physical_offset
        self.facts.fall_behind()

    def copied(self, offset: int, size: int) -> None:
        """On a slave: log of the master was appended, for which there are no facts. Under load
        dispatch waits for larger pieces."""
        self._walk.written_from = min(self._walk.written_from, offset)
        self.facts.behind = True
        waiting = offset + size - self.dispatcher.dispatched_offset
        if waiting >= MANY_BYTES or (self._log.queues.listened and size < FEW_BYTES):
            self.wake.set()
        else:
            self.wake_late.set()

    def forget(self, topic: str, is_known: bool) -> None:
        """Skip queue entries for pending records of a deleted topic; `is_known`: it has queues."""
        self.facts.forget(topic, self._log.max_offset)
        if is_known or self.facts.behind:  # else it has no records
            self._walk.skip(topic)

    # -- one step

    def step(self, before: int | None = None) -> bool:
        """Dispatch some records, below `before` if given; True when more can be dispatched at once.
        OSError, StoreError or CorruptRecord when one fails: the next step begins with it."""
        limit = self._limit() if before is None else min(self._limit(), before)
        more = self._walk_on(limit) if self.facts.behind else self._dispatch_facts(limit)
        if self._index is not None and len(self._index.keys) >= BATCH:
            self._index.write_pending()
        if self.failures:
            self._note_success()
        return more

    def _dispatch_facts(self, limit: int) -> bool:
        facts, dispatcher = self.facts, self.dispatcher
        batch = facts.first(limit, STEP_FACTS)
        if not batch:
            return False
        # After a failure nothing is read: the disk may be gone, and the map with it. And the log
        # does not tell which topics were deleted.
        in_columns = not self.failures and begin_of_all(batch) >= facts.forgotten_to
        try:
            dispatcher.dispatch_appended(batch, in_columns=in_columns)
        finally:
            facts.drop_up_to(dispatcher.dispatched_offset)
            dispatcher.notify_arrivals()
        if facts.waiting:
            return True
        if limit > dispatcher.dispatched_offset:  # a blank, and no next file yet
            dispatcher.dispatched_offset = limit
        return False

    def _walk_on(self, limit: int) -> bool:
        if self._walk.step(limit):
            return True
        if self.dispatcher.dispatched_offset >= self._log.max_offset:
            self.facts.behind = False
        return False

    # -- the coroutines

    async def run(self) -> None:
        """Dispatch whenever something was appended, until cancelled."""
        while True:
            await self.wake.wait()
            try:
                await self._dispatch_all()
                if self._index is not None and self._index.keys:
                    self.wake_late.set()
            except (OSError, StoreError, CorruptRecord) as error:
                self._note_failure(error)
                await self._clock.sleep(RETRY_S)
                self.wake.set()

    async def _dispatch_all(self) -> None:
        """Dispatch, yielding to the event loop between steps. Waits, in order, for records whose
        queue's first file is still being created."""
        while True:
            unready = self._first_unready()
            before = self._limit()
            if self.step(None if unready is None else unready[2]):
                if self._rest_can_wait(before):
                    if self.dispatcher.dispatched_offset < self._limit():
                        self.wake_late.set()
                    return
                await self._clock.sleep(0)
            elif unready is None:
                return
            else:
                await self._first_files.made(unready[0].files.folder)

    def _rest_can_wait(self, before: int) -> bool:
        """On a slave: the rest came while the last step ran and no queue has listeners. More is
        likely to follow, and few records would take the slower path, one by one."""
        rest = self._limit() - self.dispatcher.dispatched_offset
        return (
            self.facts.behind
            and self.dispatcher.dispatched_offset >= before
            and self.dispatcher.dispatched_offset >= self._walk.written_from
            and rest < REST_BYTES
            and not self._log.queues.listened
        )

    def _first_unready(self) -> Fact | None:
        """The first record of the next step whose queue's file is still being created."""
        files = self._first_files
        if files.are_made:
            return None
        step = islice(self.facts.waiting, STEP_FACTS)
        return next((fact for fact in step if files.is_in_making(fact[0].files.folder)), None)

    async def run_late(self) -> None:
        """Dispatch incomplete batches of records and keys once no more came within LINGER_S."""
        index = self._index
        while True:
            await self.wake_late.wait()
            dispatched_before = self.dispatcher.dispatched_offset
            await self._clock.sleep(LINGER_S)
            keys_wait = index is not None and index.keys
            if self.dispatcher.dispatched_offset != dispatched_before and not keys_wait:
                if self.facts.waiting or self.facts.behind:
                    self.wake_late.set()  # what is pending now arrived later
                continue
            try:
                if index is not None:
                    index.write_pending()
                # After failures, a step finds out whether the disk works again.
                if self.facts.waiting or self.facts.behind or self.failures:
                    self.wake.set()
            except OSError as error:
                self._note_failure(error)
                await self._clock.sleep(RETRY_S)
                self.wake_late.set()

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        self._reports.disk_error(
            "dispatch failed",
            error,
            call="write",
            then=f"retried every second; after {TRIES} tries puts are refused",
        )
        if self.failures == TRIES:
            remedy = remedy_for(error, "free space or repair the disk")
            self._refusals.set(
                Cause.DISPATCH_FAILED,
                f"queues and index could not be written for the record at "
                f"{self.dispatcher.dispatched_offset}: {error}; tried {TRIES} times: {remedy}; "
                f"sends resume automatically when it can be written again",
            )

    def _note_success(self) -> None:
        log.info("dispatch resumed", after_failures=self.failures)
        self.failures = 0
        self._refusals.clear(Cause.DISPATCH_FAILED)
