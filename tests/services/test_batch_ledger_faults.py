"""The ledger of the exactly-once sink: several queries, some of whose commits fail."""

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from services.services_world import HOST, World
from waiting import until

from aerobee.broker.base.refused import Refused
from aerobee.broker.services import ledger_book
from aerobee.broker.services.batch_ledger import BatchLedger
from aerobee.broker.services.config_files.json_file import save_json
from aerobee.broker.services.ledger_book import Chunk
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.results import PutStatus, RefusedPut
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.files.record import Message
from aerobee.protocol.json import fastjson


@pytest.fixture
def ledger(world: World) -> BatchLedger:
    return open_ledger(world)


def open_ledger(world: World) -> BatchLedger:
    ledger = BatchLedger(str(world.root / "config"), world.store, world.clock, lambda *_: None)
    ledger.book.load()
    return ledger


def prepare(ledger: BatchLedger, query: str) -> Chunk:
    """A chunk with the query's name as its row."""
    body = encode_batch([(0, query.encode(), "")])
    message = Message("out", 0, body, born_host=HOST, store_host=HOST)
    result = ledger.chunks.prepare(query, 0, Chunk(0, 0, 0, 0, 0), message, 0)
    return Chunk(0, 0, 0, result.physical_offset, result.size)


def rows_out(world: World) -> list[bytes]:
    world.dispatch()
    return world.bodies("out")


async def test_commits_of_two_queries_never_overwrite_each_other(
    ledger: BatchLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[set[str]] = []

    def save(path: str, value: dict[Any, Any], *, disk: Disk) -> None:
        if not written:
            written.append(set())
            time.sleep(0.2)  # the first one is slow
        save_json(path, value, disk=disk)
        written.append(set(fastjson.loads(Path(path).read_bytes())["committed"]))

    monkeypatch.setattr(ledger_book, "save_json", save)
    first, second = prepare(ledger, "a"), prepare(ledger, "b")
    slow = asyncio.create_task(ledger.commit("a", 0, [first], 60_000))
    await until(lambda: written)
    await ledger.commit("b", 0, [second], 60_000)
    await slow
    assert written[-1] == {"a", "b"}
    for earlier, later in pairwise(written):
        assert earlier <= later, "what was committed is not any more"


async def test_a_commit_that_is_not_on_all_in_sync_replicas_is_refused_and_finished_later(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "store", etcd_endpoints="http://127.0.0.1:2379", broker_id=1)
    ledger, answers = open_ledger(world), [PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT]
    chunk = prepare(ledger, "a")
    world.store.wait_for_copies(lambda _end, told: told(answers.pop(0)))
    with pytest.raises(Refused, match="in-sync replicas"):
        await ledger.commit("a", 0, [chunk], 60_000)
    assert ledger.book.newest("a") == -1
    answers.append(PutStatus.PUT_OK)
    await ledger.commit("a", 0, [chunk], 60_000)
    assert ledger.book.newest("a") == 0
    assert rows_out(world) == [b"a"], "published once"
    world.close_quietly()


async def test_one_commit_that_cannot_be_finished_at_the_start_stops_no_other(
    world: World, ledger: BatchLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = {query: prepare(ledger, query) for query in ("a", "b")}
    refused = RefusedPut(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
    put = world.store.put_batch

    def put_no_rows(messages: list[Message], **options: Any) -> Any:
        return refused if messages[0].topic == "out" else put(messages, **options)

    monkeypatch.setattr(world.store, "put_batch", put_no_rows)
    for query, chunk in chunks.items():
        with pytest.raises(Refused, match="disk is full"):
            await ledger.commit(query, 0, [chunk], 60_000)
    monkeypatch.undo()
    again = open_ledger(world)
    calls: list[str] = []

    def fail_once(path: str, value: dict[Any, Any], *, disk: Disk) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")
        save_json(path, value, disk=disk)

    monkeypatch.setattr(ledger_book, "save_json", fail_once)
    await again.run()
    assert (again.book.newest("a"), again.book.newest("b")) == (-1, 0)
    await again.run()
    assert again.book.newest("a") == 0
    assert sorted(rows_out(world)) == [b"a", b"b"]
