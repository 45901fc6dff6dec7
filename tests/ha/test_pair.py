"""Our slave behind our master: the log, the queues, the configuration; who may do what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from peers.in_process import Client, pull_ext, send_ext
from waiting import grown, until

from aerobee.broker.base.clock import VirtualClock
from aerobee.broker.ha.config_sync import ConfigSync
from aerobee.broker.ha.master_client import MasterClient
from aerobee.broker.net.listening import StartError
from aerobee.protocol.files import properties
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from ha.pairs import (
    in_step,
    log_bytes,
    pull_all,
    running_master,
    running_slave,
    send,
    send_many,
)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one with each round of the configuration that has ended."""
    ended: list[None] = []
    step = ConfigSync.step

    async def counted(sync: ConfigSync) -> None:
        await step(sync)
        ended.append(None)

    monkeypatch.setattr(ConfigSync, "step", counted)
    return ended


async def test_a_slave_has_the_log_of_its_master_and_serves_pulls(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        client = await Client.connect(master)
        bodies = await send_many(client, "orders", 500)
        await in_step(slave, master)
        await until(lambda: slave.broker.topics.get("orders"))
        reader = await Client.connect(slave)
        assert [bytes(message.body) for message in await pull_all(reader, "orders")] == bodies
        await reader.close()
        await client.close()
    assert log_bytes(tmp_path / "slave1") == log_bytes(tmp_path / "master")


async def test_a_slave_that_comes_later_gets_the_whole_log(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master:
        client = await Client.connect(master)
        bodies = await send_many(client, "orders", 6000, size=900)  # far more than the tail
        async with running_slave(tmp_path, master) as slave:
            await in_step(slave, master)
            await until(lambda: slave.broker.topics.get("orders"))
            reader = await Client.connect(slave)
            assert len(await pull_all(reader, "orders")) == len(bodies)
            await reader.close()
        await client.close()
    assert log_bytes(tmp_path / "slave1") == log_bytes(tmp_path / "master")


async def test_a_log_whose_first_files_are_gone_is_copied_from_where_it_begins(
    tmp_path: Path,
) -> None:
    async with running_master(tmp_path) as master:
        client = await Client.connect(master)
        await send_many(client, "orders", 500)
        files = master.broker.store.commit_log.files
        for _ in range(2):
            files.remove(files.files.pop(0))
        assert master.broker.store.min_physical_offset > 0
        async with running_slave(tmp_path, master) as slave:
            await in_step(slave, master)
            assert slave.broker.store.min_physical_offset == files.min_offset
        await client.close()
    assert log_bytes(tmp_path / "slave1") == log_bytes(tmp_path / "master")


async def test_a_slave_resumes_where_it_stopped(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master:
        client = await Client.connect(master)
        await send_many(client, "orders", 100)
        async with running_slave(tmp_path, master) as slave:
            await in_step(slave, master)
        await send_many(client, "orders", 200)
        async with running_slave(tmp_path, master) as slave:
            assert slave.broker.store.was_stopped
            await in_step(slave, master)
        await client.close()
    assert log_bytes(tmp_path / "slave1") == log_bytes(tmp_path / "master")


async def test_a_slave_finds_a_master_that_was_restarted(tmp_path: Path) -> None:
    ports: dict[str, int] = {}
    async with running_master(tmp_path) as master:
        ports = {
            "listen_port": master.broker_port,
            "namesrv_listen_port": master.namesrv_port,
            "ha_listen_port": master.broker.addresses.ha_port,
        }
        slave_runs = running_slave(tmp_path, master)
        slave = await slave_runs.__aenter__()
        client = await Client.connect(master)
        await send_many(client, "orders", 50)
        await in_step(slave, master)
        await client.close()
    async with running_master(tmp_path, **ports) as master:
        client = await Client.connect(master)
        await send_many(client, "orders", 50)
        await in_step(slave, master)
        await client.close()
        await slave_runs.__aexit__(None, None, None)
    assert log_bytes(tmp_path / "slave1") == log_bytes(tmp_path / "master")


async def test_a_slave_knows_its_master_by_the_address_of_its_log(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master:
        address = f"127.0.0.1:{master.broker.addresses.ha_port}"
        async with running_slave(tmp_path, None, ha_master_address=address) as slave:
            client = await Client.connect(master)
            await send_many(client, "orders", 20)
            await in_step(slave, master)
            await until(lambda: slave.broker.topics.get("orders"))
            await client.close()


async def test_files_of_another_length_are_refused_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_master(tmp_path) as master:
        client = await Client.connect(master)
        await send_many(client, "orders", 5)
        other = {"mapped_file_size_commit_log": 128 << 10}
        async with running_slave(tmp_path, master, **other) as slave:
            written = ""

            def is_told() -> bool:
                nonlocal written
                captured = capsys.readouterr()
                written += captured.out + captured.err
                return "set mappedFileSizeCommitLog=65536" in written

            await until(is_told)
            assert slave.broker.store.max_physical_offset == 0
        await client.close()


async def test_a_slave_does_not_follow_a_master_that_has_another_message_in_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rounds: list[None]
) -> None:
    async with running_master(tmp_path) as master:
        client = await Client.connect(master)
        await send_many(client, "orders", 5)
        await send_many(client, "fresh", 5)
        async with running_slave(tmp_path, master) as slave:
            await in_step(slave, master)
            await until(lambda: slave.broker.topics.get("fresh"))
        await client.close()
    async with running_master(tmp_path, "other") as other:  # like a master that lost its tail
        client = await Client.connect(other)
        await send_many(client, "orders", 50, size=600)
        async with running_slave(tmp_path, other) as slave:
            before = slave.broker.store.max_physical_offset
            written = ""

            def is_told() -> bool:
                nonlocal written
                captured = capsys.readouterr()
                written += captured.out + captured.err
                return "is not the master's" in written

            await until(is_told)
            assert slave.broker.store.max_physical_offset == before
            await grown(lambda: rounds, 2)
            assert slave.broker.topics.get("fresh"), "nor is its configuration taken"
            assert slave.broker.store.max_offset("fresh", 0) == 5
        await client.close()


async def test_a_master_that_stops_lets_its_slave_have_all(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        client = await Client.connect(master)
        await send_many(client, "orders", 5)
        await in_step(slave, master)
        ask = [
            client.command(RequestCode.SEND_MESSAGE_V2, send_ext("orders"), bytes(3000))
            for _ in range(2000)
        ]
        await client.ask_all(ask)
        await master.stop()
        end = master.broker.store.commit_log.max_offset or slave.broker.store.max_physical_offset
        assert slave.broker.store.max_physical_offset >= end
        await client.close()
    assert log_bytes(tmp_path / "slave1") == log_bytes(tmp_path / "master")


async def test_a_slave_is_healthy(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        assert slave.broker.store.refusals.current is not None
        assert slave.health() == ""


async def test_a_slave_refuses_what_would_change_anything(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        client = await Client.connect(slave)
        assert await send(client, "orders", b"x") == ResponseCode.SERVICE_NOT_AVAILABLE
        topic = {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "1"}
        topic |= {"writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        answer = await client.request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "from slave broker" in (answer.remark or "")
        end = {"producerGroup": "pg", "tranStateTableOffset": "0", "commitLogOffset": "0"}
        end |= {"commitOrRollback": "8"}
        answer = await client.request(RequestCode.END_TRANSACTION, end)
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert slave.broker.topics.get("orders") is None
        await client.close()


async def test_topics_groups_and_offsets_are_in_step(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        client = await Client.connect(master)
        await send_many(client, "orders", 20)
        master.broker.groups.get("billing")
        master.broker.offsets.commit("billing", "orders", 0, 7)
        await until(lambda: slave.broker.offsets.query("billing", "orders", 0) == 7)
        assert slave.broker.groups.find("billing")
        assert slave.broker.topics.get("orders") == master.broker.topics.get("orders")
        master.broker.offsets.reset("billing", "orders", 0, 3)
        await until(lambda: slave.broker.offsets.query("billing", "orders", 0) == 3)
        await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        await until(lambda: slave.broker.topics.get("orders") is None)
        assert slave.broker.store.queue_table.get("orders", 0) is None
        await until(lambda: slave.broker.offsets.query("billing", "orders", 0) == -1)
        await client.close()
    saved = json.loads((tmp_path / "slave1/store/config/topics.json").read_text())
    theirs = json.loads((tmp_path / "master/store/config/topics.json").read_text())
    assert saved == theirs


async def test_an_offset_committed_while_the_master_was_away_is_kept(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        offsets = slave.broker.offsets
        master.broker.offsets.commit("billing", "orders", 0, 7)
        await until(lambda: offsets.query("billing", "orders", 0) == 7)
        offsets.commit("billing", "orders", 0, 12)  # a client that found the slave alone
        master.broker.offsets.commit("billing", "orders", 1, 1)
        await until(lambda: offsets.query("billing", "orders", 1) == 1)
        assert offsets.query("billing", "orders", 0) == 12
        master.broker.offsets.commit("billing", "orders", 0, 9)
        await until(lambda: offsets.query("billing", "orders", 0) == 9)


async def test_progress_waits_until_the_slave_has_the_log_that_it_refers_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: list[None]
) -> None:
    """Else a promotion in between would skip messages that were never copied."""
    async with running_master(tmp_path) as master:
        client = await Client.connect(master)
        await send_many(client, "orders", 10)
        asked = 0

        async def ahead(_: MasterClient) -> tuple[int, int]:
            nonlocal asked
            asked += 1
            return 0, end + 1

        async with running_slave(tmp_path, master) as slave:
            await in_step(slave, master)
            end = master.broker.store.max_physical_offset
            monkeypatch.setattr(MasterClient, "log_bounds", ahead)
            await until(lambda: asked)
            master.broker.offsets.commit("billing", "orders", 0, 7)
            await grown(lambda: rounds, 2)
            assert slave.broker.offsets.query("billing", "orders", 0) == -1
            assert asked == 1, "what waits is not given up for something newer"
            await send_many(client, "orders", 1)
            await until(lambda: slave.broker.offsets.query("billing", "orders", 0) == 7)
        await client.close()


async def test_a_slave_delivers_nothing_by_itself_and_knows_how_far_its_master_is(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    async with (
        running_master(tmp_path, clock=clock, flush_commit_log_least_pages=0) as master,
        running_slave(tmp_path, master) as slave,
    ):
        client = await Client.connect(master)
        text = properties.encode({"UNIQ_KEY": "A" * 32, "DELAY": "3", "WAIT": "true"})
        ext = send_ext("later") | {"i": text}
        assert (await client.request(RequestCode.SEND_MESSAGE_V2, ext, b"x")).code == 0
        await in_step(slave, master)
        await clock.advance(11)
        await until(lambda: master.broker.store.max_offset("later", 0) == 1)
        await in_step(slave, master)
        await until(lambda: slave.broker.schedule.progress(3)[0] == 1)
        assert slave.broker.store.max_offset("later", 0) == 1
        await client.close()
    assert not (tmp_path / "slave1/store/timerlog").exists()
    assert not (tmp_path / "slave1/store/timerwheel").exists()


async def test_routes_show_master_and_slave_and_the_slave_when_it_is_alone(tmp_path: Path) -> None:
    async with running_master(tmp_path, "names", namesrv_listen_port=0, broker_name="n") as names:
        where = {"namesrv_addr": f"127.0.0.1:{names.namesrv_port}", "namesrv_listen_port": -1}

        def addresses() -> dict[int, str]:
            broker = names.broker.name_service.routes.broker("broker-a", "")
            return broker.addresses if broker else {}

        async with running_slave(tmp_path, names) as slave:
            ours = f"127.0.0.1:{slave.broker_port}"
            async with running_master(tmp_path, **where) as master:
                client = await Client.connect(master)
                await send_many(client, "orders", 5)
                await client.close()
                await in_step(slave, master)
                both = {0: f"127.0.0.1:{master.broker_port}", 1: ours}
                await until(lambda: addresses() == both)
                routes = names.broker.name_service.routes
                await until(lambda: routes.queues("orders"))
            await until(lambda: addresses() == {1: ours})
            assert routes.queues("orders"), "the slave can still be read from"
        await until(lambda: not addresses())
        assert not routes.queues("orders")


async def test_ha_status_tells_both_sides(tmp_path: Path) -> None:
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        client = await Client.connect(master)
        await send_many(client, "orders", 5)
        await in_step(slave, master)
        end = master.broker.store.max_physical_offset

        async def status(app: object) -> dict[str, object]:
            asking = await Client.connect(app)  # type: ignore[arg-type]
            answer = await asking.request(RequestCode.GET_BROKER_HA_STATUS, {})
            await asking.close()
            return dict(json.loads(bytes(answer.body)))

        async def is_acked() -> bool:
            links = (await status(master))["haConnectionInfo"]
            return bool(links) and links[0]["slaveAckOffset"] == end  # type: ignore[index]

        await until(is_acked)
        told = await status(master)
        assert told["master"] is True and told["inSyncSlaveNums"] == 1
        follows = (await status(slave))["haClientRuntimeInfo"]
        assert follows["maxOffset"] == end  # type: ignore[index]
        answer = await client.request(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        assert json.loads(bytes(answer.body))["table"]["brokerActive"] == "true"
        await client.close()
        client = await Client.connect(slave)
        answer = await client.request(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        assert json.loads(bytes(answer.body))["table"]["brokerActive"] == "false"
        await client.close()


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_reader_far_behind_is_sent_to_a_slave_if_that_may_be(
    tmp_path: Path, enabled: bool
) -> None:
    async with running_master(tmp_path, slave_read_enable=enabled) as master:
        client = await Client.connect(master)
        await send_many(client, "orders", 50)
        master.broker.groups.get("cg")
        answer = await client.request(RequestCode.PULL_MESSAGE, pull_ext("orders"))
        assert answer.ext["suggestWhichBrokerId"] == "0"
        master.broker.store.hot_bytes = 1000  # of the memory's 40 %
        answer = await client.request(RequestCode.PULL_MESSAGE, pull_ext("orders"))
        assert answer.ext["suggestWhichBrokerId"] == ("1" if enabled else "0")
        await client.close()


async def test_a_file_that_nobody_classed_stops_a_slave(tmp_path: Path) -> None:
    folder = tmp_path / "slave1/store/config"
    folder.mkdir(parents=True)
    (folder / "strange.json").write_text("{}")
    with pytest.raises(StartError, match=r"strange\.json"):
        async with running_slave(tmp_path, None):
            pass
