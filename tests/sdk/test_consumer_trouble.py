"""Consumers when something goes wrong in the middle: cancelled, disconnected, reassigned."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from sdk.reading import fill, transport_to
from sdk.two_brokers import has_queues, knows_brokers, on_both, pair
from waiting import until

from aerobee import AerobeeError, Client, ConnectFailed, ConsumerOptions, Message, MessageQueue
from aerobee.client.consuming import handling, order_locks, pull_loop, redelivery
from aerobee.client.consuming.offsets import BrokerOffsets
from aerobee.testing import EmbeddedBroker

QUICK = ConsumerOptions(commit_interval=0.1)


async def test_a_cancelled_get_loses_no_message(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await fill(mq, "orders", 70, order_key="one queue")
        async with mq.consumer("orders", group="g") as inbox:
            got: list[int] = []
            async with asyncio.timeout(10):
                while len(got) < 70:
                    task = asyncio.create_task(inbox.get())
                    await asyncio.sleep(0)
                    task.cancel()  # as a timeout does, at any moment
                    try:
                        message = await task
                    except asyncio.CancelledError:
                        await asyncio.sleep(0.001)
                        continue
                    got.append(int(message.body))
                    await message.ack()
            assert got == list(range(70))


async def test_a_cancelled_close_can_be_done_again(aerobee_broker: EmbeddedBroker) -> None:
    release = asyncio.Event()

    async def handle(_: Message) -> None:
        await release.wait()

    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        async with mq.consumer("orders", group="g") as inbox:
            running = asyncio.create_task(inbox.run(handle))
            await until(lambda: inbox._member.unfinished == 1 and not inbox._member.ready)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await inbox.close()
            release.set()
            await asyncio.gather(inbox.close(), inbox.close())
            await running
            assert await mq.admin.members("g") == []
            assert sum(row.lag for row in await mq.admin.lag("g", "orders")) == 0
        async with mq.consumer("orders", group="g"):  # the group can be joined again
            pass


async def test_a_message_that_could_not_be_handed_back_comes_again(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handling, "LOCAL_RETRY_SECONDS", 0.05)
    seen = []

    async def fails(*_: object, **__: object) -> None:
        raise ConnectFailed("the broker is away")

    async def handle(message: Message) -> None:
        seen.append(message.reconsume_times)
        if len(seen) < 3:
            raise RuntimeError("handled badly")

    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        async with mq.consumer("orders", group="g", options=QUICK) as inbox:
            monkeypatch.setattr(redelivery, "send_back", fails)
            running = asyncio.create_task(inbox.run(handle))
            await until(lambda: len(seen) == 3)
            await inbox.close()
            await running
        assert sum(row.lag for row in await mq.admin.lag("g", "orders")) == 0


async def test_an_orderly_queue_is_not_given_away_under_a_message(
    aerobee_broker: EmbeddedBroker,
) -> None:
    """Else the next owner starts with a message the last one is still processing."""
    async with aerobee_broker.connect() as one, aerobee_broker.connect() as two:
        await one.admin.create_topic("orders", queues=2)
        for number in range(16):
            await one.send("orders", b"%d" % number, order_key=str(number))
        async with one.consumer("orders", group="g", orderly=True) as first:
            async with asyncio.timeout(10):
                held = [await first.get(), await first.get()]  # one of each queue
            assert len({message.queue for message in held}) == 2
            async with two.consumer("orders", group="g", orderly=True) as second:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1.5):
                        await second.get()
                for message in held:
                    await message.ack()
                async with asyncio.timeout(10):
                    taken = await second.get()
                ids = {message.message_id for message in held}
                assert taken.message_id not in ids
                await until(lambda: len(first.queues) == len(second.queues) == 1)


async def test_orderly_retries_end_among_the_dead_letters(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"poison", order_key="a")
        await mq.send("orders", b"next", order_key="a")
        options = ConsumerOptions(max_retries=2)
        async with mq.consumer("orders", group="g", orderly=True, options=options) as inbox:
            async with asyncio.timeout(10):
                for attempt in range(3):
                    message = await inbox.get()
                    assert (message.body, message.reconsume_times) == (b"poison", attempt)
                    await message.retry(delay=0)
                message = await inbox.get()
                assert message.body == b"next"
                await message.ack()
            assert [row.body async for row in mq.find("%DLQ%g")] == [b"poison"]


async def test_a_missed_renewal_of_locks_does_not_deliver_again_what_is_finished(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect(timeout=0.5) as mq:
        await fill(mq, "orders", 3, order_key="a")
        async with mq.consumer("orders", group="g", orderly=True) as inbox:
            async with asyncio.timeout(10):
                for number in range(2):
                    message = await inbox.get()
                    assert int(message.body) == number
                    await message.ack()
            transport = transport_to(mq, aerobee_broker.address)
            transport.pause_reading()
            await inbox._member.assignment._renew_locks()  # no answer; the lock is still valid
            transport.resume_reading()
            async with asyncio.timeout(10):
                assert int((await inbox.get()).body) == 2


async def test_a_queue_given_up_while_another_broker_is_slow_is_not_locked_again(
    aerobee_broker: EmbeddedBroker,
) -> None:
    second = await pair(aerobee_broker)
    async with aerobee_broker.connect() as mq, aerobee_broker.connect() as other:
        await on_both(mq, "orders", 1)
        await other.queues("orders")
        async with mq.consumer("orders", group="g", orderly=True) as inbox:
            assignment = inbox._member.assignment
            await until(lambda: len(inbox.queues) == 2)
            assignment._tasks[0].cancel()  # no rebalance, which would take it back
            await asyncio.wait(assignment._tasks[:1])
            slow = assignment.process_queues[0].queue.broker_name
            [given_up] = [row for row in assignment.select(None) if row.queue.broker_name != slow]
            transport = transport_to(mq, mq._core.routes.address(slow))
            transport.pause_reading()
            renewing = asyncio.create_task(assignment._renew_locks())
            await asyncio.sleep(0)  # the slow broker is asked
            await assignment._release(given_up)
            transport.resume_reading()
            await renewing
            locked, _ = await order_locks.lock(other._core, "g", [given_up.queue])
            assert locked == {given_up.queue}
    await second.stop()


async def test_a_queue_that_is_slow_to_take_is_taken_once(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=2)
        inbox = mq.consumer("orders", group="g")
        assignment = inbox._member.assignment
        load = assignment._offsets.load
        calls = []

        async def troubled(queue: MessageQueue) -> int | None:
            if queue.topic == "orders":
                calls.append(queue)
                if queue.queue_id == 0 and len(calls) < 4:
                    raise ConnectFailed("its broker is away")
                if queue.queue_id == 1:
                    await asyncio.sleep(0.2)
            return await load(queue)

        monkeypatch.setattr(assignment._offsets, "load", troubled)
        async with inbox:
            assignment.request()
            await until(lambda: len(inbox.queues) == 2)
            await asyncio.sleep(0.3)
            readers = [
                task for task in asyncio.all_tasks() if task.get_name().startswith("read ord")
            ]
            assert len(readers) == 2


@pytest.mark.parametrize("options", [{}, {"sql": "a > 1"}])
async def test_a_consumer_starts_with_the_brokers_that_are_there(
    aerobee_broker: EmbeddedBroker, options: dict[str, Any]
) -> None:
    async with aerobee_broker.connect(timeout=1) as mq:
        await mq.admin.create_topic("orders", queues=1)
        await register_dead_broker(mq, aerobee_broker.namesrv, "orders")
        await until(lambda: has_queues(mq, "orders", 2))
        await mq.send("orders", b"x", properties={"a": "2"}, timeout=5)
        async with mq.consumer("orders", group="g", **options) as inbox, asyncio.timeout(8):
            assert (await inbox.get()).body == b"x"


async def register_dead_broker(mq: Client, namesrv: str, topic: str) -> None:
    """A broker that died silently: the name server still lists it, before the live one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    topics = {
        name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        for name in (topic, "another")
    }
    wrapper = {"dataVersion": version, "topicConfigTable": topics}
    body = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
    ext = {
        "brokerName": "a dead one",
        "brokerAddr": address,
        "clusterName": "DefaultCluster",
        "haServerAddr": address,
        "brokerId": "0",
    }
    await mq._core.remoting.ask(namesrv, 103, ext, json.dumps(body).encode(), what="registering")


@pytest.mark.parametrize("kind", ["unreadable", "unwritable"])
async def test_a_broadcast_reader_is_told_of_an_offsets_file_it_cannot_use(
    aerobee_broker: EmbeddedBroker, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "file").write_text("x")
    path = tmp_path if kind == "unreadable" else tmp_path / "file" / "below" / "offsets.json"
    options = ConsumerOptions(state_path=path)
    async with aerobee_broker.connect() as mq:
        await mq.send("news", b"x")
        with pytest.raises(AerobeeError, match="offsets file"):
            async with mq.consumer("news", group="g", broadcast=True, options=options):
                pass
        assert await mq.admin.members("g") == []


async def test_orderly_broadcast_readers_each_get_every_message(
    aerobee_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with aerobee_broker.connect() as one, aerobee_broker.connect() as two:
        await one.admin.create_topic("news", queues=2)
        paths = [ConsumerOptions(state_path=tmp_path / f"{name}.json") for name in "ab"]
        shared: dict[str, Any] = {"group": "readers", "broadcast": True, "orderly": True}
        async with (
            one.consumer("news", options=paths[0], **shared) as first,
            two.consumer("news", options=paths[1], **shared) as second,
        ):
            await fill(one, "news", 4, order_key="a")
            for inbox in (first, second):
                assert len(inbox.queues) == 2
                async with asyncio.timeout(10):
                    for number in range(4):
                        message = await inbox.get()
                        assert int(message.body) == number
                        await message.ack()


async def test_commits_to_a_dead_broker_do_not_queue_up(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        [queue, *_] = await mq.queues("orders")
        offsets = BrokerOffsets(mq._core.remoting, mq._core.routes, "g")
        await offsets.save({queue: 1}, confirm=True)
        await aerobee_broker.stop()
        async with asyncio.timeout(1.5):
            for number in range(8):  # as when eight queues of it are given up one by one
                await offsets.save({queue: number}, confirm=False)


async def test_a_client_closes_though_its_consumer_fails_to(
    aerobee_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    options = ConsumerOptions(state_path=tmp_path / "offsets.json")
    mq = await aerobee_broker.connect()
    await mq.send("news", b"x")
    inbox = await mq.consumer("news", group="g", broadcast=True, options=options).__aenter__()
    await mq.send("news", b"y")
    async with asyncio.timeout(10):
        await (await inbox.get()).ack()
    (tmp_path / "offsets.json").unlink()
    (tmp_path / "offsets.json").mkdir()
    with pytest.raises(AerobeeError, match="offsets file"):
        await mq.close()
    await until(lambda: not [t for t in asyncio.all_tasks() if t.get_name() == "heartbeats"])
    assert not mq._session.is_open


async def test_a_broker_that_is_gone_for_good_is_forgotten(aerobee_broker: EmbeddedBroker) -> None:
    second = EmbeddedBroker(
        brokerName="second",
        namesrvAddr=aerobee_broker.namesrv,
        namesrvListenPort=-1,
        forceRegister="true",
    )
    await second.start()
    address = second.address
    async with aerobee_broker.connect() as mq:
        await until(lambda: knows_brokers(mq, 2))
        await mq.admin.create_topic("orders", queues=1)
        await until(lambda: has_queues(mq, "orders", 2))
        for _ in range(4):
            await mq.send("orders", b"x")
        async with mq.consumer("orders", group="g") as inbox:
            await until(lambda: len(inbox.queues) == 2)
            assert address in mq._core.routes.broker_addresses
            await second.stop()
            await until(lambda: has_queues(mq, "orders", 1))
            await mq._core.routes.refresh_all()
            assert mq._core.routes.broker_addresses == {aerobee_broker.address}
            inbox._member.request_rebalance()
            await until(lambda: len(inbox.queues) == 1)


async def test_a_handler_that_meets_a_cancelled_task_fails_alone(
    aerobee_broker: EmbeddedBroker,
) -> None:
    seen = []

    async def handle(message: Message) -> None:
        seen.append((message.body, message.reconsume_times))
        if len(seen) == 1:
            stopped = asyncio.get_running_loop().create_future()
            stopped.cancel()
            await stopped

    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"a")
        async with mq.consumer("orders", group="g") as inbox:
            running = asyncio.create_task(inbox.run(handle, concurrency=2))
            await until(lambda: len(seen) == 1)
            await mq.send("orders", b"b")
            await until(lambda: len(seen) == 2)
            await aerobee_broker.advance(seconds=30)
            await until(lambda: (b"a", 1) in seen)
            running.cancel()  # while a cancelled `run` ends
            with pytest.raises(asyncio.CancelledError):
                await running


async def test_a_seek_while_closing_does_not_keep_it_from_ending(
    aerobee_broker: EmbeddedBroker,
) -> None:
    closing = asyncio.Event()

    async def handle(message: Message) -> None:
        await closing.wait()
        inbox.seek(message.queue, 0)

    async with aerobee_broker.connect() as mq, asyncio.timeout(10):
        await mq.send("orders", b"a")
        async with mq.consumer("orders", group="g") as inbox:
            running = asyncio.create_task(inbox.run(handle))
            await until(lambda: inbox._member.unfinished == 1 and not inbox._member.ready)
            ending = asyncio.create_task(inbox.close())
            await until(lambda: inbox._state == "closing")
            closing.set()
            await ending
            await running
        readers = [task for task in asyncio.all_tasks() if task.get_name().startswith("read ")]
        assert readers == []


@pytest.mark.parametrize("key", ["a\u3000b", "a\u00a0b", "a\u2003b", "a\x85b", "a\rb"])
async def test_a_key_with_a_blank_of_another_script_is_one_key(
    aerobee_broker: EmbeddedBroker, key: str
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x", key=[key, "second"])
        [found] = [message async for message in mq.find("orders", key=key)]
        assert found.keys == [key, "second"]


async def test_one_message_that_is_never_finished_does_not_let_the_memory_grow(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_loop, "SPAN_MAX", 100, raising=False)
    monkeypatch.setattr(pull_loop, "SPAN_SECONDS", 0.02, raising=False)
    options = ConsumerOptions(pull_count=10)
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)
        await fill(mq, "orders", 300)
        async with mq.consumer("orders", group="g", options=options) as inbox:
            async with asyncio.timeout(10):
                stuck = await inbox.get()
            [queue] = [
                row
                for row in inbox._member.assignment.process_queues
                if row.queue.topic == "orders"
            ]
            taken = 1
            with pytest.raises(TimeoutError):
                while True:
                    async with asyncio.timeout(0.5):
                        await (await inbox.get()).ack()
                    taken += 1
            assert 100 <= taken <= 110 and queue.span == taken
            await stuck.ack()
            async with asyncio.timeout(10):
                while taken < 300:
                    await (await inbox.get()).ack()
                    taken += 1
            assert queue.span == 0
