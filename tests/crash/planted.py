"""Bugs that tests put in, and the search for a seed of a simulation that catches one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Plant = Callable[[pytest.MonkeyPatch], None]


class Mutants(dict[str, Plant]):
    """Planted bugs by name."""

    def add(self, plant: Plant) -> Plant:
        self[plant.__name__] = plant
        return plant


def search(plant: Plant, run: Callable[[int], object], start: int, count: int) -> None:
    """Find a seed that fails with the bug in place and not without it; the test fails if none."""
    for seed in range(start, start + count):
        caught = _failure(plant, run, seed)
        if caught is not None:
            print(f"{plant.__name__}: caught by seed {seed}: {caught!r}")
            run(seed)  # and without the bug nothing is wrong
            return
    pytest.fail(f"{plant.__name__}: no seed from {start} to {start + count} catches it")


def _failure(plant: Plant, run: Callable[[int], object], seed: int) -> Exception | None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        try:
            run(seed)
        except Exception as error:
            return error
    return None
