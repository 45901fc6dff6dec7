"""The ledger of the exactly-once sink: which broker commits a query's batches."""

import os
import shutil
from typing import Any

import pytest
from services.services_world import World
from services.test_batch_ledger_faults import prepare

from aerobee.broker.base.refused import Refused
from aerobee.broker.services import ledger_book
from aerobee.broker.services.batch_ledger import BatchLedger

HERE = "here"


def open_ledger(world: World, keep_days: int = 0) -> BatchLedger:
    config = str(world.root / "config")
    ledger = BatchLedger(config, world.store, world.clock, lambda *_: None, keep_days, broker=HERE)
    ledger.book.load()
    return ledger


@pytest.fixture
def ledger(world: World) -> BatchLedger:
    return open_ledger(world)


@pytest.mark.parametrize(
    ("known", "asked", "instead", "taken"),
    [
        (None, "a", "", True),
        (None, "a", "b", True),
        ("a", "a", "", True),
        ("a", "b", "", False),
        ("a", "b", "c", False),
        ("a", "b", "a", True),
    ],
)
async def test_another_home_is_noted_only_instead_of_the_known_one(
    ledger: BatchLedger, known: str | None, asked: str, instead: str, taken: bool
) -> None:
    if known:
        await ledger.note_home("q", 0, known)
    if taken:
        await ledger.note_home("q", 1, asked, instead)
    else:
        with pytest.raises(Refused, match="committed by the broker a"):
            await ledger.note_home("q", 1, asked, instead)
    assert await ledger.home_of("q") == (asked if taken else known)


async def test_a_home_that_has_handed_a_query_over_commits_no_more_of_it(
    world: World, ledger: BatchLedger
) -> None:
    await ledger.note_home("q", 0, HERE)
    chunk = prepare(ledger, "q")
    await ledger.note_home("q", 0, "a", HERE)
    with pytest.raises(Refused, match="committed by the broker a"):
        await ledger.commit("q", 0, [chunk], 60_000)
    world.dispatch()
    assert world.bodies("out") == []


async def test_a_batch_that_was_committed_here_is_handed_to_nobody(ledger: BatchLedger) -> None:
    chunk = prepare(ledger, "q")
    await ledger.commit("q", 0, [chunk], 60_000)
    with pytest.raises(Refused, match="batch 0 of q was committed here"):
        await ledger.note_home("q", 0, "a")
    await ledger.note_home("q", 1, "a")
    assert await ledger.commit("q", 0, [chunk], 60_000) is None, "it is known, not refused"


async def test_a_home_is_known_after_a_start_from_the_file_or_from_the_log(
    world: World, ledger: BatchLedger
) -> None:
    await ledger.note_home("q", 0, "a")
    assert await open_ledger(world).home_of("q") == "a"
    os.unlink(ledger.book.path)
    assert await open_ledger(world).home_of("q") == "a"
    await ledger.forget("q")
    os.unlink(ledger.book.path)
    assert await open_ledger(world).home_of("q") is None


async def test_a_damaged_note_hides_no_later_one(world: World, ledger: BatchLedger) -> None:
    notes = []
    for query in ("first", "damaged", "last"):
        notes.append(world.store.max_physical_offset)
        await ledger.note_home(query, 0, "a")
    for path in (ledger.book.path, ledger.book.path + ".bak"):
        os.unlink(path)
    world.damage(notes[1], 4, b"\xff\xff\xff\xff")
    world.stop()
    shutil.rmtree(world.root / "consumequeue")
    world.open()
    assert sorted(open_ledger(world).book.homes) == ["first", "last"]


async def test_a_slave_takes_over_its_masters_homes(world: World, ledger: BatchLedger) -> None:
    await ledger.note_home("q", 0, "a")
    slave = BatchLedger(str(world.root), world.store, world.clock, lambda *_: None)
    assert slave.book.take_over(ledger.book.entries(), 1)
    assert not slave.book.take_over(ledger.book.entries(), 1), "nothing new"
    assert slave.book.homes == ledger.book.homes


async def test_a_home_that_could_not_be_saved_is_not_known(
    ledger: BatchLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.note_home("q", 0, "a")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(ledger_book, "save_json", fail)
    for query, instead in (("q", "a"), ("other", "")):
        with pytest.raises(OSError, match="Input/output"):
            await ledger.note_home(query, 0, "b", instead)
    assert (await ledger.home_of("q"), await ledger.home_of("other")) == ("a", None)


async def test_a_home_is_forgotten_when_no_one_has_asked_for_it_for_long(world: World) -> None:
    ledger = open_ledger(world, keep_days=90)
    for query in ("running", "ended"):
        await ledger.note_home(query, 0, "a")
    for _ in range(2):
        world.advance(60 * 24 * 3600)
        assert await ledger.home_of("running") == "a"
        ledger = open_ledger(world, keep_days=90)
    await ledger.note_home("new", 0, "a")
    assert set(ledger.book.homes) == {"running", "new"}


async def test_a_former_home_knows_the_next_one_however_old_its_own_last_commit_is(
    world: World,
) -> None:
    ledger = open_ledger(world, keep_days=90)
    await ledger.commit("q", 0, [prepare(ledger, "q")], 60_000)
    await ledger.note_home("q", 1, "a")
    for _ in range(2):
        world.advance(60 * 24 * 3600)
        assert await ledger.home_of("q") == "a"
    await ledger.note_home("new", 0, "a")
    assert await ledger.home_of("q") == "a"
