"""Transactions, group progress and the exactly-once ledger on the simulated disk, by a seed.

Lives as in `lives.py`. What must hold after every end of a life:

- a half message that was promised is open until its end was promised, then never again,
- a commit that was promised is delivered once, a rollback never, and nothing without a commit,
- a group's progress is what was saved last or newer, and never past its queue's end,
- a batch of rows that was answered as committed is there once, every other one whole or not at all.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from crash.ledger import ROOT, Broken
from crash.lives import Chain, ServiceLife, run_lives
from crash.sim_disk import SimDisk
from crash.simulator import Report, sim_settings

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.batch_ledger import BatchLedger
from aerobee.broker.services.ledger_book import Chunk
from aerobee.broker.services.offsets import Offsets
from aerobee.broker.services.put_hooks import PutHooks
from aerobee.broker.services.topics.table import Topics
from aerobee.broker.services.transactions.service import EndRequest, Transactions
from aerobee.broker.settings import Settings
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.files.record import Message

TOPIC = "Orders"
GROUP = "readers"
ROWS_TOPIC = "Rows"
QUERY = "q"


@dataclass
class Half:
    queue_offset: int
    physical_offset: int
    end: int  # of its record in the log
    word: bool | None = None  # the producer's decision: commit or not
    word_end: int = 0  # of the log, when that was stored


@dataclass
class Owed(Chain):
    halves: dict[bytes, Half] = field(default_factory=dict)
    kept: set[bytes] = field(default_factory=set)  # halves that are on disk
    ended: set[bytes] = field(default_factory=set)  # their ends are, too
    offset: int = 0  # of the group, when it was last saved
    rows: dict[int, list[bytes]] = field(default_factory=dict)  # of each batch that was tried
    committed: int = -1  # the newest batch that was answered


class TransactionLife(ServiceLife):
    """Store, transactions, offsets and ledger."""

    actions: ClassVar = {
        "send_half": 6,
        "send_plain": 2,
        "end": 6,
        "check_one": 3,
        "flush": 4,
        "dispatch": 4,
        "save_progress": 3,
        "consume": 3,
        "commit_batch": 2,
        "checkpoint": 2,
        "let_time_pass": 1,
    }
    early: ClassVar = ("end", "check_one", "flush", "save_progress", "commit_batch")

    def __init__(self, disk: SimDisk, chain: Owed) -> None:
        super().__init__(disk, chain)
        self.chain = chain
        settings = Settings(store_path_root_dir=ROOT)
        config = f"{ROOT}/config"
        self.topics = Topics(f"{config}/topics.json", settings, self.clock, disk)
        self.offsets = Offsets(f"{config}/consumerOffset.json", self.clock, disk)
        self.topics.load()
        self.offsets.load()
        if not self.store.was_stopped:
            self.offsets.reset_past_end(self.store.queue_end)
        self.hooks = PutHooks(settings, self.clock)
        self.transactions = Transactions(self.store, self.topics, self.offsets, self.hooks)
        self.transactions.load()
        self.ledger = BatchLedger(config, self.store, self.clock, lambda *_: None)
        self.ledger.book.load()
        run(self.ledger.run())

    # --- transactions

    def send_half(self) -> None:
        key = f"{self.rng.getrandbits(64):016x}".encode()
        text = f"TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01{key.decode()}\x02"
        body = key + bytes(self.rng.choice((0, 40, 400)))
        result = self.put(self.hooks.apply(Message(TOPIC, 0, body, text)))
        if result.ok:
            self.chain.halves[key] = Half(
                result.queue_offset,
                result.physical_offset,
                result.physical_offset + result.size,
            )

    def end(self) -> None:
        """A producer's decision about an open transaction."""
        self.dispatch()
        waiting = [key for key, half in self.chain.halves.items() if half.word is None]
        if waiting:
            self._end(self.rng.choice(waiting), self.rng.random() < 0.6)

    def _end(self, key: bytes, commit: bool) -> None:
        half = self.chain.halves[key]
        request = EndRequest("g", half.queue_offset, half.physical_offset, commit, key.decode())
        half.word = commit  # it may be stored even if unanswered
        self.transactions.end(request)
        half.word_end = self.store.max_physical_offset

    def check_one(self) -> None:
        """As the check loop does it, without asking a producer."""
        self.dispatch()
        if self.transactions.prepare():
            self.transactions.write_due_ops()
            self.transactions.read_halves()
            for root, queue_offset in self.transactions.open_halves()[:1]:
                half = self.transactions.half_at(root, queue_offset)
                if half is not None:
                    self.transactions.copy(root, half, 1)

    def save_progress(self) -> None:
        if self.transactions.prepare():
            self.transactions.read_halves()
            self.transactions.commit_progress()
        offset = self.offsets.query(GROUP, TOPIC, 0)
        self.offsets.file.step()
        self.chain.offset = max(0, offset)

    def consume(self) -> None:
        self.dispatch()
        self.offsets.commit(GROUP, TOPIC, 0, self.store.max_offset(TOPIC, 0))

    def flush(self) -> None:
        self.sync()
        flushed, chain = self.store.flushed_offset, self.chain
        kept = {key for key, half in chain.halves.items() if half.end <= flushed}
        ended = {key for key, half in chain.halves.items() if 0 < half.word_end <= flushed}
        chain.kept, chain.ended = chain.kept | kept, chain.ended | ended

    # --- batches

    def commit_batch(self) -> None:
        """The next batch, or the last one again while it is unanswered."""
        number = self.chain.committed + 1
        rows = self.chain.rows.setdefault(number, [b"%d-%d" % (number, row) for row in range(7)])
        chunks = []
        for at, part in enumerate((rows[:4], rows[4:])):
            body = encode_batch([(0, row, "") for row in part])
            chunk = Chunk(0, self.rng.getrandbits(30), at, 0, 0)
            put = self.ledger.chunks.prepare(QUERY, number, chunk, Message(ROWS_TOPIC, 0, body), 0)
            chunks.append(Chunk(0, chunk.attempt, at, put.physical_offset, put.size))
        run(self.ledger.commit(QUERY, number, chunks, 10**9))
        self.chain.committed = number

    # --- the end of a life

    def settle(self) -> None:
        end, chain = self.store.max_physical_offset, self.chain
        if lost := [key for key in chain.kept if chain.halves[key].end > end]:
            raise Broken(f"promised {min(lost)!r} is gone")
        if lost := [key for key in chain.ended if chain.halves[key].word_end > end]:
            raise Broken(f"the promised end of {min(lost)!r} is gone")
        halves = {}
        self.dispatch()
        delivered = self._delivered()
        for key, half in chain.halves.items():
            if half.end <= end:
                is_ended = key in delivered or 0 < half.word_end <= end
                word = half.word if is_ended or half.word is False else None
                halves[key] = Half(half.queue_offset, half.physical_offset, half.end, word)
                halves[key].word_end = end if is_ended else 0
        chain.halves = halves
        chain.kept = set(halves)
        chain.ended = {key for key, half in halves.items() if half.word_end}
        chain.rows = dict(chain.rows)
        chain.offset = max(0, self.offsets.query(GROUP, TOPIC, 0))
        chain.committed = max(chain.committed, self.ledger.book.newest(QUERY))

    def close(self) -> None:
        self.transactions.commit_progress()
        self.offsets.file.stop()
        self.topics.file.stop()
        self.store.close()

    def _delivered(self) -> Counter[bytes]:
        return Counter(bytes(each.body[:16]) for each in self.messages(TOPIC, 0))

    def check(self) -> None:
        self.dispatch()
        self._check_offset()
        self._check_rows()
        chain = self.chain
        chain.halves = {key: replace(half) for key, half in chain.halves.items()}  # of this image
        assert self.transactions.prepare()
        before = self._delivered()
        for key in sorted(chain.kept):
            half = chain.halves[key]
            if key not in chain.ended and half.word is None:
                self._end(key, True)  # Refused: it was lost, or ended without a request
            elif key not in chain.ended and half.word:
                with suppress(Refused):  # the end may be stored but unanswered
                    self._end(key, True)
        self.dispatch()
        counts = self._delivered()
        for key in sorted(chain.halves.keys() | counts.keys()):
            half = chain.halves[key]
            is_owed = key in chain.ended and half.word is True and half.word_end > 0
            if is_owed and before[key] != 1:
                raise Broken(f"the commit of {key!r} was delivered {before[key]} times")
            if counts[key] > 1 or (counts[key] and half.word is not True):
                raise Broken(f"{key!r} came {counts[key]} times, its end is {half.word}")

    def _check_offset(self) -> None:
        offset, end = self.offsets.query(GROUP, TOPIC, 0), self.store.max_offset(TOPIC, 0)
        if offset > end:
            raise Broken(f"the group is at {offset}, its queue ends at {end}")
        if max(0, offset) < min(self.chain.offset, end):
            raise Broken(f"the group is at {offset}, saved was {self.chain.offset}")

    def _check_rows(self) -> None:
        counts = Counter(bytes(each.body) for each in self.messages(ROWS_TOPIC, 0))
        for number, rows in self.chain.rows.items():
            found = {counts[row] for row in rows}
            allowed = ({1},) if number <= self.chain.committed else ({0}, {1})
            if found not in allowed:
                raise Broken(f"the rows of batch {number} are there {found} times")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def run_transaction_seed(seed: int, *, lives: int = 4) -> Report:
    """One chain of lives; Broken (with the seed in its text) when a promise is not kept."""
    rng = random.Random(seed)
    # A commit of the ledger waits for the pool's coroutine, which does not run here.
    settings = replace(sim_settings(rng), transient_store_pool_enable=False)
    return run_lives("transactions", seed, Owed(settings, rng), TransactionLife, lives)
