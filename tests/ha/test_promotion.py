"""A slave becomes the master, by a person's word; the old master comes back and is cut."""

from __future__ import annotations

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import Client, send_ext
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.ha.config_sync import ConfigSync
from aerobee.protocol.files import properties
from aerobee.protocol.files.epoch_file import decode_epochs
from aerobee.protocol.names import SCHEDULE_TOPIC
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.replica_codes import PROMOTE
from ha.pairs import (
    in_step,
    log_bytes,
    pull_all,
    running_master,
    running_slave,
    send,
    send_many,
)

NAMES = {"namesrv_listen_port": 0}  # each replica can be asked where the master is


async def promote(app: AppBroker, **ext: str) -> Any:
    client = await Client.connect(app)
    answer = await client.request(PROMOTE, ext)
    await client.close()
    return answer


async def until_master(app: AppBroker) -> None:
    await until(lambda: app.is_ready and not app.settings.is_slave, 30)


def epochs_of(folder: Path) -> list[tuple[int, int]]:
    data = (folder / "store/epochFileCheckpoint").read_bytes()
    return [(epoch[0], epoch[1]) for epoch in decode_epochs(data)]


async def two_logs_that_differ(folder: Path, extra: int) -> tuple[int, list[bytes]]:
    """A slave that has stopped, and a master that has taken so many more messages since; where the
    slave's log ends, and what both have."""
    async with running_master(folder) as master:
        client = await Client.connect(master)
        async with running_slave(folder, master) as slave:
            bodies = await send_many(client, "orders", 60)
            master.broker.groups.get("billing")
            master.broker.offsets.commit("billing", "orders", 0, 60)
            await in_step(slave, master)
            await until(lambda: slave.broker.offsets.query("billing", "orders", 0) == 60)
            end = slave.broker.store.max_physical_offset
        await send_many(client, "orders", extra)
        await send_many(client, "lost", 3)
        master.broker.offsets.commit("billing", "orders", 0, 60 + extra)
        await client.close()
    return end, bodies


async def test_a_promoted_slave_takes_messages_in_a_new_epoch(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master:
        slave_runs = running_slave(tmp_path, master)
        slave = await slave_runs.__aenter__()
        client = await Client.connect(master)
        bodies = await send_many(client, "orders", 100)
        await in_step(slave, master)
        await until(lambda: slave.broker.topics.get("orders"))
        await client.close()
    end, port = slave.broker.store.max_physical_offset, slave.broker_port
    answer = await promote(slave)
    assert (answer.code, answer.ext) == (0, {"epoch": "2", "startOffset": str(end)})
    await until_master(slave)
    assert slave.broker_port == port
    client = await Client.connect(slave)
    assert await send(client, "orders", b"after") == 0
    messages = await pull_all(client, "orders")
    assert [bytes(message.body) for message in messages] == [*bodies, b"after"]
    assert [message.queue_offset for message in messages] == list(range(101))
    answer = await client.request(RequestCode.GET_BROKER_EPOCH_CACHE, {})
    told = json.loads(bytes(answer.body))
    log_end = slave.broker.store.max_physical_offset
    assert told["epochList"] == [
        {"endOffset": end, "epoch": 1, "startOffset": 0},
        {"endOffset": log_end, "epoch": 2, "startOffset": end},
    ]
    assert (told["brokerId"], told["brokerName"], told["maxOffset"]) == (0, "broker-a", log_end)
    await client.close()
    await slave_runs.__aexit__(None, None, None)
    assert epochs_of(tmp_path / "slave1") == [(1, 0), (2, end)]


async def test_offsets_of_messages_that_a_promoted_slave_never_got_are_taken_back(
    tmp_path: Path,
) -> None:
    async with running_master(tmp_path) as master:
        client = await Client.connect(master)
        await send_many(client, "orders", 5)
        async with running_slave(tmp_path, master) as slave:
            await in_step(slave, master)
            slave.broker.offsets.commit("billing", "orders", 0, 12)
        await client.close()
    async with running_slave(tmp_path, None) as slave:
        assert slave.broker.offsets.query("billing", "orders", 0) == 12
        await promote(slave)
        await until_master(slave)
        assert slave.broker.offsets.query("billing", "orders", 0) == 5


async def test_a_promoted_slave_is_the_master_after_a_restart_too(tmp_path: Path) -> None:
    async with running_slave(tmp_path, None) as slave:
        assert (await promote(slave, brokerRole="SYNC_MASTER")).code == 0
        await until_master(slave)
    async with running_slave(tmp_path, None) as slave:
        assert slave.settings.broker_role == "SYNC_MASTER"
        assert slave.settings.broker_id == 0
    assert epochs_of(tmp_path / "slave1") == [(2, 0)], "its epoch began once"


async def test_an_operator_who_changes_the_role_wins(tmp_path: Path) -> None:
    async with running_slave(tmp_path, None) as slave:
        await promote(slave)
        await until_master(slave)
    async with running_slave(tmp_path, None, broker_role="ASYNC_MASTER") as broker:
        assert broker.settings.broker_role == "ASYNC_MASTER"
    async with running_slave(tmp_path, None) as broker:
        assert broker.settings.is_slave


async def test_a_slave_that_its_settings_make_a_master_begins_an_epoch(tmp_path: Path) -> None:
    end, _ = await two_logs_that_differ(tmp_path, 1)
    async with running_slave(tmp_path, None, broker_role="ASYNC_MASTER") as broker:
        assert broker.broker.store.max_physical_offset == end
    assert epochs_of(tmp_path / "slave1") == [(1, 0), (2, end)]


async def test_a_slave_whose_master_is_up_is_not_promoted_unless_forced(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        await in_step(slave, master)
        await until(lambda: slave.broker.replication.master()["masterAddr"])
        answer = await promote(slave)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"127.0.0.1:{master.broker_port}, which is up: stop it first" in answer.remark
        assert slave.settings.is_slave
        assert (await promote(slave, force="true")).code == 0
        await until_master(slave)
        answer = await promote(slave)
        assert "ASYNC_MASTER already, in epoch 2" in answer.remark


async def test_a_promoted_slave_has_the_kind_of_its_master(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path, broker_role="SYNC_MASTER") as master,
        running_slave(tmp_path, master) as slave,
    ):
        await until(lambda: slave.broker.replication.master()["masterAddr"])
        await promote(slave, force="true")
        await until_master(slave)
        assert slave.settings.broker_role == "SYNC_MASTER"


@pytest.mark.parametrize("extra", [1, 300], ids=["in one file", "over files"])
async def test_a_returning_master_is_cut_where_the_new_one_began(
    tmp_path: Path, extra: int
) -> None:
    end, bodies = await two_logs_that_differ(tmp_path, extra)
    async with running_slave(tmp_path, None, **NAMES) as new:
        await promote(new)
        await until_master(new)
        client = await Client.connect(new)
        bodies += await send_many(client, "orders", 40, size=333)
        old_runs = running_slave(
            tmp_path, new, 2, store_path_root_dir=str(tmp_path / "master/store")
        )
        async with old_runs as old:
            await in_step(old, new, 30)
            reader = await Client.connect(old)
            messages = await pull_all(reader, "orders")
            assert [bytes(message.body) for message in messages] == bodies
            assert [message.queue_offset for message in messages] == list(range(len(bodies)))
            assert not await pull_all(reader, "lost")
            assert old.broker.offsets.query("billing", "orders", 0) == 60
            await reader.close()
        await client.close()
    assert log_bytes(tmp_path / "master") == log_bytes(tmp_path / "slave1")
    assert epochs_of(tmp_path / "master") == epochs_of(tmp_path / "slave1") == [(1, 0), (2, end)]


async def test_roles_exchanged_again_and_again_lose_nothing_that_was_copied(tmp_path: Path) -> None:
    """Each time the master stops, the slave is promoted, and the old master follows."""
    folders = [tmp_path / "one", tmp_path / "two"]
    count = 0

    def run(folder: Path, master: AppBroker | None, broker_id: int) -> Any:
        values = {"store_path_root_dir": str(folder / "store")} | NAMES
        return running_slave(tmp_path, master, broker_id, **values)

    runs = run(folders[0], None, 1)
    master = await runs.__aenter__()
    await promote(master)
    await until_master(master)
    for turn in range(3):
        slave_runs = run(folders[(turn + 1) % 2], master, (turn + 1) % 2 + 1)
        slave = await slave_runs.__aenter__()
        client = await Client.connect(master)
        count += len(await send_many(client, "orders", 50))
        await in_step(slave, master, 30)
        await until(partial(slave.broker.topics.get, "orders"))
        await client.close()
        await runs.__aexit__(None, None, None)
        assert (await promote(slave)).code == 0
        await until_master(slave)
        runs, master = slave_runs, slave
    client = await Client.connect(master)
    messages = await pull_all(client, "orders")
    assert [message.queue_offset for message in messages] == list(range(count))
    assert master.roles.epoch == 5
    await client.close()
    await runs.__aexit__(None, None, None)


async def test_a_delay_delivered_into_the_cut_part_is_delivered_by_the_new_master(
    tmp_path: Path,
) -> None:
    delayed = properties.encode({"UNIQ_KEY": "A" * 32, "DELAY": "1", "WAIT": "true"})  # 1 s
    async with running_master(tmp_path) as master:
        client = await Client.connect(master)
        async with running_slave(tmp_path, master) as slave:
            await send_many(client, "later", 1)
            ext = send_ext("later") | {"i": delayed}
            answer = await client.request(RequestCode.SEND_MESSAGE_V2, ext, b"delayed")
            assert answer.code == 0
            await in_step(slave, master)
            assert slave.broker.store.max_offset(SCHEDULE_TOPIC, 0) == 1
        await until(lambda: master.broker.store.max_offset("later", 0) == 2, 30)
        await client.close()
    async with running_slave(tmp_path, None, **NAMES) as new:
        await promote(new)
        await until_master(new)
        await until(lambda: new.broker.store.max_offset("later", 0) == 2, 30)
        old_runs = running_slave(
            tmp_path, new, 2, store_path_root_dir=str(tmp_path / "master/store")
        )
        async with old_runs as old:
            await in_step(old, new, 30)
            assert old.broker.store.max_offset("later", 0) == 2
            assert (await promote(old, force="true")).code == 0
            await until_master(old)
            assert old.broker.store.max_offset("later", 0) == 2, "not delivered again"


async def test_a_delay_delivered_by_the_master_and_not_yet_noted_here_is_not_delivered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_: ConfigSync) -> None: ...

    monkeypatch.setattr(ConfigSync, "step", nothing)
    delayed = properties.encode({"UNIQ_KEY": "A" * 32, "DELAY": "1", "WAIT": "true"})  # 1 s
    async with running_master(tmp_path) as master:
        client = await Client.connect(master)
        async with running_slave(tmp_path, master) as slave:
            ext = send_ext("later") | {"i": delayed}
            answer = await client.request(RequestCode.SEND_MESSAGE_V2, ext, b"delayed")
            assert answer.code == 0
            await until(lambda: master.broker.store.max_offset("later", 0) == 1, 30)
            await in_step(slave, master)
        await client.close()
    async with running_slave(tmp_path, None) as new:
        await promote(new)
        await until_master(new)
        await until(lambda: new.broker.schedule.progress(1) == (1, 1))
        assert new.broker.store.max_offset("later", 0) == 1


async def test_a_slave_that_is_promoted_when_its_log_is_to_be_cut_keeps_it(tmp_path: Path) -> None:
    end, _ = await two_logs_that_differ(tmp_path, 1)
    async with running_slave(tmp_path, None) as slave:
        slave._role_change.cut_log(0)
        slave._role_change.promote("ASYNC_MASTER", force=True)
        await until_master(slave)
        assert slave.broker.store.max_physical_offset == end
    assert epochs_of(tmp_path / "slave1") == [(1, 0), (2, end)]


async def test_a_broker_that_does_not_start_again_says_so_whatever_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(_: AppBroker) -> None:
        raise RuntimeError("a mistake of ours")

    async with running_slave(tmp_path, None) as slave:
        monkeypatch.setattr(AppBroker, "_build", mistaken)
        await promote(slave)
        await until(lambda: "RuntimeError: a mistake of ours" in slave.health())


async def test_a_stop_in_the_middle_of_a_promotion_ends_the_broker(tmp_path: Path) -> None:
    for pause in (0, 0.051, 0.1, 0.2):
        async with running_slave(tmp_path, None, 1) as slave:
            await promote(slave)
            await asyncio.sleep(pause)
        assert not slave.is_ready
        async with running_slave(tmp_path, None, broker_role="ASYNC_MASTER") as again:
            assert again.is_ready, "the folder is free, and in order"
            before = len(again.settings.listeners)
            await again._restart(None)
            assert len(again.settings.listeners) == before, "what was told of changes is gone"
        shutil.rmtree(tmp_path / "slave1")
