"""What a client reports when its broker disconnects and returns."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from peers.aerobee_broker import AerobeeBroker
from waiting import until

from aerobee import ConnectFailed, ConnectionEvent, ConsumerOptions, connect
from aerobee.testing import EmbeddedBroker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AerobeeBroker]:
    running = AerobeeBroker(tmp_path)
    yield running
    if running.is_running:
        await asyncio.to_thread(running.kill)


async def test_a_lost_connection_is_one_line_and_its_return_another(
    broker: AerobeeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aerobee")
    await asyncio.to_thread(broker.start)
    events: list[ConnectionEvent] = []
    async with connect(f"mq://{broker.namesrv}", on_connection=events.append) as mq:
        await mq.admin.create_topic("orders", queues=8)
        async with mq.consumer("orders", group="billing") as inbox:
            caplog.clear()
            await asyncio.to_thread(broker.stop)
            await until(lambda: f"{broker.broker} is lost" in caplog.text)
            await asyncio.sleep(2)  # in which eight queues are asked for again and again
            await asyncio.to_thread(broker.start)
            await until(lambda: f"{broker.broker} is back" in caplog.text)
            await mq.send("orders", b"x")
            async with asyncio.timeout(10):
                assert (await inbox.get()).body == b"x"
    warned = [row.getMessage() for row in caplog.records if row.levelno >= logging.WARNING]
    # The name server, which is lost with it, has a line of its own if a request was in flight.
    said = [line for line in warned if line.startswith(broker.broker)]
    assert len(said) == 2, warned
    assert said[0].startswith(f"{broker.broker} is lost: ")
    assert said[1].startswith(f"{broker.broker} is back after ")
    mine = [event.connected for event in events if event.address == broker.broker]
    assert mine == [False, True]


async def test_a_cluster_that_is_not_there_yet_is_waited_for(broker: AerobeeBroker) -> None:
    await asyncio.to_thread(broker.start)
    await asyncio.to_thread(broker.stop)
    url = f"mq://{broker.namesrv}"
    with pytest.raises(ConnectFailed):
        async with connect(url, wait=0.3):
            pass
    starting = asyncio.create_task(asyncio.to_thread(broker.start))
    async with connect(url, wait=30) as mq:
        await starting
        assert (await mq.send("orders", b"x", timeout=10)).ok


async def test_a_rebalance_is_reported(aerobee_broker: EmbeddedBroker) -> None:
    told = []
    async with aerobee_broker.connect() as one, aerobee_broker.connect() as two:
        await one.admin.create_topic("orders", queues=4)
        options = ConsumerOptions(on_rebalance=lambda taken, given: told.append((taken, given)))
        async with one.consumer("orders", group="billing", options=options) as first:
            [(taken, given)] = told
            assert taken == first.queues and len(taken) == 4 and given == []
            async with two.consumer("orders", group="billing") as second:
                await until(lambda: len(told) == 2)
                assert told[1] == ([], second.queues) and len(second.queues) == 2
            await until(lambda: len(told) == 3)
            assert len(told[2][0]) == 2 and told[2][1] == []
        assert len(told) == 4 and len(told[3][1]) == 4


async def test_a_connection_that_was_awaited_and_is_entered_is_made_once(
    aerobee_broker: EmbeddedBroker,
) -> None:
    opening = aerobee_broker.connect()
    mq = await opening
    async with opening as again:
        assert again is mq
        assert sum(task.get_name() == "heartbeats" for task in asyncio.all_tasks()) == 1
        assert (await mq.send("orders", b"x")).ok
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "heartbeats"]
