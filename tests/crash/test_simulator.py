"""The real store on a disk that loses power: no promise is broken, every planted bug is caught."""

from __future__ import annotations

import crash.mutants_start  # noqa: F401  (it adds to MUTANTS)
import pytest
from crash.mutants import MUTANTS
from crash.planted import search
from crash.simulator import run_every_kill, run_seed
from effort import examples

# A seed that catches the bug, as long as the store takes the same steps; the search begins there.
SEEDS = {
    "believe_every_queue_entry_7355": 30,
    "believe_the_page_cache_after_a_failed_sync": 235,
    "check_the_body_alone_7437": 46,
    "claim_what_is_dispatched_but_not_flushed_10073": 62,
    "count_index_entries_that_were_cut": 141,
    "cut_the_log_before_the_files_behind_its_end_go": 815,
    "go_on_writing_after_a_failed_sync": 46,
    "keep_the_index_as_it_is": 10,
    "leave_a_short_last_file_as_it_is": 1,
    "leave_the_end_of_a_full_file_in_the_pool": 12,
    "leave_the_tail_behind_the_end_10666": 190,
    "refuse_a_short_index_file": 4,
    "refuse_a_short_last_file": 1,
    "remove_a_short_last_file": 1,
    "remove_abort_although_the_flush_failed": 2,
    "remove_the_oldest_file_first_2141": 465,
    "rewrite_json_in_place_9705": 39,
    "scan_without_a_sync_of_what_was_found": 26,
    "show_consumers_what_is_not_flushed_8239": 3,
    "take_a_failed_sync_for_a_good_one_2706": 46,
    "trust_folders_that_a_killed_life_made": 46,
    "trust_records_without_a_checksum": 5,
    "try_a_failed_sync_again": 46,
    "write_abort_anew_around_the_recovery": 1,
    "write_no_blank_record": 1,
}
SEARCH = 1500


# More seeds, and these: `make crashsim-quick`, which CI runs.
@pytest.mark.parametrize("start", range(0, examples(20, share=10), 10))
def test_no_promise_is_broken_by_a_power_cut(start: int) -> None:
    images = sum(run_seed(seed).images for seed in range(start, start + 10))
    assert images >= 10 * 6


def test_an_index_that_was_ahead_of_the_log_by_more_than_a_file_is_cut() -> None:
    assert run_seed(3000246).images >= 6


def test_a_short_index_file_that_lost_its_first_entries_is_extended() -> None:
    assert run_seed(5008578).images >= 18


def test_a_kill_between_a_failed_sync_and_its_note_is_beyond_the_promises() -> None:
    """Life 2 of this seed ends there; the next ones begin with what a power cut leaves."""
    assert run_seed(4001889).images >= 18


# 1 stops in order: its start has little to do.
@pytest.mark.parametrize("seed", (0, *range(2, examples(9, share=5))))
def test_a_start_can_end_at_each_of_its_disk_calls(seed: int) -> None:
    assert run_every_kill(seed).start_kills >= 5


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_catches(name: str) -> None:
    search(MUTANTS[name], run_seed, SEEDS.get(name, 0), SEARCH)
