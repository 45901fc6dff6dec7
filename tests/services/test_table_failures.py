"""Saves of a config table that fail: by a value that JSON cannot hold, by a bug, by a rename."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from services.table_world import Table, after_a_kill, content_of, saved_table
from structlog.testing import capture_logs
from waiting import until

from aerobee.broker.services.config_files import table_file

UNWRITABLE: dict[str, Any] = {  # JSON has neither, and keys must be sorted
    "an infinite number": float("inf"),
    "a list with one": [float("inf")],
    "keys without an order": [{(1, "a"): "b", ("a", 1): "c"}],
    "half a character": "\ud800",
}


@pytest.mark.parametrize("bad", UNWRITABLE.values(), ids=UNWRITABLE)
@pytest.mark.parametrize("is_journal", [False, True], ids=["whole", "journal"])
async def test_a_value_that_cannot_be_written_does_not_keep_others_from_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: Any, is_journal: bool
) -> None:
    monkeypatch.setattr(table_file, "QUIET_S", 3600.0 if is_journal else 0.001)
    path = tmp_path / "table.json"
    table = Table(path)
    if is_journal:
        table.file.save()
    running = asyncio.create_task(table.file.run(0.0))
    await asyncio.sleep(0)  # it has begun
    with capture_logs() as logs:
        table.put("a", "before")
        table.put("odd", bad)
        table.put("partly", {"kept": "x", "lost": bad})
        table.put("z", "after")
        await table.file.saved()
        assert after_a_kill(path) == {"a": "before", "partly": {"kept": "x"}, "z": "after"}
        table.put("later", "too")
        await table.file.saved()
    assert "later" in after_a_kill(path) and not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    errors = [line for line in logs if line["log_level"] == "error"]
    assert [line["entry"] for line in errors] == ["table.odd", "table.partly"]
    assert all(line["path"] == str(path) for line in errors)
    table.file.stop()
    assert Table(path).load() == {
        "a": "before",
        "later": "too",
        "partly": {"kept": "x"},
        "z": "after",
    }


async def test_saving_goes_on_after_a_mistake_in_the_table_and_those_who_wait_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "RETRY_S", 0.01)
    path = tmp_path / "table.json"
    table = Table(path)
    table.put("a", "json")
    table.file.save()
    running = asyncio.create_task(table.file.run())
    await asyncio.sleep(0)  # it has begun
    with monkeypatch.context() as broken, capture_logs() as logs:
        broken.setattr(table.file, "_value_of", lambda path: 1 / 0)
        broken.setattr(table.file, "_entries", lambda: 1 / 0)
        table.put("b", "late")
        for _ in "journal", "whole":
            with pytest.raises(OSError, match="ZeroDivisionError"):
                await table.file.saved()
        with pytest.raises(OSError, match="ZeroDivisionError"):
            table.file.stop()
        assert after_a_kill(path) == {"a": "json"}
    errors = {line["event"] for line in logs if line["log_level"] == "error"}
    assert errors == {"a config file cannot be saved"}
    await until(lambda: table.file.is_saved)
    assert after_a_kill(path) == {"a": "json", "b": "late"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_changes_in_a_journal_outlive_a_json_file_that_could_not_be_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "RETRY_S", 0.01)
    path = tmp_path / "table.json"
    saved = saved_table(path)
    obstacle = path.with_name("table.json.bak")
    obstacle.mkdir()
    with pytest.raises(OSError):
        saved.file.save()
    with pytest.raises(OSError):
        saved.file.stop()
    assert Table(path).load() == saved.values
    running = asyncio.create_task(saved.file.run())
    obstacle.rmdir()
    await until(lambda: content_of(path) == saved.values)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
