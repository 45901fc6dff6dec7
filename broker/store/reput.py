"""reput: hands appended records to the consume queues, the index and the arrival listeners.

It works from the facts that append noted, in batches; when it is behind (after a start, or when
too many facts wait) it walks the log instead. A repeated record is ignored. It never goes past
`limit()`: what is flushed in SYNC_FLUSH, what is committed with the pool.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from aerobee.broker.clock import Clock
from aerobee.broker.store.commitlog import NOT_IN_QUEUE, CommitLog, Fact
from aerobee.broker.store.consume_queue import ENTRY, ConsumeQueue
from aerobee.broker.store.dispatch_block import dispatch_block
from aerobee.broker.store.errors import StoreError, remedy_for
from aerobee.broker.store.index_service import BATCH, IndexService
from aerobee.broker.store.reports import Reports
from aerobee.broker.store.results import Arrival, ArrivalListener, StoreStats
from aerobee.broker.store.scan import Scanned, read_records
from aerobee.broker.store.scan_block import read_block
from aerobee.broker.store.settings import StoreSettings
from aerobee.broker.store.wake import Wake
from aerobee.protocol import properties as message_properties
from aerobee.protocol.java_hash import tags_code as code_of_tag
from aerobee.protocol.record import CorruptRecord

log = structlog.get_logger("aerobee.store")

STEP_FACTS: Final = 2048  # dispatched in one go before the loop gets its turn
STEP_RECORDS: Final = 512  # ... when they have to be read from the log
WAITING_MAX: Final = 200_000  # facts kept; beyond, the log is walked
TRIES: Final = 30
RETRY_S: Final = 1.0
LINGER_S: Final = 0.02  # how long records and keys that nobody waits for may wait for company
BLOCK_MIN: Final = 256  # so many are dispatched in columns, for half the price
OPENED_MAX: Final = 2  # queues that get a file or blocks in one go: some 0.3 ms each
_NO_MAX: Final = 1 << 62
_pack_entry = ENTRY.pack


class Reput:
    def __init__(
        self,
        settings: StoreSettings,
        commit_log: CommitLog,
        index: IndexService | None,
        limit: Callable[[], int],
        clock: Clock,
        stats: StoreStats,
        reports: Reports,
    ) -> None:
        self._reports = reports
        self._settings = settings
        self._log = commit_log
        self._index = index
        self._limit = limit
        self._clock = clock
        self._stats = stats
        self.dispatched_offset = 0
        self.dispatched_timestamp = 0
        self.behind = False
        self.failures = 0
        self.on_recovery: Callable[[], None] = _do_nothing
        self.on_refusal: Callable[[str], None] = _ignore  # called when it has failed too often
        self.listeners: list[ArrivalListener] = []
        self._facts: list[Fact] = []
        self._forgotten_to = 0  # records below may be of a topic that was deleted while they waited
        self._failed_to = 0  # records below may have keys in the index though they wait
        self._flushed_offset = 0  # up to where listeners to what was flushed have been looked for
        self._walked: dict[tuple[bytes, int], ConsumeQueue] = {}  # met since the walk began
        self._deleted: dict[bytes, int] = {}  # topics, and the log's end when they were deleted
        self.wake = Wake()
        self.wake_late = Wake()

    # -- what append calls

    def offer(self, facts: list[Fact]) -> None:
        """Facts of records just appended, in order."""
        if self.behind:
            return
        if len(self._facts) > WAITING_MAX:
            self._facts.clear()
            self.behind = True
        else:
            self._facts += facts

    def nudge(self, facts: list[Fact]) -> None:
        """These may be dispatched: at once when somebody listens, else when they are many."""
        self._wake_for(len(self._facts), facts)

    def flushed(self) -> None:
        """More may be dispatched, because it is on disk: at once when somebody listens, else when
        it is many. Who listens is asked now: one who came after the put has found nothing."""
        facts, limit = self._facts, self._limit()
        count = self._count_up_to(limit)
        known = bisect_right(facts, self._flushed_offset, 0, count, key=_end_of)
        self._flushed_offset = limit
        self._wake_for(count, facts[known:count])

    def _wake_for(self, count: int, facts: list[Fact]) -> None:
        """So many may be dispatched, these of them are new."""
        if self.behind or count >= STEP_FACTS or any([fact[0].listened for fact in facts]):
            self.wake.set()
        elif count:
            self.wake_late.set()

    def _count_up_to(self, limit: int) -> int:
        """How many of the waiting facts' records end at `limit` or before."""
        facts = self._facts
        if not facts or _end_of(facts[-1]) <= limit:
            return len(facts)
        return bisect_right(facts, limit, key=_end_of)

    def catch_up(self) -> None:
        """Dispatch what waits for company, because somebody asks for it now."""
        if self._facts and not self.behind and not self.failures:
            try:
                while self.step():
                    pass
            except (OSError, StoreError, CorruptRecord):
                self.wake.set()  # the coroutine meets it again, and counts

    def start_at(self, physical_offset: int) -> None:
        """Begin, or begin again, by walking the log from here."""
        self.dispatched_offset = physical_offset
        self._facts.clear()
        self._walked.clear()
        self.behind = True

    def forget(self, topic: str) -> None:
        """Give no queue entries to waiting records of a topic that is deleted."""
        self._walked.clear()
        self._forgotten_to = self._log.max_offset
        if self.behind:
            self._deleted[topic.encode()] = self._forgotten_to
        self._facts = [
            fact if fact[0].topic != topic else (fact[0], -1, *fact[2:]) for fact in self._facts
        ]

    @property
    def lag(self) -> int:
        return self._log.max_offset - self.dispatched_offset

    # -- one step

    def step(self) -> bool:
        """Dispatch some records; True when more can be dispatched at once. OSError, StoreError
        or CorruptRecord when one could not be: it stays the next to try."""
        limit = self._limit()
        more = self._walk(limit) if self.behind else self._dispatch_facts(limit)
        if self._index is not None and len(self._index.keys) >= BATCH:
            self._index.write_pending()
        if self.failures:
            self._note_success()
        return more

    def _dispatch_facts(self, limit: int) -> bool:
        facts = self._facts
        count = min(self._count_up_to(limit), STEP_FACTS)
        if not count:
            return False
        batch = facts[:count] if count < len(facts) else facts
        done = 0
        arrivals: list[Arrival] | None = [] if self.listeners else None
        try:
            # After a failure nothing is read: the disk may be gone, and the map with it.
            in_columns = count >= BLOCK_MIN and not self.failures
            if in_columns:
                batch = self._of_one_file(batch)
            if in_columns and len(batch) >= BLOCK_MIN:
                done = self._dispatch_block(batch)
            if not done:
                done = self._dispatch(batch, arrivals, OPENED_MAX)
        finally:
            # After a failure the batch waits; entries that it wrote are not written again.
            if not done:
                done = self._count_dispatched(batch)
            if done == len(facts):
                self._facts = []
            else:
                del facts[:done]
            self._stats.dispatched += done
            if arrivals:
                self._tell(arrivals)
        if self._facts:
            return True
        if limit > self.dispatched_offset:  # by a blank, when the next file could not be made
            self.dispatched_offset = limit
        return False

    def _of_one_file(self, batch: list[Fact]) -> list[Fact]:
        """The records that are in the first one's file."""
        file = self._log.files.find(batch[0][2])
        if file is None or batch[-1][2] < file.end:
            return batch
        return batch[: bisect_right(batch, file.end, key=_end_of)]

    def _dispatch_block(self, batch: list[Fact]) -> int:
        """Dispatch records of one file in columns; how many. 0: they are not plain ones, or
        somebody listens."""
        first, last = batch[0], batch[-1]
        file = self._log.files.find(first[2])
        if file is None or first[2] not in (self.dispatched_offset, file.start):
            return 0
        if first[2] < self._forgotten_to:  # the log has no word of that
            return 0
        self._failed_to = end = _end_of(last)
        block = read_block(
            file.view,
            file.start,
            first[2] - file.start,
            end - file.start,
            len(batch),
            check_crc=False,
        )
        if len(block) != len(batch) or not dispatch_block(
            self._log.queues, self._index, file.view, file.start, block, OPENED_MAX
        ):
            return 0
        self.dispatched_offset = end
        self.dispatched_timestamp = last[4]
        return len(batch)

    def _count_dispatched(self, batch: list[Fact]) -> int:
        end = self.dispatched_offset
        return sum(1 for fact in batch if _end_of(fact) <= end)

    def _dispatch(
        self, batch: list[Fact], arrivals: list[Arrival] | None, opened_max: int = _NO_MAX
    ) -> int:
        """Queue entries and keys of a batch; how many. After a failure the batch counts as not
        dispatched, though some queues may have their entries."""
        try:
            if not self._put_entries(batch, arrivals, opened_max):
                batch = batch[: self._count_dispatched(batch)]
        except Exception:
            batch = batch[: self._count_dispatched(batch)]
            raise
        finally:
            if batch:
                self.dispatched_timestamp = batch[-1][4]
                if self._index is not None:
                    if batch[0][2] < self._failed_to:
                        self._index.add([fact for fact in batch if fact[2] > self._index.known_to])
                    else:
                        self._index.add(batch)
        return len(batch)

    def _put_entries(
        self, batch: list[Fact], arrivals: list[Arrival] | None, opened_max: int = _NO_MAX
    ) -> bool:
        """Queue entries of a batch, of each queue with one call. False when it stopped before a
        queue that needs a new file or new blocks, because so many have got them. OSError when the
        disk refuses: nobody is told of arrivals, the whole batch is to be tried again."""
        touched: list[ConsumeQueue] = []
        try:
            count = self._collect_entries(batch, arrivals, touched, opened_max)
            for queue in touched:
                queue.write_waiting()
        except BaseException:
            if arrivals is not None:
                arrivals.clear()
            _write_the_rest(touched)
            raise
        if count:
            self.dispatched_offset = _end_of(batch[count - 1])
        return count == len(batch)

    def _collect_entries(
        self,
        batch: list[Fact],
        arrivals: list[Arrival] | None,
        touched: list[ConsumeQueue],
        opened_max: int,
    ) -> int:
        """The loop that every message passes; how many it took."""
        tag_codes = _tag_codes
        opened = 0
        for queue, queue_offset, offset, size, time_ms, text, _sys_flag in batch:
            at = text.rfind("TAGS\x01")  # of two the last counts, as in Java's map
            if at < 0 and queue.plain_tags:
                code = 0
            elif at >= 0 and queue.plain_tags and (at == 0 or text[at - 1] == "\x02"):
                end = text.find("\x02", at)
                tag = text[at + 5 : end] if end >= 0 else text[at + 5 :]
                found = tag_codes.get(tag)
                code = _remember_tag(tag) if found is None else found
            elif opened >= opened_max:
                # before it has a unit of its own in the queue's extension
                return bisect_right(batch, offset, key=_end_of)
            else:
                code = self._unusual_code(queue, offset + size, text, time_ms)
            if queue_offset >= 0:
                waiting = queue.waiting
                ahead = len(waiting)
                is_next = queue_offset == queue.max_offset + ahead
                if is_next and queue.write_position + 20 * ahead < queue.write_end:
                    if not ahead:
                        touched.append(queue)
                    waiting.append(_pack_entry(offset, size, code))
                elif not ahead and offset + size <= queue.max_physical_offset:
                    pass  # it is there: a batch is tried again
                elif opened >= opened_max:
                    return bisect_right(batch, offset, key=_end_of)
                else:
                    opened += 1
                    queue.write_waiting()
                    queue.put(queue_offset, offset, size, code)
                if arrivals is not None and queue.listened:
                    arrivals.append(
                        Arrival(
                            queue.topic,
                            queue.queue_id,
                            queue_offset,
                            code if queue.plain_tags else queue.real_tags_code(code),
                            time_ms,
                            text,
                            offset,
                            size,
                        )
                    )
        return len(batch)

    def _unusual_code(self, queue: ConsumeQueue, end: int, text: str, time_ms: int) -> int:
        """The tags code where it is not simply that of TAGS: a deliver time, a unit's address."""
        code = code_of_tag(message_properties.get(text, message_properties.TAGS))
        if queue.is_schedule:
            level = message_properties.get(text, message_properties.DELAY)
            if level is not None and level.isascii() and level.isdigit() and int(level) > 0:
                code = time_ms + self._settings.delay_ms_of_level(int(level))
        if queue.ext is not None and queue.ext_writable and end > queue.max_physical_offset:
            return queue.ext.put(code, time_ms)
        return code

    def _tell(self, arrivals: list[Arrival]) -> None:
        for listener in self.listeners:
            listener(arrivals)

    # -- catching up from the log

    def _walk(self, limit: int) -> bool:
        """Dispatch the next records of the log; leaves `behind` when its end is reached."""
        file = self._log.files.find(self.dispatched_offset)
        if file is None or self.dispatched_offset >= limit:
            if file is None and self._log.files.files:
                first = self._log.files.min_offset
                if self.dispatched_offset < first:  # files were removed before it came to them
                    self.dispatched_offset = first
                    return True
            if self.dispatched_offset >= self._log.max_offset:
                self.behind = False
                self._walked.clear()
                self._deleted.clear()
            return False
        facts: list[Fact] = []
        position = self.dispatched_offset - file.start
        end = min(file.readable, limit - file.start)
        try:
            for record, piece, base in read_records(file, position, end):
                if record.physical_offset < self._deleted.get(record.topic, 0):
                    continue
                facts.append(self.fact_of(record, piece, base))
                if len(facts) >= STEP_RECORDS:
                    break
        except CorruptRecord:
            if not facts:  # else it is met again, as the first, in the next step
                raise
        if not facts:
            self.dispatched_offset = file.start + end
            return True
        self.dispatch_walked(facts)
        return True

    def fact_of(self, record: Scanned, view: memoryview, base: int) -> Fact:
        """CorruptRecord when its topic is no name."""
        position = record.physical_offset - base
        text = str(view[record.properties_position : position + record.size], "utf-8", "replace")
        key = record.topic, record.queue_id
        queue = self._walked.get(key)
        if queue is None:
            queue = self._log.queues.of_record(record.topic, record.queue_id)
            if queue is None:
                raise CorruptRecord(record.physical_offset, f"its topic is {record.topic!r}")
            self._walked[key] = queue
        queue_offset = -1 if record.sys_flag & NOT_IN_QUEUE else record.queue_offset
        return (
            queue,
            queue_offset,
            record.physical_offset,
            record.size,
            record.store_timestamp,
            text,
            record.sys_flag,
        )

    def dispatch_walked(self, facts: list[Fact]) -> None:
        """Dispatch records read from the log; the index may have some of them already."""
        known = 0
        if self._index is not None:
            self._index.write_pending()
            indexed = self._index.indexed_offset
            known = sum(1 for fact in facts if fact[2] <= indexed)
        arrivals: list[Arrival] | None = [] if self.listeners else None
        try:
            if known:
                self._put_entries(facts[:known], arrivals)
                self.dispatched_timestamp = facts[known - 1][4]
            self._stats.dispatched += self._dispatch(facts[known:], arrivals)
        finally:
            for queue in {fact[0] for fact in facts}:
                queue.assigned = max(queue.assigned, queue.max_offset)
            if arrivals:
                self._tell(arrivals)

    def note_dispatched(self, count: int) -> None:
        """A recovery has dispatched records itself."""
        self._stats.dispatched += count

    # -- the coroutine

    async def run(self) -> None:
        """Dispatch whenever something was appended, until cancelled."""
        while True:
            await self.wake.wait()
            try:
                while self.step():
                    await self._clock.sleep(0)
                if self._index is not None and self._index.keys:
                    self.wake_late.set()
            except (OSError, StoreError, CorruptRecord) as error:
                self._note_failure(error)
                await self._clock.sleep(RETRY_S)
                self.wake.set()

    async def run_late(self) -> None:
        """Dispatch records, and write keys, that have waited in vain for company."""
        while True:
            await self.wake_late.wait()
            dispatched_before = self.dispatched_offset
            await self._clock.sleep(LINGER_S)
            index = self._index
            keys_wait = index is not None and index.keys
            if self.dispatched_offset != dispatched_before and not keys_wait:
                if self._facts:
                    self.wake_late.set()  # what waits now came later, and has not waited so long
                continue
            try:
                if index is not None:
                    index.write_pending()
                if self._facts or self.failures:  # a step finds out whether all is well again
                    self.wake.set()
            except OSError as error:
                self._note_failure(error)
                await self._clock.sleep(RETRY_S)
                self.wake_late.set()

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        text = (
            f"queues and index could not be written for the record at {self.dispatched_offset}: "
            f"{error}"
        )
        self._reports.disk_error(
            "dispatch failed",
            error,
            call="write",
            then=f"tried again every second; after {TRIES} tries puts are refused",
        )
        if self.failures == TRIES:
            remedy = remedy_for(error, "free space or mend the disk")
            self.on_refusal(
                f"{text}; tried {TRIES} times: {remedy}; sends resume by themselves when it can be "
                f"written again"
            )

    def _note_success(self) -> None:
        log.info("dispatch goes on", after_failures=self.failures)
        self.failures = 0
        self.on_recovery()


def _write_the_rest(queues: list[ConsumeQueue]) -> None:
    """After one queue has failed: the others need not wait for it."""
    for queue in queues:
        with suppress(OSError):  # the batch has failed already
            queue.write_waiting()


def _end_of(fact: Fact) -> int:
    return fact[2] + fact[3]


def _do_nothing() -> None:
    """Nobody asked to be told."""


def _ignore(_reason: str) -> None:
    """Nobody asked to be told."""


_tag_codes: dict[str, int] = {}


def _remember_tag(tag: str) -> int:
    if len(_tag_codes) > 10_000:  # tags are few; somebody who invents them gets no memory for it
        _tag_codes.clear()
    code = _tag_codes[tag] = code_of_tag(tag)
    return code
