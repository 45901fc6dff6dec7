"""The checker of the chaos run (`make chaos-broker`) is not blind."""

from pathlib import Path

import pytest
from crash.chaos import __main__ as chaos
from crash.chaos.faults import FAULTS

pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_a_broker_that_answers_before_the_flush_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = {"flushDiskType": "ASYNC_FLUSH", "flushIntervalCommitLog": "60000"}
    monkeypatch.setattr(chaos, "SETTINGS", chaos.SETTINGS | late)
    monkeypatch.setattr(chaos, "FAULTS", {"power cuts": FAULTS["power cuts"]})
    monkeypatch.setattr(chaos, "PAUSE_S", (6.0, 8.0))  # clients are back, and send
    monkeypatch.setattr(chaos, "LAST_S", 5.0)
    _, problems = chaos.run(tmp_path, 0.5, 1, ["java", "go"])
    assert any("acknowledged are not in the log" in problem for problem in problems), problems
