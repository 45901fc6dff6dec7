"""The exactly-once sink over a change of masters: a batch that is run again comes once."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import Client
from waiting import until

from aerobee.broker.base.clock import VirtualClock
from aerobee.broker.services.batch_ledger import BatchLedger
from aerobee.broker.services.ledger_book import Chunk
from aerobee.broker.services.ledger_log import LEDGER_TOPIC
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files.batch import encode_batch
from aerobee.protocol.files.record import Message, decode_records
from aerobee.protocol.wire.sink_codes import (
    SINK_COMMIT,
    SINK_FORGET,
    SINK_HOME,
    SINK_PREPARE,
    SINK_STATE,
)
from ha.pairs import in_step, pull_all, running_master, running_slave
from ha.test_promotion import promote, until_master

QUERY = "q-1"
BATCHES = 3
EVERY_ROW_ONCE = Counter(
    b"%d-%d-%d" % (batch, chunk, row)
    for batch in range(BATCHES)
    for chunk in range(2)
    for row in range(3)
)


# --- a log that ends anywhere


class Broker:
    """A store and its ledger."""

    def __init__(self, root: Path, cut_to: int | None = None) -> None:
        settings = StoreSettings(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=64 << 10,
            mapped_file_size_consume_queue=20 * 100,
            disk_guard_enable=False,
        )
        self.store = MessageStore(settings, clock=VirtualClock(), ahead=False)
        self.store.load(cut_to=cut_to)
        (root / "config").mkdir(exist_ok=True)
        folder = str(root / "config")
        self.ledger = BatchLedger(folder, self.store, self.store.clock, lambda *_: None)

    async def run_batch(self, batch: int, attempt: int) -> None:
        """As Spark does: prepare all, then commit."""
        chunks = []
        for number in range(2):
            rows = [b"%d-%d-%d" % (batch, number, row) for row in range(3)]
            body = encode_batch([(0, row, "") for row in rows])
            chunk = Chunk(0, attempt, number, 0, 0)
            put = self.ledger.chunks.prepare(QUERY, batch, chunk, Message("out", 0, body), 0)
            chunks.append(Chunk(0, attempt, number, put.physical_offset, put.size))
        await self.ledger.commit(QUERY, batch, chunks, 60_000)

    def rows(self) -> Counter[bytes]:
        while self.store.reput.step():
            pass
        store = self.store
        found: Counter[bytes] = Counter()
        for number in range(store.max_offset("out", 0)):
            result = store.read_queue("out", 0, number, 1, max_bytes=1 << 20)
            for view in result.views:
                found.update(bytes(message.body) for message in decode_records(bytes(view)))
            result.release()
        return found


def record_starts(store: MessageStore) -> list[int]:
    starts: list[int] = []
    before = 1 << 62
    while (last := store.log_tail(before).record) is not None:
        starts.append(last[0])
        before = last[0]
    return sorted(starts)


@pytest.fixture
async def old_master(tmp_path: Path) -> Path:
    broker = Broker(tmp_path / "old")
    broker.ledger.book.load()
    for batch in range(BATCHES):
        await broker.run_batch(batch, 0)
    assert broker.rows() == EVERY_ROW_ONCE
    broker.store.close()
    return tmp_path / "old"


@pytest.mark.parametrize("own_file", [False, True], ids=["a slave", "an old master that is cut"])
async def test_a_replica_whose_log_ends_anywhere_publishes_every_row_once(
    tmp_path: Path, old_master: Path, own_file: bool
) -> None:
    """It has the log up to some record, and becomes the master. Spark runs the batch again that it
    got no answer for, and those that follow."""
    broker = Broker(old_master)
    ends = [*record_starts(broker.store)[1:], broker.store.max_physical_offset]
    broker.store.close()
    assert len(ends) > 20
    for number, end in enumerate(ends):
        root = tmp_path / f"new{number}"
        shutil.copytree(old_master, root)
        if own_file:
            before = Broker(root)
            before.ledger.book.take_back(end)
            before.store.close()
        else:
            shutil.rmtree(root / "config")
        broker = Broker(root, cut_to=end)
        broker.ledger.book.load()
        await broker.ledger.run()
        for batch in range(broker.ledger.book.newest(QUERY) + 1, BATCHES):
            await broker.run_batch(batch, 1)
        assert broker.rows() == EVERY_ROW_ONCE, f"the log ended at {end}"
        assert broker.ledger.book.newest(QUERY) == BATCHES - 1
        broker.store.close()
        shutil.rmtree(root)


# --- brokers


async def prepared(client: Client, batch: int, attempt: int = 0) -> list[list[int]]:
    body = encode_batch([(0, b"%d" % batch, "")])
    ext = {"query": QUERY, "batch": str(batch), "partition": "0", "attempt": str(attempt)}
    ext |= {"chunk": "0", "topic": "out", "queueId": "0", "bornTimestamp": "1"}
    answer = await client.request(SINK_PREPARE, ext | {"producerGroup": "spark"}, body)
    assert answer.code == 0, answer
    if answer.ext.get("committed"):
        return []
    return [[0, attempt, 0, int(answer.ext["offset"]), int(answer.ext["size"])]]


async def committed(client: Client, batch: int, chunks: list[list[int]]) -> Any:
    ext = {"query": QUERY, "batch": str(batch), "timeoutMs": "60000"}
    answer = await client.request(SINK_COMMIT, ext, json.dumps({"chunks": chunks}).encode())
    assert answer.code == 0, answer
    return answer.ext


async def test_a_promoted_slave_knows_what_was_committed(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master:
        slave_runs = running_slave(tmp_path, master)
        slave = await slave_runs.__aenter__()
        client = await Client.connect(master)
        for batch in range(3):
            await committed(client, batch, await prepared(client, batch))
        await in_step(slave, master)
        await until(lambda: slave.broker.batch_ledger.book.newest(QUERY) == 2)
        await committed(client, 3, await prepared(client, 3))  # of which only the log tells
        await in_step(slave, master)
        await until(lambda: slave.broker.topics.get("out"))
        await client.close()
        client = await Client.connect(slave)
        for code in (SINK_FORGET, SINK_HOME):  # its log is its master's
            ext = {"query": QUERY, "batch": "4", "topic": "out", "home": "a"}
            answer = await client.request(code, ext)
            assert "send to its master" in (answer.remark or "")
        await client.close()
    await promote(slave)
    await until_master(slave)
    client = await Client.connect(slave)
    answer = await client.request(SINK_STATE, {"query": QUERY})
    assert answer.ext["batch"] == "3"
    assert await committed(client, 3, []) == {"committed": "true"}
    await committed(client, 4, await prepared(client, 4))
    bodies = [bytes(message.body) for message in await pull_all(client, "out")]
    assert bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert (await client.request(SINK_FORGET, {"query": QUERY})).code == 0
    assert slave.broker.topics.get(LEDGER_TOPIC) is None
    await client.close()
    await slave_runs.__aexit__(None, None, None)


async def test_what_a_slave_was_told_outlives_the_log(tmp_path: Path) -> None:
    """Commits that are older than the log are in the slave's file."""
    broker = Broker(tmp_path / "slave")
    broker.ledger.book.load_file()
    told = [{"query": "old", "batch": 7, "committedAt": 5, "committing": False}]
    assert broker.ledger.book.take_over(told, 0)
    assert not broker.ledger.book.take_over(told, 0), "nothing new"
    await broker.ledger.book.save()
    broker.store.close()
    broker = Broker(tmp_path / "slave")
    broker.ledger.book.load()
    assert broker.ledger.book.newest("old") == 7
    broker.store.close()
