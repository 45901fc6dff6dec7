"""Everybody finds the new master: name service, SDK; the old one takes no more messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import Client
from peers.tools import free_port
from waiting import until

from aerobee import connect
from aerobee.broker.base.clock import Clock, VirtualClock
from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.net.addresses import Addresses
from aerobee.broker.services.name_service.route_data import Local, NewerMaster, Registration
from aerobee.broker.services.name_service.routes import Routes
from aerobee.broker.services.registration import Registrar
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.services.topics.table import Topics
from aerobee.broker.settings import Settings
from ha.pairs import in_step, running_master, running_slave, send, send_many
from ha.test_promotion import promote, until_master

NO_NAMES = {"namesrv_listen_port": -1}


@asynccontextmanager
async def names(folder: Path) -> AsyncIterator[AppNameServer]:
    """A name server that stays up."""
    settings = Settings(namesrv_listen_port=0, store_path_root_dir=str(folder / "names"))
    app = AppNameServer(settings)
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


def slave_of(folder: Path, served: AppNameServer, broker_id: int = 1) -> Any:
    where = f"127.0.0.1:{served.namesrv_port}"
    return running_slave(folder, None, broker_id, namesrv_addr=where)


def address_of(app: AppNameServer, number: int = 0) -> str | None:
    broker = app.name_service.routes.broker("broker-a", "")
    return broker.addresses.get(number) if broker else None


def registration(
    address: str, epoch: int, name: str = "a", broker_id: int = 0, ha: str = ""
) -> Registration:
    version = {"counter": 1, "stateVersion": epoch, "timestamp": 1}
    topics = {topic: TopicConfig(topic, 1, 1) for topic in ("one", "two")}
    return Registration("c", name, address, broker_id, ha, version, topics)


def test_a_name_service_refuses_a_master_of_a_smaller_epoch() -> None:
    routes = Routes(VirtualClock())
    routes.register(registration("new:1", 3), "link")
    with pytest.raises(NewerMaster, match=r"new:1 is the master of a in epoch 3, later than 2"):
        routes.register(registration("old:1", 2), "other link")
    assert routes.broker("a", "").addresses == {0: "new:1"}  # type: ignore[union-attr]
    routes.register(registration("old:1", 2, broker_id=1), "other link")
    routes.register(registration("newest:1", 4), "third link")
    assert routes.broker("a", "").addresses == {  # type: ignore[union-attr]
        0: "newest:1",
        1: "old:1",
    }


def test_masters_without_epochs_replace_each_other_as_in_4_9() -> None:
    routes = Routes(VirtualClock())
    routes.register(registration("one:1", 0), "link")
    routes.register(registration("two:1", 0), "other link")
    assert routes.broker("a", "").addresses == {0: "two:1"}  # type: ignore[union-attr]


def test_a_smaller_epoch_is_refused_while_the_later_master_is_away() -> None:
    routes = Routes(VirtualClock())
    routes.register(registration("new:1", 3), "link")
    routes.connection_closed("link")
    with pytest.raises(NewerMaster, match=r"one that is away now was the master of a in epoch 3"):
        routes.register(registration("old:1", 2), "other link")
    assert routes.broker("a", "") is None
    routes.register(registration("new:1", 2), "link")  # its folder was restored from a copy
    assert routes.broker("a", "").addresses == {0: "new:1"}  # type: ignore[union-attr]


def test_the_routes_of_slaves_stay_while_their_master_is_away() -> None:
    routes = Routes(VirtualClock())
    routes.register(registration("one:1", 1), "link")
    routes.register(registration("two:1", 1, broker_id=1), "other link")
    routes.connection_closed("link")
    assert routes.broker("a", "").addresses == {1: "two:1"}  # type: ignore[union-attr]
    assert [data.broker_name for data in routes.queues("one")] == ["a"]
    routes.connection_closed("other link")
    assert routes.queues("one") == []


def test_a_superseded_masters_own_name_service_shows_the_later_one() -> None:
    heard: list[tuple[int, str]] = []
    topics = {topic: TopicConfig(topic, 8, 8) for topic in ("one", "mine")}
    local = Local("c", "a", lambda: topics, lambda: 6, 0, lambda: 2, lambda *t: heard.append(t))
    routes = Routes(VirtualClock(), local)
    with pytest.raises(ValueError, match="the broker of this process is called a too"):
        routes.register(registration("twin:1", 2), "link")
    assert routes.broker("a", "here:1").addresses == {0: "here:1"}  # type: ignore[union-attr]
    routes.register(registration("new:1", 3), "link")
    assert heard == [(3, "new:1")]
    assert routes.broker("a", "here:1").addresses == {0: "new:1"}  # type: ignore[union-attr]
    assert [broker.addresses for broker in routes.brokers("here:1")] == [{0: "new:1"}]
    assert [data.write_queue_nums for data in routes.queues("one")] == [1]
    assert "mine" not in routes.topics()
    with pytest.raises(NewerMaster, match="new:1 is the master of a in epoch 3, later than 1"):
        routes.register(registration("old:1", 1), "other link")
    routes.connection_closed("link")
    assert routes.broker("a", "here:1") is None  # it accepts no messages, so it is not listed again


def test_a_master_beside_its_own_name_service_refuses_an_earlier_one() -> None:
    routes = Routes(VirtualClock(), Local("c", "a", dict, lambda: 6, 0, lambda: 2))
    with pytest.raises(NewerMaster, match="the broker of this process is the master of a"):
        routes.register(registration("old:1", 1), "link")


async def test_clients_of_a_superseded_masters_name_service_reach_the_later_one(
    tmp_path: Path,
) -> None:
    """Each broker has a name service, and each registers with both. The old master is back:
    clients of its name service are sent to the new one, and a slave that asks there follows it."""
    old_names, new_names = free_port(), free_port()
    both = f"127.0.0.1:{old_names};127.0.0.1:{new_names}"
    old = {"namesrv_listen_port": old_names, "namesrv_addr": both}
    new = {"namesrv_listen_port": new_names, "namesrv_addr": both}
    async with running_slave(tmp_path, None, **new) as slave:
        async with running_master(tmp_path, **old) as master:
            await until(lambda: slave.broker.replication.master()["masterAddr"], 30)
            client = await Client.connect(master)
            await send_many(client, "orders", 5)
            await client.close()
            await in_step(slave, master)
            await until(lambda: slave.broker.topics.get("orders"))
        await promote(slave)
        await until_master(slave)
        async with running_master(tmp_path, **old) as master:
            where = f"127.0.0.1:{slave.broker_port}"
            await until(lambda: master.broker.name_service.routes.local_is_superseded, 60)
            routes = master.broker.name_service.routes
            assert routes.broker("broker-a", "").addresses == {0: where}  # type: ignore[union-attr]
            async with connect(f"mq://127.0.0.1:{old_names}") as mq:
                before = slave.broker.store.max_physical_offset
                await mq.send("orders", b"to the new one")
                assert slave.broker.store.max_physical_offset > before
            third = {"namesrv_addr": f"127.0.0.1:{old_names}"} | NO_NAMES
            async with running_slave(tmp_path, None, 2, **third) as other:
                await in_step(other, slave, 30)


async def test_a_slave_hears_of_no_older_master(tmp_path: Path) -> None:
    """A restarted old master is still listed by its own name service."""
    async with names(tmp_path / "a") as one, names(tmp_path / "b") as two:
        one.name_service.routes.register(registration("new:1", 3, "broker-a", ha="new:2"), "link")
        two.name_service.routes.register(registration("old:1", 2, "broker-a", ha="old:2"), "link")
        settings = Settings(
            broker_role="SLAVE",
            broker_id=1,
            broker_name="broker-a",
            namesrv_addr=f"127.0.0.1:{one.namesrv_port};127.0.0.1:{two.namesrv_port}",
            store_path_root_dir=str(tmp_path),
        )
        told: list[tuple[str, str]] = []
        clock = Clock()
        topics = Topics(str(tmp_path / "topics.json"), settings, clock)
        registrar = Registrar(
            settings,
            clock,
            topics,
            Addresses(settings, clock),
            on_master=lambda *master: told.append(master),
        )
        await registrar.register()
        await until(lambda: ("new:1", "new:2") in told)
        told.clear()
        await registrar.register()
        await registrar.register()
        assert set(told) == {("new:1", "new:2")}
        await registrar.stop()


async def test_an_epoch_that_a_slave_has_no_byte_of_is_not_used_again(tmp_path: Path) -> None:
    """One is promoted and dies before two has heard of it; then two is promoted."""
    async with names(tmp_path) as served:
        async with slave_of(tmp_path, served, 1) as one:
            await promote(one)
            await until_master(one)
            await until(lambda: address_of(served) == f"127.0.0.1:{one.broker_port}", 30)
        async with slave_of(tmp_path, served, 2) as two:
            await until(lambda: address_of(served, 2), 30)
            assert (await promote(two)).ext["epoch"] == "3"


async def test_an_old_master_that_comes_back_takes_no_messages(tmp_path: Path) -> None:
    async with names(tmp_path) as served:
        where = {"namesrv_addr": f"127.0.0.1:{served.namesrv_port}"} | NO_NAMES
        async with slave_of(tmp_path, served) as slave:
            async with running_master(tmp_path, **where) as master:
                client = await Client.connect(master)
                await send_many(client, "orders", 5)
                await client.close()
                await in_step(slave, master)
                await until(lambda: slave.broker.topics.get("orders"))
            await promote(slave)
            await until_master(slave)
            await until(lambda: address_of(served) == f"127.0.0.1:{slave.broker_port}", 30)
            async with running_master(tmp_path, **where) as master:
                await until(lambda: master.broker.store.refusals.current, 30)
                client = await Client.connect(master)
                assert await send(client, "orders", b"x") == 14
                await client.close()
                reason = master.health()
                assert "another broker is the master in epoch 2" in reason
                assert "start it with brokerRole=SLAVE and a brokerId of its own" in reason
                assert address_of(served) == f"127.0.0.1:{slave.broker_port}"


async def test_a_promoted_slave_that_was_away_is_a_slave_again(tmp_path: Path) -> None:
    """One is promoted, dies; two is promoted; one comes back, with the same settings."""
    async with names(tmp_path) as served:
        async with slave_of(tmp_path, served, 1) as one:
            await promote(one)
            await until_master(one)
            client = await Client.connect(one)
            await send_many(client, "orders", 20)
            async with slave_of(tmp_path, served, 2) as two:
                await in_step(two, one, 30)
                await until(lambda: two.broker.topics.get("orders"))
            await send_many(client, "orders", 7)  # never copied
            await client.close()
        async with slave_of(tmp_path, served, 2) as two:
            await promote(two)
            await until_master(two)
            await until(lambda: address_of(served) == f"127.0.0.1:{two.broker_port}", 30)
            async with slave_of(tmp_path, served, 1) as one:
                await until(lambda: one.settings.is_slave and one.is_ready, 30)
                await in_step(one, two, 30)
                await until(lambda: address_of(served, 1) == f"127.0.0.1:{one.broker_port}", 30)
                assert one.settings.broker_id == 1


async def test_the_sdk_sends_and_consumes_through_a_change_of_masters(tmp_path: Path) -> None:
    async with names(tmp_path) as served:
        where = {"namesrv_addr": f"127.0.0.1:{served.namesrv_port}"} | NO_NAMES
        async with slave_of(tmp_path, served) as slave:
            master_runs = running_master(tmp_path, broker_role="SYNC_MASTER", **where)
            await master_runs.__aenter__()
            await until(lambda: address_of(served, 0), 30)
            await until(lambda: slave.broker.replication.master()["masterAddr"], 30)
            async with connect(f"mq://127.0.0.1:{served.namesrv_port}") as mq:
                got: set[bytes] = set()
                sent: set[bytes] = set()

                async def consume() -> None:
                    async with mq.consumer("orders", group="billing", start="first") as inbox:
                        async for message in inbox:
                            got.add(message.body)
                            await message.ack()

                async def produce() -> None:
                    for number in range(1 << 30):
                        body = b"%d" % number
                        await mq.send("orders", body, timeout=60)
                        sent.add(body)

                await mq.send("orders", b"first")
                sent.add(b"first")
                tasks: list[asyncio.Task[Any]] = [
                    asyncio.create_task(consume()),
                    asyncio.create_task(produce()),
                ]
                await until(lambda: len(sent) > 50, 30)
                await until(lambda: slave.broker.topics.get("orders"))
                await master_runs.__aexit__(None, None, None)
                assert (await promote(slave, brokerRole="ASYNC_MASTER")).code == 0
                before = len(sent)
                await until(lambda: len(sent) > before + 50, 60)
                tasks[1].cancel()
                await asyncio.gather(tasks[1], return_exceptions=True)
                await until(lambda: sent <= got, 60)
                tasks[0].cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            assert slave.settings.broker_role == "ASYNC_MASTER"
