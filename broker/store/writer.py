"""Puts: append messages to the log under put_message_lock and pass them to reput or the flush."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from aerobee.broker.store.base import StoreBase
from aerobee.broker.store.dispatch.reput import Reput
from aerobee.broker.store.durability.flush_log import LogFlush
from aerobee.broker.store.log.commitlog import CommitLog, LogFull
from aerobee.broker.store.log.facts import Fact, Facts, end_of_all, spread_of
from aerobee.broker.store.log.limits import MessageLimits
from aerobee.broker.store.log.rows import EncodedRows, Row
from aerobee.broker.store.refusals import Cause
from aerobee.broker.store.results import BatchPut, PutResult, PutStatus, Refusal, RefusedPut
from aerobee.protocol.files.record import Message

log = structlog.get_logger("aerobee.store")

SLOW_LOCK_S: Final = 0.5


class Writer:
    def __init__(
        self, base: StoreBase, commit_log: CommitLog, reput: Reput, flush: LogFlush
    ) -> None:
        self._settings = base.settings
        self._clock = base.clock
        self._monotonic = base.clock.monotonic
        self._stats = base.stats
        self._refusals = base.refusals
        self._log = commit_log
        self._reput = reput
        self._facts = reput.facts
        self._flush = flush
        self._sync_flush = base.settings.sync_flush
        self._busy_after_s = base.settings.os_page_cache_busy_time_out_mills / 1000
        self._put_message_lock = threading.Lock()
        self.on_append: Callable[[int], None] | None = None  # called with the log's end, on masters

    def put(self, messages: Sequence[Message]) -> list[PutResult]:
        """Append independent messages: one lock and one clock read for all."""
        return self._put(messages, self._refusals.current, self._log.limits)

    def put_accepted(self, messages: Sequence[Message]) -> list[PutResult]:
        """The same for messages that were acknowledged before: they must not be lost if
        `maxMessageSize` is lower now."""
        return self._put(messages, self._refusals.current, self._log.accepted_limits)

    def put_again(self, messages: Sequence[Message]) -> list[PutResult]:
        """The same for pending messages of a file that is to be removed: also while sends are
        refused because the disk is full, as it frees space."""
        refusal = self._refusals.besides(Cause.DISK_FULL)
        return self._put(messages, refusal, self._log.accepted_limits)

    def _put(
        self, messages: Sequence[Message], refusal: Refusal | None, limits: MessageLimits
    ) -> list[PutResult]:
        if refusal is not None:
            self._stats.put_failures += len(messages)
            return [RefusedPut(refusal.status, refusal.reason) for _ in messages]
        lock = self._put_message_lock
        if not lock.acquire(False) and not lock.acquire(timeout=self._busy_after_s):
            return [self._busy() for _ in messages]
        started = self._clock.monotonic()
        facts: list[Fact] = []
        try:
            results = self._log.append(messages, self._clock.now_ms(), facts, limits)
            self._facts.offer(facts)
        finally:
            lock.release()
        self._note_put(started, facts, len(messages))
        return results

    def put_rows(self, rows: list[Row] | EncodedRows) -> Facts:
        """Append plain messages on the fast path: a fact for each that was taken. The rest is for
        `put`, which also gives the reason."""
        lock = self._put_message_lock
        if self._refusals.current is not None or not lock.acquire(False):
            return []
        started = self._monotonic()
        facts: Facts = []
        try:
            facts = self._log.append_rows(rows, self._clock.now_ms())
            self._facts.offer(facts)
        except LogFull:
            return []
        finally:
            lock.release()
        self._note_put(started, facts, len(facts))
        return facts

    def put_batch(self, messages: Sequence[Message], *, accepted: bool = False) -> PutResult:
        """Append the messages of one batch: all adjacent in one file, or none. `accepted`: as for
        `put_accepted`."""
        refusal = self._refusals.current
        if refusal is not None:
            self._stats.put_failures += len(messages)
            return RefusedPut(refusal.status, refusal.reason)
        if not messages:
            return RefusedPut(PutStatus.MESSAGE_ILLEGAL, "the batch holds no message")
        lock = self._put_message_lock
        if not lock.acquire(False) and not lock.acquire(timeout=self._busy_after_s):
            return self._busy()
        started = self._clock.monotonic()
        facts: list[Fact] = []
        try:
            limits = self._log.accepted_limits if accepted else self._log.limits
            result = self._log.append_batch(messages, self._clock.now_ms(), facts, limits)
            self._facts.offer(facts)
        finally:
            lock.release()
        self._note_put(started, facts, len(messages))
        return result

    def put_plain_batch(self, rows: EncodedRows, topic: str) -> BatchPut | None:
        """The same for plain messages to one queue, on the fast path. None: use `put_batch`, which
        gives the reason."""
        facts = self.put_whole(rows, topic)
        if not facts:
            return None
        _, queue_offset, begin, _, time_ms, _, _ = facts[0]
        offsets = [fact[2] for fact in facts] if isinstance(facts, list) else facts.offsets()
        return BatchPut(offsets, end_of_all(facts) - begin, queue_offset, time_ms)

    def put_whole(self, rows: EncodedRows, topic: str) -> Facts:
        """Append plain messages to one topic, all adjacent in one file; without facts: none was
        appended."""
        lock = self._put_message_lock
        if self._refusals.current is not None or not lock.acquire(False):
            return []
        started = self._clock.monotonic()
        try:
            facts = self._log.append_whole(rows, topic, self._clock.now_ms())
            self._facts.offer(facts)
        except LogFull:
            return []
        finally:
            lock.release()
        if facts:
            self._note_put(started, facts, len(facts))
        return facts

    def append_copy(self, offset: int, data: memoryview) -> None:
        """A slave: append whole records of one file as its master wrote them. LogFull when the
        disk refuses."""
        with self._put_message_lock:
            self._log.append_copy(offset, data)
        self._reput.copied(offset, len(data))
        self._stats.put_bytes += len(data)

    def _busy(self) -> PutResult:
        return RefusedPut(
            PutStatus.OS_PAGECACHE_BUSY,
            f"another put has held the log for over "
            f"{self._settings.os_page_cache_busy_time_out_mills} ms "
            f"(osPageCacheBusyTimeOutMills): the disk is too slow; send again later",
        )

    def _note_put(self, started: float, facts: Facts, asked: int) -> None:
        took = self._monotonic() - started
        stats = self._stats
        stats.put_times.add(took)
        stats.puts += len(facts)
        stats.put_failures += asked - len(facts)
        if facts:
            begin, end, are_listened = (
                spread_of(facts) if isinstance(facts, list) else facts.spread()
            )
            stats.put_bytes += end - begin
            if self._sync_flush:  # consumers see only what is flushed
                self._flush.ask(end)
            else:
                self._reput.nudge(are_listened)
            if self.on_append is not None:
                self.on_append(end)
        if took * 1000 > stats.put_lock_ms_max:
            stats.put_lock_ms_max = took * 1000
        if took > SLOW_LOCK_S:
            log.warning(
                "put_message_lock was held long",
                ms=round(took * 1000),
                messages=asked,
                physical_offset=facts[0][2] if facts else None,
            )
