"""Bugs of RocketMQ's replication, by the number of their issue; each with the bug planted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from peers.in_process import Client, pull_ext, send_ext
from store.rmq_bugs import story_of
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.ha.copies import Copies, Who
from aerobee.broker.ha.sender import Sender
from aerobee.broker.handlers.pull.pull import Pulls
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.results import PutStatus
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from ha.pairs import in_step, pull_all, running_master, running_slave, send_many
from ha.test_stream import Asked
from ha.test_sync_master import FakeSlave, waiting

Patch = pytest.MonkeyPatch
Peer = TypeVar("Peer", Client, FakeSlave)


@asynccontextmanager
async def closing(connecting: Awaitable[Peer]) -> AsyncIterator[Peer]:
    """Closed also when the test fails."""
    peer = await connecting
    try:
        yield peer
    finally:
        await peer.close()


async def test_rmq_2181_a_slave_that_is_behind_moves_no_reader(tmp_path: Path) -> None:
    """A reader that comes from the master is past the slave's end; it must not be reset to the
    end or to 0: it would get messages again."""
    async with (
        running_master(tmp_path) as master,
        running_slave(tmp_path, master) as slave,
        closing(Client.connect(master)) as client,
        closing(Client.connect(slave)) as reader,
    ):
        await send_many(client, "orders", 20)
        await in_step(slave, master)
        await until(lambda: slave.broker.topics.get("orders") is not None)
        for queue_id, offset in ((0, 21), (0, 500), (1, 500)):
            ext = pull_ext("orders", queue_id, offset)
            answer = await reader.request(RequestCode.PULL_MESSAGE, ext)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert answer.ext["nextBeginOffset"] == str(offset)
            assert answer.ext["suggestWhichBrokerId"] == "0"
        slave.broker.store.queue_table.table["orders", 0].min_offset = 5  # its disk was full
        answer = await reader.request(RequestCode.PULL_MESSAGE, pull_ext("orders", 0, 3))
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY  # at the master, which has them
        assert answer.ext["nextBeginOffset"] == "3"
        answer = await client.request(RequestCode.PULL_MESSAGE, pull_ext("orders", 0, 500))
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED  # a master knows where its queue ends
        assert answer.ext["nextBeginOffset"] == "20"


def move_readers_at_a_slave(patch: Patch) -> None:
    patch.setattr(Pulls, "_not_moved", lambda self, status: ResponseCode.PULL_OFFSET_MOVED)


async def test_rmq_3388_a_slave_whose_part_of_the_log_is_gone_gets_that_answer(
    tmp_path: Path,
) -> None:
    """A slave was down until the master had removed the next bytes it needs: with heartbeats alone
    it would hang forever, and sends would get SLAVE_NOT_AVAILABLE."""
    async with (
        running_master(tmp_path, ha_send_heartbeat_interval=50) as master,
        closing(Client.connect(master)) as client,
    ):
        await send_many(client, "orders", 400)
        files = master.broker.store.commit_log.files
        assert len(files.files) > 2
        files.remove(files.files.pop(0))
        async with closing(FakeSlave.connect(master)) as slave:
            await slave.report(500)
            assert await slave.reader.read(12) == b"", "the master ends the connection"


def only_heartbeats(patch: Patch) -> None:
    real = Sender.begin

    def begin(self: Sender, end: int, log_start: int, log_end: int) -> None:
        if 0 < end < log_start:
            self.position = self.acked = log_end
        else:
            real(self, end, log_start, log_end)

    patch.setattr(Sender, "begin", begin)


def acked(master: AppBroker, end: int) -> bool:
    return any(link["slaveAckOffset"] >= end for link in master.broker.replication.slaves())


async def test_rmq_1535_a_large_message_is_waited_for_however_many_pieces_it_has(
    tmp_path: Path,
) -> None:
    """A message goes to the slave in pieces, each of which is acknowledged: many pieces must not
    time out."""
    settings: dict[str, Any] = {
        "ha_transfer_batch_size": 4096,
        "mapped_file_size_commit_log": 1 << 20,
        "broker_role": "SYNC_MASTER",
        "slave_timeout": 60_000,
    }
    async with (
        running_master(tmp_path, **settings) as master,
        closing(Client.connect(master)) as client,
        closing(FakeSlave.connect(master)) as slave,
    ):
        await slave.report(0)
        await until(lambda: waiting(master))
        asked = client.request(RequestCode.SEND_MESSAGE_V2, send_ext("orders"), bytes(200_000))
        answer = asyncio.create_task(asked)
        pieces = has = 0
        while has < 200_000:
            head = await slave.reader.readexactly(12)
            size = int.from_bytes(head[8:], "big")
            has += len(await slave.reader.readexactly(size))
            pieces += size > 0
            await slave.report(has)
            await until(partial(acked, master, has))
        assert (await answer).code == 0 and pieces > 40


async def test_rmq_1244_acks_for_others_are_no_timeout_for_the_one_that_waits(
    tmp_path: Path,
) -> None:
    """Most puts do not wait; their acks must not fail the one that does."""
    asked = Asked(behind_max=10_000)
    asked.copies.acked("link", 1, 0)
    asked.put(1000)
    for end in range(10, 1000, 10):
        asked.copies.acked("link", 1, end)
    assert asked.told == []
    asked.copies.acked("link", 1, 1010)
    assert asked.told == [(1000, PutStatus.PUT_OK)]


def give_up_after_five_acks(patch: Patch) -> None:
    real, acks = Copies.acked, [0]

    def acked(self: Copies, link: object, who: Who, end: int) -> None:
        real(self, link, who, end)
        acks[0] += len(self.waiters) > 0
        if acks[0] >= 5:
            for _, _, callback in self.waiters._waiting:
                callback(PutStatus.FLUSH_SLAVE_TIMEOUT)
            self.waiters._waiting.clear()

    patch.setattr(Copies, "acked", acked)


async def test_rmq_7264_a_topic_that_was_deleted_and_recreated_is_so_at_a_slave(
    tmp_path: Path,
) -> None:
    """The slave may miss the state in between: its queue restarts with the new records."""
    async with (
        running_master(tmp_path) as master,
        running_slave(tmp_path, master) as slave,
        closing(Client.connect(master)) as client,
        closing(Client.connect(slave)) as reader,
    ):
        await send_many(client, "orders", 5)
        await in_step(slave, master)
        await until(lambda: slave.broker.topics.get("orders") is not None)
        answer = await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        assert answer.code == 0
        bodies = await send_many(client, "orders", 3, size=100)
        await in_step(slave, master)
        assert [bytes(message.body) for message in await pull_all(reader, "orders")] == bodies


def keep_entries_of_the_deleted_topic(patch: Patch) -> None:
    real = ConsumeQueue._seek

    def seek(self: ConsumeQueue, queue_offset: int) -> None:
        real(self, max(queue_offset, self.max_offset))

    patch.setattr(ConsumeQueue, "_seek", seek)


BUGS: dict[int, Callable[[Patch], None]] = {
    2181: move_readers_at_a_slave,
    3388: only_heartbeats,
    1535: give_up_after_five_acks,
    1244: give_up_after_five_acks,
    7264: keep_entries_of_the_deleted_topic,
}


@pytest.mark.parametrize("number", BUGS)
async def test_its_own_bug_breaks_it(number: int, tmp_path: Path, monkeypatch: Patch) -> None:
    BUGS[number](monkeypatch)
    story: Callable[[Path], Awaitable[None]] = story_of(number, globals())  # type: ignore[assignment]
    with pytest.raises(AssertionError):
        await story(tmp_path)
