"""Delay levels on a disk that loses power, under a clock that is set; planted bugs are caught."""

from __future__ import annotations

from typing import Any

import pytest
from crash.delays import run_delay_seed
from crash.planted import Mutants, search

from aerobee.broker.services.delay import schedule
from aerobee.broker.services.delay.level_times import LevelTimes
from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.redelivery import origins

MUTANTS = Mutants()
mutant = MUTANTS.add
SEARCH = 400


@mutant
def forget_what_was_delivered_since_the_last_save(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(origins, "_read_file", lambda *_where: None)


@mutant
def save_progress_ahead_of_the_disk(patch: pytest.MonkeyPatch) -> None:
    def note_flushed(self: Schedule) -> None:
        self._unflushed.clear()
        self._durable.update(self._next)

    patch.setattr(Schedule, "_note_flushed", note_flushed)


@mutant
def mark_the_end_of_the_log_whatever_is_counted(patch: pytest.MonkeyPatch) -> None:
    real = Schedule._snapshot

    def snapshot(self: Schedule) -> dict[Any, Any]:
        saved = real(self)
        saved[schedule._MARK] = self._mark = self._store.max_physical_offset
        return saved

    patch.setattr(Schedule, "_snapshot", snapshot)


@mutant
def deliver_at_once_what_is_farther_than_its_level(patch: pytest.MonkeyPatch) -> None:
    def due_ms(self: LevelTimes, _queue_offset: int, deliver_ms: int, now_ms: int) -> int:
        too_far = self._delay_ms is not None and deliver_ms > now_ms + self._delay_ms
        return now_ms if too_far else deliver_ms

    patch.setattr(LevelTimes, "due_ms", due_ms)


@mutant
def let_a_message_of_a_clock_ahead_block_the_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LevelTimes, "due_ms", lambda _self, _offset, deliver_ms, _now_ms: deliver_ms)


# More seeds, and these: `make crashsim-quick`, which CI runs.
@pytest.mark.parametrize("start", [0])
def test_delayed_messages_come_once_and_not_early_whatever_ends_a_life(start: int) -> None:
    images = sum(run_delay_seed(seed).images for seed in range(start, start + 8))
    assert images >= 8 * 16


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_catches(name: str) -> None:
    search(MUTANTS[name], run_delay_seed, 0, SEARCH)
