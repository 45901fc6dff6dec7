"""The ledger of committed batches over a real store, where the machine itself goes down."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from store.conftest import SMALL, ManualClock, abandon, dispatch, read_all

from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.plain_batch import put_plain_rows
from aerobee.broker.services import ledger_book
from aerobee.broker.services.batch_ledger import ROW, BatchLedger
from aerobee.broker.services.config_files import json_file
from aerobee.broker.services.ledger_book import Chunk
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files import properties
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.files.record import Message

QUERY = "q-1"
ROWS = [[b"%d-%d" % (chunk, row) for row in range(5)] for chunk in range(3)]
EVERY_ROW_ONCE = Counter(row for rows in ROWS for row in rows)


class World:
    """A store and its ledger, to be opened, lost and opened again."""

    def __init__(self, root: Path, *, named: bool = False, **settings_too: Any) -> None:
        settings = StoreSettings(store_path_root_dir=str(root), **SMALL | settings_too)
        self.root, self.named = root, named
        self.store = MessageStore(settings, clock=ManualClock(), ahead=False)
        self.store.load()
        (root / "config").mkdir(exist_ok=True)
        self.ledger = BatchLedger(
            str(root / "config"),
            self.store,
            self.store.clock,
            lambda *_: None,
            put_plain=partial(put_plain_rows, self.store),
        )
        self.ledger.book.load()

    def prepare(self, attempt: int = 0) -> list[Chunk]:
        chunks = []
        for number, rows in enumerate(ROWS):
            names = [f"{QUERY}/0/0/{5 * number + row}" for row in range(5)]
            texts = [properties.pair(ROW, name) if self.named else "" for name in names]
            body = encode_batch([(0, row, text) for row, text in zip(rows, texts, strict=True)])
            chunk = Chunk(0, attempt, number, 0, 0)
            message = Message("out", 0, body)
            put = self.ledger.chunks.prepare(QUERY, 0, chunk, message, 0, named=self.named)
            chunks.append(Chunk(0, attempt, number, put.physical_offset, put.size))
        return chunks

    async def commit(self, chunks: list[Chunk]) -> int | None:
        return await self.ledger.commit(QUERY, 0, chunks, 60_000)

    def visible(self) -> Counter[bytes]:
        dispatch(self.store)
        messages = read_all(self.store, "out")
        names = {properties.get(message.properties, ROW) for message in messages}
        assert len(names) == len(messages) and None not in names
        return Counter(bytes(message.body) for message in messages)

    def as_after_a_power_failure(self, root: Path) -> None:
        """Copies what is surely on disk: of the log only what was synced."""
        shutil.copytree(self.root, root)
        synced = self.store.flushed_offset
        for file in (root / "commitlog").iterdir():
            with file.open("r+b") as opened:
                kept = max(0, min(file.stat().st_size, synced - int(file.name)))
                opened.seek(kept)
                opened.write(bytes(file.stat().st_size - kept))


@pytest.fixture(params=[False, True], ids=["named by the broker", "named by the writer"])
def worlds(request: pytest.FixtureRequest) -> Iterator[Any]:
    opened: list[World] = []

    def open_world(root: Path, **settings: Any) -> World:
        opened.append(World(root, named=request.param, **settings))
        return opened[-1]

    yield open_world
    for world in opened:
        abandon(world.store)


async def test_a_power_failure_at_any_save_of_the_ledger_costs_and_adds_no_row(
    tmp_path: Path, worlds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is not synced at each send, the ledger's file is: it must not be ahead of
    the log, or the batch can never be completed."""
    first = worlds(tmp_path / "first")
    saves: list[Path] = []
    save = json_file.save_json

    def save_and_fail(path: str, content: Any, *, disk: Any) -> None:
        save(path, content, disk=disk)
        saves.append(tmp_path / f"after-{len(saves)}")
        first.as_after_a_power_failure(saves[-1])

    monkeypatch.setattr(ledger_book, "save_json", save_and_fail)
    assert await first.commit(first.prepare()) == 15
    monkeypatch.undo()
    assert len(saves) == 2
    for root in saves:
        again = worlds(root)
        await again.ledger.run()
        await again.commit(again.prepare(attempt=1))
        assert again.visible() == EVERY_ROW_ONCE, root.name


async def test_a_cut_off_commit_whose_chunks_are_gone_is_finished_from_those_of_the_next_attempt(
    tmp_path: Path, worlds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their log file may have been removed meanwhile; rerunning the batch must then succeed."""
    world = worlds(tmp_path / "store")
    chunks = world.prepare()
    publish = world.ledger._publish

    def publish_one(batch: str, chunk: Chunk, record: Any, done: set[str]) -> Any:
        if chunk.chunk == 1:
            raise Refused(14, "no space")
        return publish(batch, chunk, record, done)

    monkeypatch.setattr(world.ledger, "_publish", publish_one)
    with pytest.raises(Refused, match="no space"):
        await world.commit(chunks)
    monkeypatch.undo()
    record_at = world.store.record_at
    gone = {chunk.offset for chunk in chunks}
    monkeypatch.setattr(
        world.store, "record_at", lambda at, size: None if at in gone else record_at(at, size)
    )
    await world.ledger.run()  # reports the pending commit
    assert await world.commit(world.prepare(attempt=1)) == 15
    assert world.visible() == EVERY_ROW_ONCE
    assert world.ledger.book.newest(QUERY) == 0


async def test_rows_above_a_lowered_max_message_size_are_committed(
    tmp_path: Path, worlds: Any
) -> None:
    """Their chunk was acknowledged: the commit would be refused forever."""
    before = worlds(tmp_path / "store")
    chunks = before.prepare()
    abandon(before.store)
    after = worlds(tmp_path / "store", max_message_size=len(ROWS[0][0]) - 1)
    assert await after.commit(chunks) == 15
    assert after.visible() == EVERY_ROW_ONCE
