"""Timers on a disk that loses power while files of the log are removed; planted bugs are caught."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from crash.planted import Mutants, search
from crash.timer_lives import run_timer_seed
from effort import examples

from aerobee.broker.services.redelivery import origins
from aerobee.broker.services.timers.checkpoint import Checkpoints, Reached
from aerobee.broker.services.timers.firing import Timers
from aerobee.broker.services.timers.keeper import TimerKeeper
from aerobee.broker.services.timers.moves_journal import Journal
from aerobee.broker.services.timers.timer_log import TimerLog
from aerobee.broker.services.timers.wheel import TimerWheel
from aerobee.broker.store.retention.clean import Chosen, Clean
from aerobee.broker.store.retention.keepers import Keepers

MUTANTS = Mutants()
mutant = MUTANTS.add
SEARCH = 600
# A seed that catches the bug, as long as the timers take the same steps; the search begins there.
SEEDS = {
    "drop_units_that_have_fired_but_not_to_disk": 535,
    "leave_the_names_of_the_timer_log_unsynced": 12,
    "remove_a_file_before_its_queue_entries_are_on_disk": 5007245,
    "remove_a_file_once_the_units_are_written": 82,
    "remove_a_file_whose_timers_have_fired_but_not_to_disk": 336,
}


@mutant
def forget_what_has_fired_since_the_checkpoint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(origins, "_read_file", lambda *_where: None)


@mutant
def save_the_checkpoint_ahead_of_the_store(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Checkpoints, "save_durable", lambda self, reached: self.save(reached))


@mutant
def mark_the_end_of_the_log_whatever_is_counted(patch: pytest.MonkeyPatch) -> None:
    real = Timers._point_now

    def point_now(self: Timers) -> Reached:
        reached = real(self)
        return reached._replace(mark=reached.store_end)

    patch.setattr(Timers, "_point_now", point_now)


@mutant
def leave_the_timer_log_in_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimerLog, "sync", lambda self: None)


@mutant
def leave_the_names_of_the_timer_log_unsynced(patch: pytest.MonkeyPatch) -> None:
    real = TimerLog.sync

    def sync(self: TimerLog) -> None:
        self._names_unsynced = False
        real(self)

    patch.setattr(TimerLog, "sync", sync)


@mutant
def let_units_follow_without_a_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "write", lambda self, moves: None)


@mutant
def remove_the_journal_without_mending_the_units(patch: pytest.MonkeyPatch) -> None:
    def load(self: TimerKeeper, fired: set[int]) -> set[int]:
        moves = self._journal.read()
        pairs = [{move.was_offset, move.offset} for move in moves]
        self._journal.remove()
        return set().union(*(pair for pair in pairs if not pair.isdisjoint(fired)))

    patch.setattr(TimerKeeper, "load", load)


@mutant
def remove_a_file_once_the_units_are_written(patch: pytest.MonkeyPatch) -> None:
    """The timer log's sync is not awaited."""
    real = TimerKeeper._settle

    def settle(self: TimerKeeper) -> Iterator[None]:
        for step in real(self):
            self._checkpoints.rounds_done = 1 << 60
            yield step

    patch.setattr(TimerKeeper, "_settle", settle)


@mutant
def remove_a_file_whose_timers_have_fired_but_not_to_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keepers, "_is_on_disk", lambda self, file: True)


@mutant
def drop_units_that_have_fired_but_not_to_disk(patch: pytest.MonkeyPatch) -> None:
    def drop_files(self: TimerKeeper, read_second: int) -> None:
        self._log.drop_before(self._store.min_physical_offset, read_second)

    patch.setattr(TimerKeeper, "drop_files", drop_files)


@mutant
def remove_a_file_before_its_queue_entries_are_on_disk(patch: pytest.MonkeyPatch) -> None:
    real = Clean.choose

    def choose(self: Clean) -> Chosen | None:
        self._covered_to = lambda: self._log.flushed_offset
        return real(self)

    patch.setattr(Clean, "choose", choose)


@mutant
def store_into_no_block_of_the_wheel(patch: pytest.MonkeyPatch) -> None:
    def write(self: TimerWheel, index: int, content: bytes) -> None:
        self._file.write(index * len(content), content)

    patch.setattr(TimerWheel, "_write", write)


# More seeds, and these: `make crashsim-quick`, which CI runs.
@pytest.mark.parametrize("start", range(0, examples(8, share=4), 4))
def test_timers_come_once_and_not_early_whatever_ends_a_life(start: int) -> None:
    images = sum(run_timer_seed(seed).images for seed in range(start, start + 4))
    assert images >= 4 * 16


def test_timers_are_read_again_when_a_file_of_their_log_is_short_and_not_the_last() -> None:
    assert run_timer_seed(4007959).images >= 16


def test_a_timer_that_was_copied_twice_fires_once_if_the_timer_log_is_lost() -> None:
    """The original is gone, one copy has rolled, and another one is still there."""
    assert run_timer_seed(5003268).images >= 16


def test_a_timer_is_found_although_its_log_was_about_to_be_removed_at_a_power_cut() -> None:
    """The queue would give away again the offsets of entries that were not on disk yet."""
    assert run_timer_seed(5007245).images >= 16


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_catches(name: str) -> None:
    search(MUTANTS[name], run_timer_seed, SEEDS.get(name, 0), SEARCH)
