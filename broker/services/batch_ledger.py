"""Batches that appear whole or not at all, once: the broker's half of the exactly-once Spark sink.

A writer's rows are stored as half messages: records of the prepared type, which no consume queue
ever sees, each holding a chunk of rows for one queue. A commit names the chunks of a batch and
publishes their rows as ordinary messages. What makes that happen once:

1. the intent (query, batch, chunks, the log's end) is saved before the first row is published,
   and after the chunks are on disk;
2. every published row carries its name (`SPARK_ROW`: query/batch/partition/number, by the writer;
   of writers that give none query/batch/partition/chunk/row);
3. the ledger (query -> newest committed batch) is saved after the last row is on disk.

Intent and commit are records of the log too (`ledger_log`), before and behind the rows: a replica
that becomes the master goes by them.

An interrupted commit is finished from the intent: the log behind the intent's mark shows which
rows are published already. A batch at or below the ledger's is not published again. Chunks that
nobody commits stay invisible and leave with their log file; one older than the writer's timeout is
refused.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.services import ledger_log
from aerobee.broker.services.config_files.classes import config_path
from aerobee.broker.services.config_files.json_file import load_json, save_json
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.log.read_records import read_records
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.results import PutResult, PutStatus
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import decode_batch
from aerobee.protocol.files.record import (
    TRANSACTION_PREPARED,
    Message,
    StoredMessage,
    decode_record,
)
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.names import SYSTEM_TOPIC_PREFIX
from aerobee.protocol.wire.codes import ResponseCode

log = structlog.get_logger("aerobee.batch_ledger")

FILE_NAME: Final = "sparkSink.json"
PREPARED_TOPIC: Final = SYSTEM_TOPIC_PREFIX + "SPARK_PREPARED"
ROW: Final = "SPARK_ROW"
_ROW_MARK: Final = (ROW + properties.NAME_END).encode()
_CHUNK_ID: Final = "SPARK_CHUNK"
_NAMED: Final = "SPARK_NAMED"  # of a chunk whose rows bring their names
_DAY_MS: Final = 24 * 3_600_000
_SCAN_PAUSE_S: Final = 0.02  # of walking the log, after which others get their turn


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where a prepared chunk stands and whose it is."""

    partition: int
    attempt: int
    chunk: int
    offset: int
    size: int

    def name(self, query: str, batch: int) -> str:
        return f"{query}/{batch}/{self.partition}/{self.attempt}/{self.chunk}"


@dataclass(slots=True)
class Intent:
    """A commit in progress."""

    batch: int
    log_start: int
    chunks: list[Chunk]


class BatchLedger:
    """One per broker; `config/sparkSink.json` is its memory."""

    def __init__(
        self,
        folder: str,
        store: MessageStore,
        clock: Clock,
        count_put: Callable[[str, int, int], None],
        keep_days: int = 0,
        put_plain: Callable[[str, int, StoredMessage], tuple[int, int] | None] = lambda *_: None,
    ) -> None:
        self.path = config_path(folder, FILE_NAME)
        self._store = store
        self._clock = clock
        self._count_put = count_put  # topic, messages, bytes: for the broker's figures
        self._put_plain = put_plain  # rows as they are, cheaply; None: they have to be looked at
        self._keep_ms = keep_days * _DAY_MS  # after a query's last commit; 0: for ever
        self._committed: dict[str, int] = {}
        self._committed_at: dict[str, int] = {}
        self._intents: dict[str, Intent] = {}
        self._noted_from = 0  # records of the log that the file does not know begin here
        self._turns: dict[str, asyncio.Lock] = {}
        self._saving = asyncio.Lock()  # an older state must not be written over a newer one

    # --- the file

    def load(self) -> None:
        """The file's content and what the log has since; at a replica: since its last update."""
        for noted in ledger_log.noted_from(self._store, self._load_file()):
            self._follow(noted.content)

    def load_file(self) -> None:
        """A slave gets the rest from its master. A log that has lost its end numbers again from
        there: the file must not speak of numbers that others will have."""
        known, end = self._load_file(), ledger_log.end_of(self._store)
        if known > end:
            self._noted_from = end
            save_json(self.path, self._content(), disk=self._store.disk)

    def _follow(self, noted: dict[str, Any]) -> None:
        query, batch = str(noted["query"]), int(noted.get("batch", -1))
        if noted["state"] == ledger_log.FORGOTTEN:
            self._committed.pop(query, None)
            self._committed_at.pop(query, None)
        elif batch <= self.newest(query):
            return
        elif noted["state"] == ledger_log.BEGUN:
            chunks = [Chunk(**chunk) for chunk in noted["chunks"]]
            self._intents[query] = Intent(batch, int(noted["logStart"]), chunks)
        else:
            self._committed[query], self._committed_at[query] = batch, int(noted["at"])
            if query in self._intents and self._intents[query].batch <= batch:
                del self._intents[query]

    def take_over(self, entries: list[dict[str, Any]], noted_end: int) -> bool:
        """A slave: what its master has committed, when our log had `noted_end` records of that; the
        rest is in the log. Whether there is something to save."""
        committed = {str(row["query"]): int(row["batch"]) for row in entries if row["batch"] >= 0}
        times = {str(row["query"]): int(row["committedAt"] or 0) for row in entries}
        under_way = any(row["committing"] for row in entries)
        known = self._noted_from if under_way else noted_end
        before = (self._committed, self._intents, self._noted_from)
        self._committed, self._intents, self._noted_from = committed, {}, known
        self._committed_at = {query: times[query] for query in committed}
        return before != (committed, {}, known)

    def take_back(self, cut_to: int) -> None:
        """The log is about to be cut here: what is committed behind it was not. A query's batches
        are committed in their order, so the one before was the newest."""
        self._load_file()
        for _, _, noted in ledger_log.noted_behind(self._store, cut_to):
            query, batch = str(noted["query"]), int(noted.get("batch", -1))
            if noted["state"] == ledger_log.COMMITTED and batch <= self.newest(query):
                self._committed[query] = batch - 1
                if batch <= 0:
                    del self._committed[query], self._committed_at[query]
            elif noted["state"] == ledger_log.BEGUN and query in self._intents:
                del self._intents[query]
        self._noted_from = 0
        save_json(self.path, self._content(), disk=self._store.disk)

    async def save(self) -> None:
        """Keep what was taken over."""
        async with self._saving:
            save = partial(save_json, self.path, self._content(), disk=self._store.disk)
            await asyncio.to_thread(save)

    def _load_file(self) -> int:
        """Returns the number of the first record of the log that the file does not know."""
        try:
            self._take(load_json(self.path, disk=self._store.disk, strict=True) or {})
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise StoreError(
                f"{self.path} is damaged ({error}); without it a batch could be stored twice: put "
                f"its .bak in its place, or remove it if no query writes exactly once here"
            ) from error
        return self._noted_from

    def _take(self, content: dict[Any, Any]) -> None:
        self._committed = {q: int(b) for q, b in content.get("committed", {}).items()}
        times, now = content.get("committedAt", {}), self._clock.now_ms()
        self._committed_at = {q: int(times.get(q, now)) for q in self._committed}
        for query, intent in content.get("committing", {}).items():
            chunks = [Chunk(**chunk) for chunk in intent["chunks"]]
            self._intents[query] = Intent(int(intent["batch"]), int(intent["logStart"]), chunks)
        self._noted_from = int(content.get("notedFrom", 0))

    async def _save(self) -> None:
        self._noted_from = ledger_log.end_of(self._store)
        await self.save()

    def _content(self) -> dict[str, Any]:
        committing = {
            query: {
                "batch": intent.batch,
                "logStart": intent.log_start,
                "chunks": [asdict(chunk) for chunk in intent.chunks],
            }
            for query, intent in self._intents.items()
        }
        return {
            "committed": dict(self._committed),
            "committedAt": dict(self._committed_at),
            "committing": committing,
            "notedFrom": self._noted_from,
        }

    # --- called by handlers

    def newest(self, query: str) -> int:
        """The newest committed batch of the query; -1 when there is none."""
        return self._committed.get(query, -1)

    def entries(self) -> list[dict[str, Any]]:
        """Every query that is remembered, or has a commit in progress."""
        return [
            {
                "query": query,
                "batch": self.newest(query),
                "committedAt": self._committed_at.get(query),
                "committing": query in self._intents,
            }
            for query in sorted(self._committed.keys() | self._intents.keys())
        ]

    async def forget(self, query: str) -> bool:
        """Whether the query was known; a batch of it that is run again is published again."""
        async with self._turns.setdefault(query, asyncio.Lock()):
            if query in self._intents:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"a commit of {query} has begun and is not finished; forget it afterwards",
                )
            if query not in self._committed:
                return False
            ledger_log.note(self._store, {"query": query, "state": ledger_log.FORGOTTEN})
            batch, at_ms = self._committed.pop(query), self._committed_at.pop(query)
            try:
                await self._save()
            except BaseException:
                self._committed[query], self._committed_at[query] = batch, at_ms
                raise
            return True

    def _expire(self) -> None:
        """Drops queries whose last commit is too long ago; the next save makes it last."""
        if not self._keep_ms:
            return
        oldest = self._clock.now_ms() - self._keep_ms
        for query, at_ms in list(self._committed_at.items()):
            if at_ms < oldest and query not in self._intents:
                del self._committed_at[query], self._committed[query]
                if (turn := self._turns.get(query)) is not None and not turn.locked():
                    del self._turns[query]
                log.info("a query was forgotten", query=query, committed_at=at_ms)

    def prepare(
        self,
        query: str,
        batch: int,
        chunk: Chunk,
        rows: Message,
        queue_id: int,
        *,
        named: bool = False,
    ) -> PutResult:
        """Stores a chunk; `rows` has the target topic and the encoded rows as its body."""
        text = properties.encode(
            {
                _CHUNK_ID: chunk.name(query, batch),
                properties.REAL_TOPIC: rows.topic,
                properties.REAL_QID: str(queue_id),
                **({_NAMED: "true"} if named else {}),
            }
        )
        rows.topic, rows.queue_id, rows.properties = PREPARED_TOPIC, 0, text
        rows.sys_flag |= TRANSACTION_PREPARED
        return self._store.put([rows])[0]

    async def commit(
        self, query: str, batch: int, chunks: list[Chunk], timeout_ms: int
    ) -> int | None:
        """Publishes the batch; how many rows, or None when it was committed before."""
        async with self._turns.setdefault(query, asyncio.Lock()):
            if (cut_off := self._intents.get(query)) is not None:
                if cut_off.batch == batch and self._is_lost(query, cut_off):
                    for chunk in chunks:
                        self._check_age(self._chunk(query, batch, chunk), timeout_ms)
                    await self._begin(query, Intent(batch, cut_off.log_start, chunks))
                    return await self._finish(query)
                await self._finish(query)
            if batch <= self.newest(query):
                return None
            for chunk in chunks:
                self._check_age(self._chunk(query, batch, chunk), timeout_ms)
            await self._begin(query, Intent(batch, self._store.max_physical_offset, chunks))
            return await self._finish(query, fresh=True)

    async def _begin(self, query: str, intent: Intent) -> None:
        """Saves the intent, once its chunks are on disk: a power failure that took them and left
        the intent would leave a batch that nothing can finish."""
        await self._make_durable()
        before = self._intents.get(query)
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
        self._intents[query] = intent
        try:
            await self._save()
        except BaseException:  # nothing was published for it, so it has not begun
            del self._intents[query]
            if before is not None:
                self._intents[query] = before
            raise

    async def run(self) -> None:
        """At the start of the broker: finish the commits that the last stop cut off."""
        for query in list(self._intents):
            async with self._turns.setdefault(query, asyncio.Lock()):
                try:
                    if query in self._intents:
                        rows = await self._finish(query)
                        log.info("a cut-off commit was finished", query=query, rows=rows)
                except Refused as refused:
                    log.error("a cut-off commit waits", query=query, reason=refused.remark)
                except Exception as error:  # one query's failure is its own
                    event, then = "a cut-off commit waits", "tried again by the query's next commit"
                    self._store.reports.failed(event, error, then=then, query=query)

    # --- publishing

    async def _finish(self, query: str, *, fresh: bool = False) -> int:
        """Publishes what the intent names and the log does not hold yet; then the ledger."""
        intent = self._intents[query]
        done = set() if fresh else await self._published(query, intent)
        rows = 0
        for chunk in intent.chunks:
            record = self._chunk(query, intent.batch, chunk, check=not fresh)  # that was just done
            rows += self._publish(f"{query}/{intent.batch}", chunk, record, done)
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
        before = self.newest(query)
        del self._intents[query]
        self._committed[query] = intent.batch
        self._committed_at[query] = now_ms
        self._expire()
        try:
            await self._save()
        except BaseException:  # not recorded: the next attempt has to look at the log again
            self._intents[query] = intent
            self._committed[query] = before
            raise
        return rows

    def _publish(self, batch: str, chunk: Chunk, record: StoredMessage, done: set[str]) -> int:
        """Puts the chunk's rows that are not `done`; how many rows the chunk has."""
        topic = properties.get(record.properties, properties.REAL_TOPIC) or ""
        queue_id = int(properties.get(record.properties, properties.REAL_QID) or 0)
        named = properties.get(record.properties, _NAMED) is not None
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
        """The names of the batch's rows that stand in the log behind the intent's mark."""
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
        """Waits until the log is on disk up to here, in ASYNC_FLUSH too: the ledger is about to
        say that the batch is stored."""
        store, end = self._store, self._store.max_physical_offset
        while store.flushed_offset < end:
            job = store.flush.prepare()
            if job is not None:
                store.flush.complete(await asyncio.to_thread(store.flush.sync, job))
            else:
                await asyncio.sleep(0.005)
            if store.flush.failed:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    "the rows could not be synced to disk; see the broker's log",
                )
        if store.puts_wait:
            await self._wait_for_copies(end)

    async def _wait_for_copies(self, end: int) -> None:
        """As long as a send would. What is not on a slave by then is stored here all the same, and
        said to be; but with an arbiter a failover may take it back: Refused, the intent stays."""
        done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
        self._store.when_durable(end, done.set_result)
        status = await done
        if status is PutStatus.PUT_OK:
            return
        log.warning("a batch is not on enough slaves", status=status.name, log_end=end)
        if self._store.settings.has_arbiter:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the batch is not on all in-sync replicas ({status.name}); commit again, it goes "
                "on where it stopped",
            )

    # --- chunks

    def _is_lost(self, query: str, intent: Intent) -> bool:
        """Whether a chunk of the intent is gone: the same rows of a later attempt take over."""
        try:
            for chunk in intent.chunks:
                self._chunk(query, intent.batch, chunk)
        except Refused:
            return True
        return False

    def _chunk(self, query: str, batch: int, chunk: Chunk, *, check: bool = True) -> StoredMessage:
        """The stored chunk; Refused when it is not there or another's."""
        view = self._store.record_at(chunk.offset, chunk.size)
        name = chunk.name(query, batch)
        try:
            record = None if view is None else decode_record(view, check=check)
        except CorruptRecord as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"chunk {name} is damaged: {error}") from None
        if record is None or properties.get(record.properties, _CHUNK_ID) != name:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                f"chunk {name} is not at {chunk.offset}: it was removed with its log file, or lost "
                "in a crash; run the batch again",
            )
        return record

    def _check_age(self, record: StoredMessage, timeout_ms: int) -> None:
        age_ms = self._clock.now_ms() - record.store_timestamp
        if age_ms > timeout_ms:
            raise Refused(
                ResponseCode.TRANSACTION_FAILED,
                f"the rows were prepared {age_ms // 1000} s ago, the timeout is "
                f"{timeout_ms // 1000} s (preparedTimeout); run the batch again",
            )
