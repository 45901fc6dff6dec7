"""Single bits of a store's files flipped: the whole is `make bitflips`."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash.bit_flips import KINDS, SEEN, make_templates, picked, run_flips, try_flip
from crash.flipped_store import make_folder, observe
from crash.timer_lives import small_wheel
from structlog.testing import capture_logs

from aerobee.broker.services.config_files import journal_file, json_file
from aerobee.broker.services.timers import timer_log
from aerobee.broker.services.timers.checkpoint import Checkpoints
from aerobee.broker.services.timers.firing import Timers
from aerobee.broker.store.inspect import verify
from aerobee.broker.store.log import read_records
from aerobee.protocol.files import record, record_scan

Patch = pytest.MonkeyPatch


def test_a_few_flips_in_each_kind_of_file_are_seen_or_without_effect() -> None:
    outcomes, violations = run_flips(3, 11, list(KINDS), print)
    assert violations == []
    assert outcomes.total() == 3 * len(KINDS)


def believe_every_record(patch: Patch) -> None:
    """A client that does not verify checksums."""
    patch.setattr(record, "CRC_NAME", b"none")
    patch.setattr(record, "sums_match", lambda *_: True)


def read_without_checks(patch: Patch) -> None:
    """A broker that redelivers records unchecked."""
    believe_every_record(patch)
    real: Callable[..., Any] = record_scan.check_record
    patch.setattr(read_records, "check_record", lambda *given: real(*given[:4], False))


@pytest.mark.parametrize("bug", [believe_every_record, read_without_checks])
def test_a_wrong_body_is_found(bug: Callable[[Patch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, small_wheel(), capture_logs():
        templates = make_templates(tmp_path, 1)
        template = templates["stopped"]
        name = template.files("log")[0]
        data = (template.folder / name).read_bytes()
        bit = data.index(b"." * 100) * 8  # in a body
        assert try_flip(template, name, bit, tmp_path / "work") == (SEEN, "")
        bug(patch)
        outcome, problem = try_flip(template, name, bit, tmp_path / "work")
        assert outcome == "wrong", problem


def test_timers_that_are_early_are_found(tmp_path: Path) -> None:
    real = Timers.step
    with pytest.MonkeyPatch.context() as patch, small_wheel(), capture_logs():
        make_folder(tmp_path / "made", "stopped", random.Random(1))
        patch.setattr(Timers, "step", lambda self, now_ms: real(self, now_ms + 600_000))
        assert observe(tmp_path / "made").early


def no_checksum_of_configs(patch: Patch) -> None:
    patch.setattr(json_file, "is_broken", lambda data: False)


def ends_of_journals_are_not_looked_at(patch: Patch) -> None:
    patch.setattr(journal_file, "is_cut_off", lambda data, journal: False)


def no_sums_of_timers(patch: Patch) -> None:
    patch.setattr(timer_log, "_are_whole", lambda units: np.ones(len(units), bool))


def no_bit_is_turned_back(patch: Patch) -> None:
    patch.setattr(Checkpoints, "_whole", lambda self, page: page)


def a_killed_index_may_be_anything(patch: Patch) -> None:
    patch.setattr(verify, "_vouched", lambda store, file: False)


@pytest.mark.slow
@pytest.mark.timeout(600)  # some take hundreds of flips, each a start of a broker
@pytest.mark.parametrize(
    ("bug", "kind", "how"),
    [
        (no_checksum_of_configs, "offsets", "stopped"),
        (no_checksum_of_configs, "delays", "killed"),
        (no_checksum_of_configs, "ledger", "stopped"),
        (ends_of_journals_are_not_looked_at, "journal", "killed"),
        (no_sums_of_timers, "timer log", "stopped"),
        (no_bit_is_turned_back, "timer check", "stopped"),
        (a_killed_index_may_be_anything, "index", "killed"),
    ],
)
def test_a_planted_bug_is_found(
    bug: Callable[[Patch], None], kind: str, how: str, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch, small_wheel(), capture_logs():
        template = make_templates(tmp_path, 1)[how]
        bug(patch)
        for _, name, bit in picked({how: template}, kind, 1000, random.Random(1)):
            _, problem = try_flip(template, name, bit, tmp_path / "work")
            if problem:
                break
        else:
            raise AssertionError("1,000 flips did not find it")
    print(f"found by {name}, bit {bit}: {problem}")
