"""Batches that appear whole or not at all, once: the broker's half of the exactly-once Spark sink.

A writer's rows are stored as half messages: records of the prepared type, which are in no consume
queue, each holding a chunk of rows for one queue. A commit names the chunks of a batch and
publishes their rows as ordinary messages. What makes that happen once:

1. the intent (query, batch, chunks, the log's end) is saved before the first row is published,
   and after the chunks are on disk;
2. every published row carries its name (`SPARK_ROW`: query/batch/partition/number, set by the
   writer; query/batch/partition/chunk/row for writers that set none);
3. the ledger (query -> newest committed batch) is saved after the last row is on disk.

Intent and commit are also records of the log (`ledger_log`), before and after the rows: a replica
that becomes the master uses them.

An interrupted commit is finished from the intent: the log after the intent's mark shows which rows
are published already. A batch at or below the ledger's is not published again. Chunks that are
never committed stay invisible and are removed with their log file; a chunk older than the writer's
timeout is refused.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.services import ledger_log
from aerobee.broker.services.ledger_book import DAY_MS, Chunk, HomeNote, Intent, LedgerBook
from aerobee.broker.services.prepared_chunks import PreparedChunks, are_named
from aerobee.broker.store.log.read_records import read_records
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.results import PutStatus
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import decode_batch
from aerobee.protocol.files.record import Message, StoredMessage
from aerobee.protocol.wire.codes import ResponseCode

log = structlog.get_logger("aerobee.batch_ledger")

ROW: Final = "SPARK_ROW"
_ROW_MARK: Final = (ROW + properties.NAME_END).encode()
_SYNC_BYTES: Final = 16 * 1024 * 1024  # of the log: worth a sync of its own
_SCAN_PAUSE_S: Final = 0.02  # of scanning the log, before the event loop serves others


class BatchLedger:
    """Prepares and publishes batches; `book` says which are committed."""

    def __init__(
        self,
        folder: str,
        store: MessageStore,
        clock: Clock,
        count_put: Callable[[str, int, int], None],
        keep_days: int = 0,
        put_plain: Callable[[str, int, StoredMessage], tuple[int, int] | None] = lambda *_: None,
        *,
        broker: str = "",
    ) -> None:
        self.book = LedgerBook(folder, store, clock, keep_days)
        self.chunks = PreparedChunks(store, clock)
        self._store = store
        self._clock = clock
        self._count_put = count_put  # topic, messages, bytes: for the broker's figures
        self._put_plain = put_plain  # rows as they are, cheaply; None: each must be checked
        self._broker = broker  # this one's name
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._syncing: asyncio.Task[bool] | None = None

    async def forget(self, query: str) -> bool:
        """Forget a query: a batch of it that is run again is published again. False: unknown."""
        async with self._turn(query):
            if query in self.book.intents:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"a commit of {query} has begun and is not finished; forget it afterwards",
                )
            book = self.book
            if query not in book.committed and query not in book.homes:
                return False
            ledger_log.note(self._store, {"query": query, "state": ledger_log.FORGOTTEN})
            tables: tuple[dict[str, Any], ...] = (book.committed, book.committed_at, book.homes)
            before = [(table, table[query]) for table in tables if query in table]
            book.drop(query)
            try:
                await book.save_all()
            except BaseException:
                for table, value in before:
                    table[query] = value
                raise
            return True

    async def home_of(self, query: str) -> str | None:
        """The broker that commits the query's batches, as far as this one was told. A note that is
        asked for stays: it must not expire before the query's last commit at its home does."""
        note = self.book.homes.get(query)
        if note is None:
            return None
        now_ms = self._clock.now_ms()
        if now_ms - note.at_ms > DAY_MS:
            self.book.homes[query] = HomeNote(note.home, now_ms)
            await self.book.save()
        return note.home

    async def note_home(self, query: str, batch: int, home: str, instead: str = "") -> None:
        """Remembers that `home` commits the query's batches, from this one on: while it cannot be
        reached, no other may. `instead` is the home that this one replaces: its own ledger has to
        be told first, and from then on it commits no more of them."""
        async with self._turn(query):
            book, known = self.book, self.book.homes.get(query)
            if known is not None and known.home == home:
                return
            if known is not None and known.home != instead:
                raise Refused(ResponseCode.SYSTEM_ERROR, _elsewhere(query, known))
            newest = max(
                book.newest(query), book.intents[query].batch if query in book.intents else -1
            )
            if home != self._broker and newest >= batch:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"batch {newest} of {query} was committed here, or its commit has begun, so "
                    f"{home} cannot have batch {batch}; run the batch again",
                )
            book.expire()
            note = HomeNote(home, self._clock.now_ms())
            ledger_log.note(
                self._store,
                {"query": query, "state": ledger_log.HOME, "home": home, "at": note.at_ms},
            )
            await self._make_durable()
            book.homes[query] = note
            try:
                await book.save_all()
            except BaseException:
                del book.homes[query]
                if known is not None:
                    book.homes[query] = known
                raise

    def _turn(self, query: str) -> asyncio.Lock:
        """One change of a query at a time."""
        return self._turns.setdefault(query, asyncio.Lock())

    async def commit(
        self, query: str, batch: int, chunks: list[Chunk], timeout_ms: int
    ) -> int | None:
        """Publishes the batch; returns the number of rows, None if it was committed before."""
        async with self._turn(query):
            note = self.book.homes.get(query)
            if note is not None and note.home != self._broker and batch > self.book.newest(query):
                raise Refused(ResponseCode.SYSTEM_ERROR, _elsewhere(query, note))
            if (cut_off := self.book.intents.get(query)) is not None:
                if cut_off.batch == batch and self.chunks.are_lost(query, cut_off):
                    await self._check_chunks(query, batch, chunks, timeout_ms)
                    await self._begin(query, Intent(batch, cut_off.log_start, chunks))
                    return await self._finish(query)
                await self._finish(query)
            if batch <= self.book.newest(query):
                return None
            await self._check_chunks(query, batch, chunks, timeout_ms)
            await self._begin(query, Intent(batch, self._store.max_physical_offset, chunks))
            return await self._finish(query, fresh=True)

    async def _check_chunks(
        self, query: str, batch: int, chunks: list[Chunk], timeout_ms: int
    ) -> None:
        """Refused unless all are whole and young enough."""
        for chunk in chunks:
            self.chunks.check(query, batch, chunk, timeout_ms)
            self._sync_behind()
            await asyncio.sleep(0)

    async def _begin(self, query: str, intent: Intent) -> None:
        """Saves the intent once its chunks are on disk: if a power failure lost them but not the
        intent, the batch could never be finished."""
        await self._make_durable()
        before = self.book.intents.get(query)
        ledger_log.note(
            self._store,
            {
                "query": query,
                "batch": intent.batch,
                "state": ledger_log.BEGUN,
                "logStart": intent.log_start,
                "chunks": [asdict(chunk) for chunk in intent.chunks],
            },
        )
        self.book.intents[query] = intent
        try:
            await self.book.save_all()
        except BaseException:  # nothing was published for it, so it has not begun
            del self.book.intents[query]
            if before is not None:
                self.book.intents[query] = before
            raise

    async def run(self) -> None:
        """At the start of the broker: finish the commits that the last stop interrupted."""
        for query in list(self.book.intents):
            async with self._turn(query):
                try:
                    if query in self.book.intents:
                        rows = await self._finish(query)
                        log.info("an interrupted commit was finished", query=query, rows=rows)
                except Refused as refused:
                    log.error("a commit is unfinished", query=query, reason=refused.remark)
                except Exception as error:  # a failure must not affect other queries
                    event, then = "a commit is unfinished", "retried by the query's next commit"
                    self._store.reports.failed(event, error, then=then, query=query)

    # --- publishing

    async def _finish(self, query: str, *, fresh: bool = False) -> int:
        """Publishes the intent's rows that are not in the log yet; then saves the ledger."""
        intent = self.book.intents[query]
        done = set() if fresh else await self._published(query, intent)
        rows = 0
        for chunk in intent.chunks:
            if not fresh:  # else that was just done
                self.chunks.check(query, intent.batch, chunk)
            record = self.chunks.read(query, intent.batch, chunk)
            rows += self._publish(f"{query}/{intent.batch}", chunk, record, done)
            self._store.forget(chunk.offset, chunk.size)
            self._sync_behind()
            await asyncio.sleep(0)
        now_ms = self._clock.now_ms()
        ledger_log.note(
            self._store,
            {
                "query": query,
                "batch": intent.batch,
                "state": ledger_log.COMMITTED,
                "at": now_ms,
            },
        )
        await self._make_durable()
        before = self.book.newest(query)
        del self.book.intents[query]
        self.book.committed[query] = intent.batch
        self.book.committed_at[query] = now_ms
        self.book.expire()
        try:
            await self.book.save_all()
        except BaseException:  # not recorded: the next attempt has to read the log again
            self.book.intents[query] = intent
            self.book.committed[query] = before
            raise
        return rows

    def _publish(self, batch: str, chunk: Chunk, record: StoredMessage, done: set[str]) -> int:
        """Puts the chunk's rows that are not `done`; returns how many rows the chunk has."""
        topic = properties.get(record.properties, properties.REAL_TOPIC) or ""
        queue_id = int(properties.get(record.properties, properties.REAL_QID) or 0)
        named = are_named(record)
        if named and not done and (put := self._put_plain(topic, queue_id, record)):
            self._count_put(topic, *put)
            return put[0]
        parts = decode_batch(record.body)
        messages = []
        for number, (flag, body, text) in enumerate(parts):
            if not named:
                place = f"{batch}/{chunk.partition}/{chunk.chunk}/{number}"
                text = properties.pair(ROW, place) + text
            if properties.get(text, ROW) not in done:
                messages.append(
                    Message(
                        topic,
                        queue_id,
                        body,
                        properties.ended(text),
                        flag,
                        0,
                        record.born_timestamp,
                        record.born_host,
                        record.store_host,
                    )
                )
        if messages:
            result = self._store.put_batch(messages, accepted=True)
            if not result.ok:
                raise Refused(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"the commit of {batch} stopped in the middle: {result.reason}; "
                    "commit again, it resumes where it stopped",
                )
            self._count_put(topic, len(messages), result.size)
        return len(parts)

    async def _published(self, query: str, intent: Intent) -> set[str]:
        """The names of the batch's rows that are in the log after the intent's mark."""
        wanted = f"{query}/{intent.batch}/".encode()
        found = set()
        pause_at = time.monotonic() + _SCAN_PAUSE_S
        for text in self._properties_from(intent.log_start):
            if text.startswith(_ROW_MARK + wanted):
                found.add(text[len(_ROW_MARK) : text.index(properties.PAIR_END_BYTES)].decode())
            if time.monotonic() > pause_at:
                await asyncio.sleep(0)
                pause_at = time.monotonic() + _SCAN_PAUSE_S
        return found

    def _properties_from(self, start: int) -> Iterator[bytes]:
        """The property bytes of every record from `start` to the log's end."""
        commit_log = self._store.commit_log
        for file in commit_log.files.overlapping(start, commit_log.max_offset):
            position = max(start - file.start, 0)
            for record, piece, base in read_records(file, position, file.readable):
                begin = record.properties_position
                yield bytes(piece[begin : record.physical_offset - base + record.size])

    async def _make_durable(self) -> None:
        """Waits until the log is on disk up to here, in ASYNC_FLUSH too: the ledger will promise
        that the batch is stored."""
        store, end = self._store, self._store.max_physical_offset
        if self._syncing is not None:
            await asyncio.wait((self._syncing,))
        while store.flushed_offset < end:
            if not await self._sync():
                await asyncio.sleep(0.005)
            if store.flush.failed:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    "the rows could not be synced to disk; see the broker's log",
                )
        if store.puts_wait:
            await self._wait_for_copies(end)

    async def _sync(self) -> bool:
        """Sync the log; whether there was something to sync. See `flush.failed` for errors."""
        job = self._store.flush.prepare()
        if job is not None:
            self._store.flush.complete(await asyncio.to_thread(self._store.flush.sync, job))
        return job is not None

    def _sync_behind(self) -> None:
        """Starts syncing while rows are still appended, so that little is left at the end."""
        behind = self._store.max_physical_offset - self._store.flushed_offset
        if behind >= _SYNC_BYTES and (self._syncing is None or self._syncing.done()):
            self._syncing = asyncio.create_task(self._sync())

    async def _wait_for_copies(self, end: int) -> None:
        """Wait for copies as long as a send would. After that the batch counts as stored, with a
        warning; but with an arbiter a failover might lose it: Refused, and the intent stays."""
        done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        self._store.when_durable(end, done.set_result)
        status = await done
        if status is PutStatus.PUT_OK:
            return
        log.warning("a batch is not on enough slaves", status=status.name, log_end=end)
        if self._store.settings.has_arbiter:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the batch is not on all in-sync replicas ({status.name}); commit again, it "
                "resumes where it stopped",
            )


def _elsewhere(query: str, note: HomeNote) -> str:
    return (
        f"the batches of {query} are committed by the broker {note.home}; run the batch again, or "
        "let all ledgers forget the query (aerobee pipeline ledger forget)"
    )
