"""Which replicas may lack what they acknowledged: a table of starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee.broker.ha.electable import Electability, is_electable
from aerobee.broker.store.files.real_disk import RealDisk

SAVED: dict[str, object] = {"bootId": "k1", "electable": True}


@pytest.mark.parametrize(
    ("boot_id", "was_stopped", "sync_flush", "expected"),
    [
        ("k1", False, False, True),  # killed: the page cache lives on
        ("k2", False, False, False),  # the machine went down
        ("k2", True, False, True),  # after a clean stop
        ("k2", False, True, True),  # what was acknowledged was on disk
        ("", False, False, False),  # unknown
    ],
)
def test_a_new_kernel_after_an_unclean_end_tells_of_a_power_cut(
    boot_id: str, was_stopped: bool, sync_flush: bool, expected: bool
) -> None:
    found = is_electable(SAVED, boot_id, was_stopped=was_stopped, sync_flush=sync_flush)
    assert found is expected


def test_a_new_folder_is_not_electable() -> None:
    assert not is_electable(None, "k1", was_stopped=True, sync_flush=True)


def test_a_replica_that_caught_up_stays_electable_over_a_kill_and_not_over_a_power_cut(
    tmp_path: Path,
) -> None:
    def start(kernel: str) -> Electability:
        found = Electability(str(tmp_path / "replicaState.json"), RealDisk(), kernel)
        found.opened(was_stopped=False, sync_flush=False)
        return found

    first = start("k1")
    assert not first.is_electable
    first.caught_up()
    assert start("k1").is_electable
    assert not start("k2").is_electable
    assert not start("k2").is_electable  # a second start does not help


@pytest.mark.parametrize(
    ("before", "after", "expected"), [(False, True, False), (True, False, True)]
)
def test_what_a_power_cut_took_depends_on_how_the_replica_flushed_before_it(
    tmp_path: Path, before: bool, after: bool, expected: bool
) -> None:
    """SYNC_FLUSH may be chosen because of the power cut."""

    def start(kernel: str, sync_flush: bool) -> Electability:
        found = Electability(str(tmp_path / "replicaState.json"), RealDisk(), kernel)
        found.opened(was_stopped=False, sync_flush=sync_flush)
        return found

    start("k1", before).caught_up()
    assert start("k2", after).is_electable is expected
