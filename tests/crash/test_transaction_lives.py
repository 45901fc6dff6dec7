"""Transactions, progress and the ledger on a disk that loses power; planted bugs are caught."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from crash.planted import Mutants, search
from crash.transaction_lives import run_transaction_seed
from effort import examples

from aerobee.broker.services.batch_ledger import BatchLedger
from aerobee.broker.services.config_files.table_file import TableFile
from aerobee.broker.services.ledger_book import Intent
from aerobee.broker.services.offsets import Offsets
from aerobee.broker.services.transactions.service import Transactions, _Progress
from aerobee.broker.store.results import PutResult
from aerobee.protocol.files.record import Message

MUTANTS = Mutants()
mutant = MUTANTS.add
SEARCH = 300


@mutant
def note_the_end_before_its_message(patch: pytest.MonkeyPatch) -> None:
    def put_both(
        self: Transactions, message: Message, op: Message, put: Any = None
    ) -> Sequence[PutResult]:
        noted = self._store.put([op])[0]
        return self._store.put([message])[0], noted

    patch.setattr(Transactions, "_put_both", put_both)


@mutant
def forget_a_commit_without_its_op(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transactions, "_write_missing_op", lambda self: None)


@mutant
def save_progress_past_what_is_open(patch: pytest.MonkeyPatch) -> None:
    real = Transactions.commit_progress

    def commit_progress(self: Transactions) -> None:
        real(self)
        end = self._store.max_offset("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)
        self._progress.append(_Progress(0, self._read, end))
        real(self)

    patch.setattr(Transactions, "commit_progress", commit_progress)


@mutant
def leave_groups_past_the_ends_of_their_queues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Offsets, "reset_past_end", lambda self, queue_end: None)


@mutant
def take_offsets_for_saved_that_are_not(patch: pytest.MonkeyPatch) -> None:
    def step(self: TableFile) -> bool:
        self._unsaved.clear()
        return True

    patch.setattr(TableFile, "step", step)


@mutant
def publish_without_an_intent(patch: pytest.MonkeyPatch) -> None:
    async def begin(self: BatchLedger, query: str, intent: Intent) -> None:
        self.book.intents[query] = intent

    patch.setattr(BatchLedger, "_begin", begin)


@mutant
def publish_a_cut_off_batch_again(patch: pytest.MonkeyPatch) -> None:
    async def published(self: BatchLedger, query: str, intent: Intent) -> set[str]:
        return set()

    patch.setattr(BatchLedger, "_published", published)


@mutant
def answer_a_batch_before_its_rows_are_on_disk(patch: pytest.MonkeyPatch) -> None:
    async def make_durable(self: BatchLedger) -> None:
        pass

    patch.setattr(BatchLedger, "_make_durable", make_durable)


# More seeds, and these: `make crashsim-quick`, which CI runs.
@pytest.mark.parametrize("start", range(0, examples(8, share=4), 4))
def test_every_end_of_a_transaction_and_every_batch_counts_once(start: int) -> None:
    images = sum(run_transaction_seed(seed).images for seed in range(start, start + 4))
    assert images >= 4 * 16


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1000074, id="power lost between a copy and the op of the older one"),
        pytest.param(1000182, id="power lost after the padding between a commit and its op"),
    ],
)
def test_a_seed_that_delivered_twice_delivers_once(seed: int) -> None:
    assert run_transaction_seed(seed).images >= 16


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_catches(name: str) -> None:
    search(MUTANTS[name], run_transaction_seed, 0, SEARCH)
