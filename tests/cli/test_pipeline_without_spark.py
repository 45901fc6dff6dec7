"""`aerobee pipeline` without the extra `spark`: it shows itself and says what to install."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = [name for name in sys.modules if name.startswith("aerobee.pipeline")]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    for name in ("pyarrow", "pyspark", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_spark")
def test_the_commands_are_shown_and_one_that_needs_more_names_the_extra() -> None:
    from aerobee.pipeline.cli import pipeline

    shown = CliRunner().invoke(pipeline, ["--help"])
    assert shown.exit_code == 0 and "ledger" in shown.output
    for words in (["ledger", "list", "--namesrv", "h:1"], ["stats", "--namesrv", "h:1"]):
        result = CliRunner().invoke(pipeline, words)
        assert result.exit_code == 1
        assert "pip install 'aerobee[spark]'" in result.output
