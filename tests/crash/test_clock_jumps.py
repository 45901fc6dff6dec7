"""A clock that is set under a working broker: the whole is `make clockjumps`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crash.clock_jumps import run
from services.services_world import HandClock

from aerobee.broker.base.trusted_time import DOUBT_S, STEP_MS, TrustedTime

YEARS_MS = 10 * 365 * 24 * STEP_MS


def test_a_step_ahead_counts_after_a_day_and_a_step_back_at_once() -> None:
    clock = HandClock()
    trusted = TrustedTime(clock)
    began = clock.now_ms()
    clock.set_by_ms = STEP_MS - 1000
    assert trusted.now_ms() == began + STEP_MS - 1000  # as NTP sets it
    clock.set_by_ms = YEARS_MS
    assert trusted.now_ms() == began + STEP_MS - 1000
    clock.at_ms += round(DOUBT_S * 1000) - 1
    assert trusted.now_ms() < clock.now_ms() - YEARS_MS // 2
    clock.at_ms += 1
    assert trusted.now_ms() == clock.now_ms()
    clock.set_by_ms = 0
    assert trusted.now_ms() == clock.now_ms()


def kept(trusted: TrustedTime, clock: HandClock) -> TrustedTime:
    """What a process that starts now makes of what the last one has kept."""
    again = TrustedTime(clock)
    again.resume(*trusted.to_keep())
    return again


def test_a_start_with_a_clock_that_is_ahead_doubts_it_for_a_day_over_further_starts() -> None:
    clock = HandClock()
    trusted = TrustedTime(clock)
    began = clock.now_ms()
    clock.set_by_ms = YEARS_MS
    for hours in range(0, 24, 6):
        trusted = kept(trusted, clock)
        assert trusted.now_ms() <= began + hours * STEP_MS
        clock.at_ms += 6 * STEP_MS
    assert trusted.now_ms() == clock.now_ms()
    clock.set_by_ms = 0
    assert kept(trusted, clock).now_ms() == clock.now_ms()


def test_a_start_soon_after_the_stop_believes_the_clock() -> None:
    clock = HandClock()
    trusted = TrustedTime(clock)
    for _ in range(50):
        clock.at_ms += STEP_MS // 2
        clock.set_by_ms += STEP_MS // 2  # time that passed between two lives
        trusted = kept(trusted, clock)
        assert trusted.now_ms() == clock.now_ms()
    fresh = TrustedTime(clock)
    fresh.resume(0, 0)  # a store without a checkpoint
    assert fresh.now_ms() == clock.now_ms()


@pytest.mark.slow
async def test_jumps_lose_nothing_and_nothing_is_stuck() -> None:
    done = await run(8, 5)
    assert done.problems == []


def expire_by_any_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrustedTime, "now_ms", lambda self: self._clock.now_ms())


def forget_the_time_of_the_last_life(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrustedTime, "resume", lambda self, *_kept: None)


def believe_a_second_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TrustedTime, "to_keep", lambda self: (self._clock.now_ms(), 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug", [expire_by_any_clock, forget_the_time_of_the_last_life, believe_a_second_start]
)
async def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    done = await run(8, 5)
    assert done.problems
