"""The real store on a disk that loses power: no promise is broken, every planted bug is caught."""

from __future__ import annotations

import os

import pytest
from crash.mutants import MUTANTS
from crash.simulator import run_seed

# A seed that catches the bug, as long as the store takes the same steps; the search begins there.
SEEDS = {
    "check_the_body_alone_7437": 13,
    "count_index_entries_that_were_cut": 255,
    "keep_the_index_as_it_is": 12,
    "leave_the_end_of_a_full_file_in_the_pool": 12,
    "leave_the_tail_behind_the_end_10666": 85,
    "remove_the_oldest_file_first_2141": 170,
    "rewrite_json_in_place_9705": 110,
    "trust_records_without_a_checksum": 13,
}
SEARCH = 250


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_no_promise_is_broken_by_a_power_cut(start: int) -> None:
    images = sum(run_seed(seed).images for seed in range(start, start + 10))
    assert images >= 10 * 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_promise_is_broken_in_as_many_images_as_asked() -> None:
    wanted = int(os.environ.get("IMAGES", "2000"))
    images = seed = 0
    while images < wanted:
        images += run_seed(seed).images
        seed += 1
    print(f"{images} images of {seed} seeds: 0 violations")
    assert images >= wanted


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    start = SEEDS.get(name, 0)
    for seed in range(start, start + SEARCH):
        try:
            run_seed(seed)
        except Exception as error:
            print(f"{name}: caught by seed {seed}: {error}")
            return
    pytest.fail(f"{name}: no seed from {start} to {start + SEARCH} catches it")
