"""The simulation of replicas and failover: some seeds keep every promise, planted bugs are caught.

`make hasim RUNS=5000` runs more of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from crash.ledger import Broken
from effort import examples

from ha.simulation import failover_mutants as failover
from ha.simulation.failover_world import run_failover_seed
from ha.simulation.mutants import MUTANTS, SEEDS
from ha.simulation.world import run_seed


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("seed", range(0, examples(40, share=20), 10))
def test_replicas_keep_what_was_acknowledged(seed: int) -> None:
    for number in range(seed, seed + 10):
        run_seed(number)


def test_every_planted_bug_has_a_seed() -> None:
    assert SEEDS.keys() == MUTANTS.keys()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(Broken):
        run_seed(SEEDS[name])


@pytest.mark.parametrize("seed", range(0, examples(60, share=40), 20))
def test_failover_keeps_what_was_acknowledged_and_seen(seed: int) -> None:
    for number in range(seed, seed + 20):
        run_failover_seed(number)


def test_every_planted_bug_of_failover_has_a_seed() -> None:
    assert failover.SEEDS.keys() == failover.MUTANTS.keys()


@pytest.mark.parametrize("name", failover.MUTANTS)
def test_a_planted_bug_of_failover_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    failover.MUTANTS[name](monkeypatch)
    with pytest.raises(Broken):
        run_failover_seed(failover.SEEDS[name])
