"""A table under config/ with its journal: what is there after a kill, a cut, another broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from services.table_world import Table, after_a_kill, content_of, journal_of, saved_table
from structlog.testing import capture_logs
from waiting import until

from aerobee.broker.base.turns import Turns
from aerobee.broker.services.config_files import journal_file, table_file
from aerobee.protocol.files import config_journal
from aerobee.protocol.files.config_journal import Change
from aerobee.protocol.json import fastjson, json_stream


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.json"


def with_journal(path: Path, journal: bytes | bytearray) -> dict[str, str]:
    """What a start would make of another journal."""
    data = path.read_bytes()
    content = fastjson.loads(data)
    read = config_journal.read_journal(bytes(journal))
    assert config_journal.with_journal(data, content, read) is not None
    table: dict[str, str] = content["table"]
    return table


@pytest.fixture
def saved(path: Path) -> Table:
    return saved_table(path)


def test_a_start_after_a_kill_finds_the_changes_in_the_journal(path: Path, saved: Table) -> None:
    after = Table(path)
    assert after.load() == {"a": "json", "b": "journal", "c": "journal"}
    assert after.version == saved.version


def test_a_deletion_is_replayed_too(path: Path, saved: Table) -> None:
    saved.delete("a")
    saved.delete("b")
    assert saved.file.step()
    assert Table(path).load() == {"c": "journal"}


def test_every_cut_of_the_journal_leaves_the_changes_before_it(path: Path, saved: Table) -> None:
    whole = journal_of(path).read_bytes()
    seen = set()
    for length in range(whole.index(b"\0") + 1):
        cut = whole[:length].ljust(len(whole), b"\0")
        seen.add("".join(sorted(with_journal(path, cut))))
    assert seen == {"a", "ab", "abc"}


def test_no_damaged_byte_of_the_journal_makes_up_a_change(path: Path, saved: Table) -> None:
    whole = journal_of(path).read_bytes()
    for at in range(whole.index(b"\0")):
        damaged = bytearray(whole)
        damaged[at] ^= 0x20
        loaded = with_journal(path, damaged)
        assert loaded.items() <= saved.values.items() and loaded["a"] == "json"


def test_changes_of_an_earlier_use_of_the_journal_never_come_back(path: Path, saved: Table) -> None:
    saved.delete("b")
    saved.file.save()  # the JSON file is complete; the journal is stale
    assert Table(path).load() == {"a": "json", "c": "journal"}
    saved.put("d", "new")
    assert saved.file.step()  # overwrites the journal's first line only
    assert Table(path).load() == {"a": "json", "c": "journal", "d": "new"}


def test_a_json_file_that_another_broker_wrote_wins_and_the_journal_is_kept_aside(
    path: Path, saved: Table
) -> None:
    path.write_text('{"dataVersion":{"counter":9},"table":{"a":"apache"}}')
    with capture_logs() as logs:
        assert Table(path).load() == {"a": "apache"}
    warning = next(line for line in logs if line["log_level"] == "warning")
    assert "another broker" in warning["event"]
    aside = Path(warning["journal"])
    assert b"journal" in aside.read_bytes() and not journal_of(path).exists()
    with capture_logs() as logs:
        assert Table(path).load() == {"a": "apache"}
    assert logs == []


def test_a_kill_between_the_new_json_file_and_the_next_change_is_no_other_broker(
    path: Path, saved: Table
) -> None:
    saved.file.save()
    with capture_logs() as logs:
        assert Table(path).load() == saved.values
    assert logs == []


@pytest.mark.parametrize("is_killed_before", [False, True])
def test_a_kill_after_a_second_new_json_file_is_no_other_broker(
    path: Path, saved: Table, is_killed_before: bool
) -> None:
    saved.file.save()  # the journal names it as the next one; then nothing is added
    if is_killed_before:
        saved = Table(path)
        saved.load()
    for name in "de":
        saved.put(name, "json")
        saved.file.save()
        with capture_logs() as logs:
            assert after_a_kill(path) == saved.values
        assert logs == []


def test_a_kill_after_the_journal_was_full_is_no_other_broker(
    path: Path, saved: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "SIZE_MIN", 4096)
    table = Table(path)
    table.load()
    for number in range(60):
        table.put(f"n{number}", "x" * 200)
        assert table.file.step()
        with capture_logs() as logs:
            assert after_a_kill(path) == table.values
        assert not any("another broker" in line["event"] for line in logs)


def test_the_journal_of_the_file_before_goes_with_its_bak(path: Path, saved: Table) -> None:
    """A kill between the two renames leaves no JSON file but its .bak."""
    path.rename(path.with_name(path.name + ".bak"))
    assert Table(path).load() == {"a": "json", "b": "journal", "c": "journal"}


def test_a_journal_that_is_replayed_is_made_into_a_json_file_by_the_start(
    path: Path, saved: Table
) -> None:
    Table(path).load()
    assert content_of(path) == saved.values
    assert not journal_of(path).exists()


async def test_a_start_continues_when_the_journal_cannot_be_made_into_a_json_file(
    path: Path, saved: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "RETRY_S", 0.01)
    obstacle = path.with_name("table.json.tmp")
    obstacle.mkdir()
    after = Table(path)
    assert after.load() == saved.values
    running = asyncio.create_task(after.file.run())
    await until(lambda: after.file._is_failing)
    obstacle.rmdir()
    await until(lambda: "journal" in path.read_text())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert content_of(path) == saved.values


async def test_what_was_waited_for_is_there_after_a_kill_in_that_moment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "QUIET_S", 3600.0)
    table = Table(path)
    running = asyncio.create_task(table.file.run())
    await asyncio.sleep(0)  # it has begun
    for number in range(20):
        for each in range(number * 5):  # some of them more than a line of the journal
            table.put(f"n{number}-{each}", "v")
        await table.file.saved()
        assert after_a_kill(path) == table.values
    assert len(content_of(path)) < len(table.values), "no change went to the journal"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_json_file_follows_a_change_by_itself(path: Path) -> None:
    table = Table(path)
    running = asyncio.create_task(table.file.run())
    await asyncio.sleep(0)  # it has begun
    table.put("a", "first")
    await table.file.saved()
    table.put("b", "second")
    await table.file.saved()
    await until(lambda: path.exists() and "second" in path.read_text())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_more_changes_than_the_journal_holds_make_a_json_file(
    path: Path, saved: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "SIZE_MIN", 4096)
    table = Table(path)
    table.load()
    for number in range(200):
        table.put(f"n{number}", "x" * 100)
        assert table.file.step()
        if number % 20 == 0:
            assert after_a_kill(path) == table.values
    assert journal_of(path).stat().st_size >= path.stat().st_size / 2
    assert len(content_of(path)) > 100


async def test_a_change_whose_saving_is_cut_off_by_the_stop_is_saved_by_it(path: Path) -> None:
    table = Table(path)
    for number in range(20_000):
        table.put(f"n{number}", "v")
    running = asyncio.create_task(table.file.run(0.0))
    while not table.file._saving:  # noqa: ASYNC110  # in its first turn
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    table.file.stop()
    assert len(content_of(path)) == 20_000


async def test_a_disk_that_refuses_is_said_once_a_minute_and_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "RETRY_S", 0.01)
    path.with_name("table.json.tmp").mkdir()  # cannot be written
    table = Table(path)
    with capture_logs() as logs:
        running = asyncio.create_task(table.file.run())
        for number in range(20):
            table.put(f"n{number}", "v")
            with pytest.raises(OSError):
                await table.file.saved()
        path.with_name("table.json.tmp").rmdir()
        await until(lambda: path.exists())
        await table.file.saved()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [line["log_level"] for line in logs] == ["error", "info"]
    assert logs[0]["path"] == str(path)
    assert len(Table(path).load()) == 20


def test_the_text_made_of_entries_is_the_one_that_is_made_of_the_whole() -> None:
    entries: list[Change] = [
        (("dataVersion",), {"counter": 1}),
        (("deep", "a", "x"), "line\nbreak"),
        (("deep", "a", "y"), {"z": [1, {"q": "ä"}]}),
        (("deep", "b", "x"), {}),
        (("empty",), {}),
        (("table", "n"), {"attributes": {}, "perm": 6}),
    ]
    content: dict[Any, Any] = {}
    config_journal.apply_changes(content, entries)
    text = b"".join(json_stream.pieces(entries))
    assert text == fastjson.dumps(content, indent=1)
    assert b"".join(json_stream.pieces([])) == b"{}"
    opened = {("deep",), ("deep", "a"), ("deep", "b"), ("table",)}
    assert list(json_stream.entries(text.decode(), opened)) == entries
    assert list(json_stream.entries("{}", opened)) == [((), {})]


@pytest.mark.parametrize("text", ['{"a":1', '{"a":1}x', '{"a" 1}', '{"a":1;"b":2}', "{1:2}", "{"])
def test_text_that_is_no_standard_json_has_no_entries(text: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        list(json_stream.entries(text, ()))


async def test_those_who_wait_for_a_save_are_answered_in_turn_with_other_work(path: Path) -> None:
    """Each may be a send that was held: together they would keep the loop."""
    table = Table(path)
    turns = Turns(slice_s=0.0)  # one piece of work in each turn of the loop
    done: list[str] = []

    def first_saved(error: OSError | None) -> None:
        done.append("first")
        turns.later(lambda: done.append("other"))
        table.file.when_saved(lambda error: done.append("late"), ("table", "a"))

    running = asyncio.create_task(table.file.run(turns=turns))
    await asyncio.sleep(0)
    try:
        table.put("a", "1")
        table.file.when_saved(first_saved)
        table.file.when_saved(lambda error: done.append("second"))
        await until(lambda: len(done) == 4)
        assert done == ["first", "second", "other", "late"]
        await until(lambda: table.file.is_saved)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
