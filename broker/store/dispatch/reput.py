"""reput: hands appended records to the dispatcher, soon when somebody listens, else many at once.

It works from the facts that append noted; when it is behind it walks the log instead. It never goes
past `limit()`: what is flushed in SYNC_FLUSH, what is committed with the pool.
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

STEP_FACTS: Final = 2048  # dispatched in one go before the loop gets its turn
FEW_BYTES: Final = 64 << 10  # of a copy: more, and still more follows as a rule
MANY_BYTES: Final = 2 << 20
REST_BYTES: Final = 512 << 10  # of a copy: less is dispatched with what follows it
TRIES: Final = 30
RETRY_S: Final = 1.0
LINGER_S: Final = 0.02  # how long records and keys that nobody waits for may wait for others


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
        """Records were appended and may be dispatched: at once when somebody listens, else when
        they are many."""
        self._wake_for(len(self.facts.waiting), are_listened)

    def flushed(self) -> None:
        """More may be dispatched, because it is on disk: at once when somebody listens, else when
        it is many. Check listeners now: one that came after the put has found nothing."""
        count, new = self.facts.newly_below(self._limit())
        self._wake_for(count, are_listened(new))

    def _wake_for(self, count: int, new_are_listened: bool) -> None:
        """So many may be dispatched."""
        if self.facts.behind or count >= STEP_FACTS or new_are_listened:
            self.wake.set()
        elif count and not self.wake_late.is_set:
            self.wake_late.set()

    def catch_up(self) -> None:
        """Dispatch what waits for others, because somebody asks for it now."""
        if self.facts.waiting and not self.facts.behind and not self.failures:
            try:
                while self.step():
                    pass
            except (OSError, StoreError, CorruptRecord):
                self.wake.set()  # the coroutine meets it again, and counts

    def drain(self) -> bool:
        """Dispatch all that may be, and write its keys; whether that worked."""
        try:
            while self.step():
                pass
            if self._index is not None:
                self._index.write_pending()
        except Exception as error:
            event = "not all messages were dispatched"
            self._reports.failed(event, error, then="the next start does it, from the log")
            return False
        return True

    def start_at(self, physical_offset: int) -> None:
        """Begin, or begin again, by walking the log from here."""
        self.dispatcher.dispatched_offset = physical_offset
        self.facts.fall_behind()

    def copied(self, offset: int, size: int) -> None:
        """A slave: records were appended here as its master wrote them; nobody knows them yet. Of
        many that come, more are dispatched at once."""
        self._walk.written_from = min(self._walk.written_from, offset)
        self.facts.behind = True
        waiting = offset + size - self.dispatcher.dispatched_offset
        if waiting >= MANY_BYTES or (self._log.queues.listened and size < FEW_BYTES):
            self.wake.set()
        else:
            self.wake_late.set()

    def forget(self, topic: str) -> None:
        """Give no queue entries to waiting records of a topic that is deleted."""
        self.facts.forget(topic, self._log.max_offset)
        if self.facts.behind:
            self._walk.skip(topic)

    # -- one step

    def step(self, before: int | None = None) -> bool:
        """Dispatch some records, below `before` if given; True when more can be dispatched at once.
        OSError, StoreError or CorruptRecord when one could not be: it stays the next to try."""
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
        # After a failure nothing is read: the disk may be gone, and the map with it. Nor does the
        # log know of topics that were deleted.
        in_columns = not self.failures and begin_of_all(batch) >= facts.forgotten_to
        try:
            dispatcher.dispatch_appended(batch, in_columns=in_columns)
        finally:
            facts.drop_up_to(dispatcher.dispatched_offset)
            dispatcher.tell_arrivals()
        if facts.waiting:
            return True
        if limit > dispatcher.dispatched_offset:  # by a blank, when the next file was not made
            dispatcher.dispatched_offset = limit
        return False

    def _walk_on(self, limit: int) -> bool:
        if self._walk.step(limit):
            return True
        if self.dispatcher.dispatched_offset >= self._log.max_offset:
            self.facts.behind = False
            self._walk.end()
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
        """Dispatch with pauses. A record whose queue's first file is in the making is waited for,
        and so is what comes after it; the loop goes on meanwhile."""
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
        """A slave: what is left came while the last step ran, nobody listens, and more follows. Few
        records would go one by one."""
        rest = self._limit() - self.dispatcher.dispatched_offset
        return (
            self.facts.behind
            and self.dispatcher.dispatched_offset >= before
            and self.dispatcher.dispatched_offset >= self._walk.written_from
            and rest < REST_BYTES
            and not self._log.queues.listened
        )

    def _first_unready(self) -> Fact | None:
        """The first record of the next step whose queue's file is in the making."""
        files = self._first_files
        if files.are_made:
            return None
        step = islice(self.facts.waiting, STEP_FACTS)
        return next((fact for fact in step if files.is_in_making(fact[0].files.folder)), None)

    async def run_late(self) -> None:
        """Dispatch records, and write keys, that stayed alone: no more came in LINGER_S."""
        index = self._index
        while True:
            await self.wake_late.wait()
            dispatched_before = self.dispatcher.dispatched_offset
            await self._clock.sleep(LINGER_S)
            keys_wait = index is not None and index.keys
            if self.dispatcher.dispatched_offset != dispatched_before and not keys_wait:
                if self.facts.waiting or self.facts.behind:
                    self.wake_late.set()  # what waits now came later, and has not waited so long
                continue
            try:
                if index is not None:
                    index.write_pending()
                # A step finds out if all is well again.
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
            then=f"tried again every second; after {TRIES} tries puts are refused",
        )
        if self.failures == TRIES:
            remedy = remedy_for(error, "free space or mend the disk")
            self._refusals.set(
                Cause.DISPATCH_FAILED,
                f"queues and index could not be written for the record at "
                f"{self.dispatcher.dispatched_offset}: {error}; tried {TRIES} times: {remedy}; "
                f"sends resume by themselves when it can be written again",
            )

    def _note_success(self) -> None:
        log.info("dispatch goes on", after_failures=self.failures)
        self.failures = 0
        self._refusals.clear(Cause.DISPATCH_FAILED)
