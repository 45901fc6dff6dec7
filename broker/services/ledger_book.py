"""The ledger of committed batches and of commits in progress, in memory and in its file.

What is not in the file yet is in the log (`ledger_log`).
"""

import asyncio
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.services import ledger_log
from aerobee.broker.services.config_files.classes import config_path
from aerobee.broker.services.config_files.json_file import load_json, save_json
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.batch_ledger")

FILE_NAME: Final = "sparkSink.json"
DAY_MS: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where a prepared chunk is stored, and which attempt it belongs to."""

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


@dataclass(frozen=True, slots=True)
class HomeNote:
    """Which broker commits a query's batches, as its writer said."""

    home: str  # the broker's name
    at_ms: int  # when a writer last asked for it


class LedgerBook:
    """`config/sparkSink.json`: by query its newest committed batch, its commit in progress, and
    which broker commits its batches."""

    def __init__(self, folder: str, store: MessageStore, clock: Clock, keep_days: int = 0) -> None:
        self.path = config_path(folder, FILE_NAME)
        self._store = store
        self._clock = clock
        self._keep_ms = keep_days * DAY_MS  # after a query's last commit; 0: for ever
        self.committed: dict[str, int] = {}
        self.committed_at: dict[str, int] = {}
        self.intents: dict[str, Intent] = {}
        self.homes: dict[str, HomeNote] = {}
        self._noted_from = 0  # the first record of the log that is not in the file
        self._saving = asyncio.Lock()  # an older state must not be written over a newer one

    def newest(self, query: str) -> int:
        """The newest committed batch of the query; -1 when there is none."""
        return self.committed.get(query, -1)

    def entries(self) -> list[dict[str, Any]]:
        """Every query that is remembered, or has a commit in progress."""
        return [
            {
                "query": query,
                "batch": self.newest(query),
                "committedAt": self.committed_at.get(query),
                "committing": query in self.intents,
                **({"home": _home_as_json(self.homes[query])} if query in self.homes else {}),
            }
            for query in sorted({*self.committed, *self.intents, *self.homes})
        ]

    def load(self) -> None:
        """Load the file and later records of the log (on a replica: since its last update)."""
        for noted in ledger_log.noted_from(self._store, self._load_file()):
            self._follow(noted.content)

    def load_file(self) -> None:
        """Load the file alone: a slave gets the rest from its master. If the log has lost its end,
        record numbers are used again: the file must not refer to them."""
        known, end = self._load_file(), ledger_log.end_of(self._store)
        if known > end:
            self._noted_from = end
            save_json(self.path, self._content(), disk=self._store.disk)

    def _follow(self, noted: dict[str, Any]) -> None:
        query, batch = str(noted["query"]), int(noted.get("batch", -1))
        if noted["state"] == ledger_log.FORGOTTEN:
            self.drop(query)
        elif noted["state"] == ledger_log.HOME:
            self.homes[query] = _home_note(noted)
        elif batch <= self.newest(query):
            return
        elif noted["state"] == ledger_log.BEGUN:
            chunks = [Chunk(**chunk) for chunk in noted["chunks"]]
            self.intents[query] = Intent(batch, int(noted["logStart"]), chunks)
        else:
            self.committed[query], self.committed_at[query] = batch, int(noted["at"])
            if query in self.intents and self.intents[query].batch <= batch:
                del self.intents[query]

    def take_over(self, entries: list[dict[str, Any]], noted_end: int) -> bool:
        """On a slave: take the master's commits, as of `noted_end` ledger records in our log; later
        ones are in the log. Returns whether there is something to save."""
        committed = {str(row["query"]): int(row["batch"]) for row in entries if row["batch"] >= 0}
        times = {str(row["query"]): int(row["committedAt"] or 0) for row in entries}
        homes = {str(row["query"]): _home_note(row["home"]) for row in entries if row.get("home")}
        under_way = any(row["committing"] for row in entries)
        known = self._noted_from if under_way else noted_end
        before = (self.committed, self.intents, self.homes, self._noted_from)
        self.committed, self.intents, self.homes, self._noted_from = committed, {}, homes, known
        self.committed_at = {query: times[query] for query in committed}
        return before != (committed, {}, homes, known)

    def drop(self, query: str) -> None:
        """Forgets the query, in memory."""
        self.committed.pop(query, None)
        self.committed_at.pop(query, None)
        self.homes.pop(query, None)

    def take_back(self, cut_to: int) -> None:
        """The log is about to be cut here: commits after this offset are undone. A query's batches
        are committed in order, so the one before becomes the newest."""
        self._load_file()
        for _, _, noted in ledger_log.noted_after(self._store, cut_to):
            query, batch = str(noted["query"]), int(noted.get("batch", -1))
            if noted["state"] == ledger_log.COMMITTED and batch <= self.newest(query):
                self.committed[query] = batch - 1
                if batch <= 0:
                    del self.committed[query], self.committed_at[query]
            elif noted["state"] == ledger_log.BEGUN and query in self.intents:
                del self.intents[query]
        self._noted_from = 0
        save_json(self.path, self._content(), disk=self._store.disk)

    async def save(self) -> None:
        """Save the file."""
        async with self._saving:
            save = partial(save_json, self.path, self._content(), disk=self._store.disk)
            await asyncio.to_thread(save)

    def _load_file(self) -> int:
        """Returns the number of the first record of the log that is not in the file."""
        try:
            self._take(load_json(self.path, disk=self._store.disk, strict=True) or {})
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise StoreError(
                f"{self.path} is damaged ({error}); without it a batch could be stored twice: put "
                f"its .bak in its place, or remove it if no query writes exactly once here"
            ) from error
        return self._noted_from

    def _take(self, content: dict[Any, Any]) -> None:
        self.committed = {q: int(b) for q, b in content.get("committed", {}).items()}
        times, now = content.get("committedAt", {}), self._clock.now_ms()
        self.committed_at = {q: int(times.get(q, now)) for q in self.committed}
        for query, intent in content.get("committing", {}).items():
            chunks = [Chunk(**chunk) for chunk in intent["chunks"]]
            self.intents[query] = Intent(int(intent["batch"]), int(intent["logStart"]), chunks)
        self.homes = {q: _home_note(note) for q, note in content.get("homes", {}).items()}
        self._noted_from = int(content.get("notedFrom", 0))

    async def save_all(self) -> None:
        """Save the file with everything that is in the log."""
        self._noted_from = ledger_log.end_of(self._store)
        await self.save()

    def _content(self) -> dict[str, Any]:
        committing = {
            query: {
                "batch": intent.batch,
                "logStart": intent.log_start,
                "chunks": [asdict(chunk) for chunk in intent.chunks],
            }
            for query, intent in self.intents.items()
        }
        return {
            "committed": dict(self.committed),
            "committedAt": dict(self.committed_at),
            "committing": committing,
            "homes": {query: _home_as_json(note) for query, note in self.homes.items()},
            "notedFrom": self._noted_from,
        }

    def expire(self) -> None:
        """Drops queries whose last commit and note of a home are too long ago; the next save writes
        that."""
        oldest = self._clock.now_ms() - self._keep_ms
        last = dict(self.committed_at)
        for query, note in self.homes.items():  # a former home's last commit may be much older
            last[query] = max(note.at_ms, last.get(query, 0))
        for query, at_ms in last.items():
            if self._keep_ms and at_ms < oldest and query not in self.intents:
                log.info("a query was forgotten", query=query, last_commit=at_ms)
                self.drop(query)


def _home_note(content: dict[str, Any]) -> HomeNote:
    return HomeNote(str(content["home"]), int(content["at"]))


def _home_as_json(note: HomeNote) -> dict[str, Any]:
    return {"home": note.home, "at": note.at_ms}
