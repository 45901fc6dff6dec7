"""`aerobee store snapshot`: a copy of a store that is in use, and a broker started on it."""

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from aerobee_command import aerobee
from effort import examples
from peers.daemon import Daemon
from waiting import until

from aerobee import Client, connect
from aerobee.broker.store.inspect import snapshot as module
from aerobee.testing import EmbeddedBroker

SMALL_LOG = {"mappedFileSizeCommitLog": "262144", "mappedFileSizeConsumeQueue": "20000"}


PACE_S = 0.02  # between two sends of a sender while no test waits for them


class Load:
    """Sends until its block is left; `acknowledged` holds what the broker has answered.

    At full speed only while a test waits for a number of them: each check copies, verifies
    and reads everything sent."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq
        self.acknowledged: dict[bytes, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._wanted = 0

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._send(number)) for number in range(8)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _send(self, sender: int) -> None:
        number = 0
        while True:
            number += 1
            body = b"%d-%d" % (sender, number)
            topic = f"orders-{number % 3}"
            await self._mq.send(topic, body.ljust(300, b"."), key=body.decode())
            self.acknowledged[body] = topic
            if len(self.acknowledged) >= self._wanted:
                await asyncio.sleep(PACE_S)

    async def until(self, count: int) -> None:
        self._wanted = count
        await until(lambda: len(self.acknowledged) >= count, seconds=60)


async def test_a_snapshot_under_load_holds_all_that_was_acknowledged_before(tmp_path: Path) -> None:
    with Daemon(tmp_path / "a", env=None, **SMALL_LOG) as daemon:
        names = daemon.ready()["namesrv"]
        async with connect(f"mq://{names}") as mq, Load(mq) as load:
            reminder = await mq.send("reminders", b"in an hour", delay=3600)
            await load.until(3000)
            for number in range(examples(3, share=2)):
                before = dict(load.acknowledged)
                copy = tmp_path / f"copy{number}"
                words = ("store", "snapshot", str(tmp_path / "a" / "store"), str(copy), "--json")
                made = (await aerobee(*words)).json
                assert made["running"] is True and made["linked"] > 0
                assert len(load.acknowledged) > len(before), "the broker went on meanwhile"
                await _check(tmp_path / f"b{number}", copy, before, reminder.message_id)
                await load.until(len(load.acknowledged) + 2000)
        assert daemon.stop() == 0
    await aerobee("store", "verify", str(tmp_path / "a" / "store"))


async def _check(folder: Path, copy: Path, acknowledged: dict[bytes, str], timer: str) -> None:
    await aerobee("store", "verify", str(copy))
    put_in(folder, copy)
    with Daemon(folder, env=None, **SMALL_LOG) as daemon:
        async with connect(f"mq://{daemon.ready()['namesrv']}") as mq:
            found: dict[bytes, str] = {}
            for topic in ("orders-0", "orders-1", "orders-2"):
                async for row in mq.find(topic):
                    assert row.body.rstrip(b".") not in found, "each is there once"
                    found[row.body.rstrip(b".")] = topic
            assert acknowledged.items() <= found.items()
            for body in list(acknowledged)[::500] + list(acknowledged)[-3:]:
                keyed = [row async for row in mq.find(acknowledged[body], key=body.decode())]
                assert len(keyed) == 1, body
            assert [row["msgId"] for row in await mq.admin.timers("reminders")] == [timer]
            after = await mq.send("orders-0", b"after the restore", key="after")
            assert (await mq.message(after.message_id, topic="orders-0")).body
        assert daemon.stop() == 0
    await aerobee("store", "verify", str(folder / "store"))


def put_in(folder: Path, store: Path) -> None:
    folder.mkdir()
    store.rename(folder / "store")


def link_counts(folder: Path) -> list[int]:
    return [os.stat(path).st_nlink for path in sorted(folder.iterdir())]


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


async def test_a_broker_on_the_copy_leaves_the_original_as_it_is(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 65536}
    async with EmbeddedBroker(tmp_path / "a", **settings) as broker, broker.connect() as mq:
        for number in range(400):
            await mq.send("orders", b"%d" % number + b"." * 500)
    original = tmp_path / "a" / "store"
    await aerobee("store", "snapshot", str(original), str(tmp_path / "copy"))
    before = digests(original / "commitlog")
    links = link_counts(original / "commitlog")
    assert set(links[:-2]) == {2} and links[-1] == 1
    assert tmp_path / "copy" / "abort" not in everything(tmp_path), "it was stopped in order"
    put_in(tmp_path / "b", tmp_path / "copy")
    async with EmbeddedBroker(tmp_path / "b", **settings) as broker, broker.connect() as mq:
        assert len([row async for row in mq.find("orders")]) == 400
        for number in range(400):
            await mq.send("orders", b"%d" % number + b"," * 500)
    assert digests(original / "commitlog") == before
    await aerobee("store", "verify", str(original))


async def test_progress_and_topics_are_in_the_snapshot(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path / "a") as broker, broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=7)
        await mq.admin.create_group("billing", max_retries=5)
        for number in range(10):
            await mq.send("orders", b"%d" % number)
        async with mq.consumer("orders", group="billing") as inbox:
            for _ in range(10):
                await (await inbox.get()).ack()
        await broker.restart()
        await aerobee("store", "snapshot", str(tmp_path / "a" / "store"), str(tmp_path / "b/store"))
    async with EmbeddedBroker(tmp_path / "b") as broker, broker.connect() as mq:
        assert len(await mq.queues("orders")) == 7
        [config] = (await mq.admin.group_config("billing")).values()
        assert config["retryMaxTimes"] == 5
        assert sum(row.lag for row in await mq.admin.lag("billing", "orders")) == 0


@pytest.mark.parametrize("place", ["there", "store/inside", "left"])
async def test_a_destination_that_is_not_free_is_refused(tmp_path: Path, place: str) -> None:
    async with EmbeddedBroker(tmp_path):
        pass
    for name in ("there", "left.partial"):
        os.mkdir(tmp_path / name)
    store = tmp_path / "store"
    before = everything(tmp_path)
    output = await aerobee("store", "snapshot", str(store), str(tmp_path / place), code=1)
    assert str(tmp_path / place) in output.err
    assert everything(tmp_path) == before
    await aerobee("store", "snapshot", str(tmp_path / "there"), str(tmp_path / "new"), code=1)


async def test_a_log_file_that_retention_removes_meanwhile_is_not_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EmbeddedBroker(tmp_path / "a", mappedFileSizeCommitLog=65536) as broker:
        async with broker.connect() as mq:
            for number in range(400):
                await mq.send("orders", b"%d" % number + b"." * 500)
        first, *others = [path.name for path in everything(tmp_path / "a/store/commitlog")]
        derived = module._Copying._derived

        def with_retention(copying: module._Copying) -> Iterator[str]:
            """The oldest log file is removed after it was linked."""
            os.unlink(tmp_path / "a/store/commitlog" / first)
            yield str(tmp_path / "a/store/consumequeue/orders/0/gone")  # as of a deleted topic
            yield from derived(copying)

        monkeypatch.setattr(module._Copying, "_derived", with_retention)
        made = module.snapshot(
            str(tmp_path / "a/store"), str(tmp_path / "copy"), "", lambda _: None
        )
        assert made.running and made.linked >= 2
    copied = [path.name for path in everything(tmp_path / "copy/commitlog")]
    assert copied and set(copied) <= set(others) and first not in copied
    await aerobee("store", "verify", str(tmp_path / "copy"))
