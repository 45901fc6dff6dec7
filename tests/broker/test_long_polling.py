"""Pulls that wait at the broker until there is something to give."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from peers.in_process import Client, pull_ext, running_broker, send_ext
from peers.pulling import CODECS, WAIT, WAIT_LONG, bodies, dispatched, fill, offsets, tagged
from waiting import until

from aerobee.broker.base.turns import Turns
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.services import long_polling
from aerobee.broker.store.reading import filter_time
from aerobee.protocol.files import properties
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.frame import encode_frame

# --- long polling


async def test_a_held_pull_is_answered_by_the_next_message(app: AppBroker) -> None:
    reader, writer = await Client.connect(app), await Client.connect(app)
    await fill(writer, 1)
    waiting = asyncio.create_task(reader.request(11, pull_ext("Orders", offset=1) | WAIT_LONG))
    await until(lambda: len(app.broker.long_polling) == 1)
    assert not waiting.done()
    await writer.request(310, send_ext("Orders"), b"new")
    answer = await waiting
    assert bodies(answer) == [b"new"]
    assert len(app.broker.long_polling) == 0
    await reader.close()
    await writer.close()


async def test_a_pull_that_waits_at_a_new_queue_is_woken_by_its_first_message(
    app: AppBroker,
) -> None:
    reader, writer = await Client.connect(app), await Client.connect(app)
    await fill(writer, 1)
    waiting = asyncio.create_task(reader.request(11, pull_ext("Orders", 3) | WAIT))
    await until(lambda: len(app.broker.long_polling))
    await writer.request(310, send_ext("Orders", 2), b"another queue")
    await writer.request(310, send_ext("Orders", 3), b"first")
    assert bodies(await asyncio.wait_for(waiting, 2)) == [b"first"]
    await reader.close()
    await writer.close()


async def test_filters_of_many_waiting_pulls_that_take_long_are_tested_in_turns(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message would else be tested with each of thousands of filters in one turn of the loop."""
    await tagged(client, "a")
    sql = {"expressionType": "SQL92", "subscription": "letter = 'c'"}
    pulls = [client.command(11, pull_ext("Orders", 0, 1, **sql) | WAIT_LONG) for _ in range(40)]
    answers = [client.begin(pull) for pull in pulls]
    await until(lambda: len(app.broker.long_polling) == 40)
    turns: list[object] = []
    later = Turns.later

    def counted(self: Turns, work: Any) -> None:
        turns.append(work)
        later(self, work)

    monkeypatch.setattr(filter_time, "FILTER_S", -1.0)
    monkeypatch.setattr(Turns, "later", counted)
    await tagged(client, "b")
    assert len(app.broker.long_polling) == 4, "those that were tested wait"
    woken = await asyncio.wait_for(asyncio.gather(*answers[4:]), 20)
    assert {answer.code for answer in woken} == {ResponseCode.PULL_RETRY_IMMEDIATELY}
    assert {offsets(answer)[0] for answer in woken} == {2}
    assert len(turns) >= 35, "each in a turn of its own"


async def test_a_reset_wakes_the_pulls_that_wait(app: AppBroker, client: Client) -> None:
    await fill(client, 3)
    waiting = asyncio.create_task(client.request(11, pull_ext("Orders", 0, 3) | WAIT))
    await until(lambda: len(app.broker.long_polling))
    app.broker.offsets.reset("cg", "Orders", 0, 1)
    app.broker.long_polling.wake_queue("Orders", 0)
    answer = await asyncio.wait_for(waiting, 2)
    assert (answer.remark, offsets(answer)) == ("OFFSET_RESET", (1, 0, 3))


@pytest.mark.parametrize("size", [3, 1000, 10_000])
async def test_many_held_pulls_are_answered_by_one_message(app: AppBroker, size: int) -> None:
    """Small answers of a connection leave together, 64 at a time; large ones one by one."""
    writer = await Client.connect(app)
    await fill(writer, 1)
    readers = [await Client.connect(app, codec) for codec in CODECS.values()]
    waiting = [
        asyncio.create_task(reader.request(11, pull_ext("Orders", offset=1) | WAIT))
        for reader in readers
        for _ in range(70)
    ]
    await until(lambda: len(app.broker.long_polling) == 210)
    await writer.request(310, send_ext("Orders"), b"n" * size)
    assert [bodies(answer) for answer in await asyncio.gather(*waiting)] == [[b"n" * size]] * 210
    for client in (*readers, writer):
        await client.close()


async def test_pulls_that_are_woken_together_read_what_they_share_once(
    app: AppBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await Client.connect(app)
    await fill(writer, 1)
    reader = await Client.connect(app)
    asked = [pull_ext("Orders", offset=1, consumerGroup=f"g{number}") | WAIT for number in range(8)]
    asked.append(pull_ext("Orders", offset=1) | WAIT | {"maxMsgNums": "1"})
    waiting = [asyncio.create_task(reader.request(11, ext)) for ext in asked]
    await until(lambda: len(app.broker.long_polling) == len(asked))
    store, reads = app.broker.store, []
    real = store.read_plain

    def read_plain(queue: Any, offset: int, count: int, size: int) -> Any:
        reads.append((offset, count))
        return real(queue, offset, count, size)

    monkeypatch.setattr(store, "read_plain", read_plain)
    await writer.request(310, send_ext("Orders"), b"new")
    answers = await asyncio.gather(*waiting)
    assert [bodies(answer) for answer in answers] == [[b"new"]] * len(asked)
    assert [offsets(answer) for answer in answers] == [(2, 0, 2)] * len(asked)
    assert len(reads) == len(set(reads)) == 2  # 32 messages, and one
    for client in (reader, writer):
        await client.close()


@pytest.mark.parametrize(
    ("expression", "kind"), [("B", "TAG"), ("letter = 'B'", "SQL92")], ids=["TAG", "SQL92"]
)
async def test_a_held_pull_sleeps_through_messages_that_it_does_not_want(
    app: AppBroker, client: Client, expression: str, kind: str
) -> None:
    await tagged(client, "A")
    ext = pull_ext("Orders", offset=1, subscription=expression, expressionType=kind) | WAIT
    waiting = asyncio.create_task(client.request(11, ext))
    writer = await Client.connect(app)
    for tag in "AAAB":
        assert not waiting.done()
        text = properties.encode({"UNIQ_KEY": "u", "TAGS": tag, "letter": tag})
        await writer.request(310, send_ext("Orders", i=text), tag.encode())
        await dispatched(app)
    answer = await waiting
    assert bodies(answer) == [b"B"] and int(answer.ext["nextBeginOffset"]) == 5
    await writer.close()


@pytest.mark.parametrize("milliseconds", [50, 300, 1100])
async def test_a_held_pull_is_answered_when_its_time_is_over(
    client: Client, milliseconds: int
) -> None:
    await fill(client, 1)
    ext = pull_ext("Orders", offset=1) | WAIT | {"suspendTimeoutMillis": str(milliseconds)}
    started = time.monotonic()
    answer = await client.request(11, ext)
    late = time.monotonic() - started - milliseconds / 1000
    assert (answer.code, offsets(answer)) == (ResponseCode.PULL_NOT_FOUND, (1, 0, 1))
    assert late >= 0, "before its time"


async def test_without_the_bit_or_the_time_a_pull_is_not_held(client: Client) -> None:
    await fill(client, 1)
    for more in ({"sysFlag": "4"}, {"suspendTimeoutMillis": "0"}, {"suspendTimeoutMillis": "-9"}):
        ext = pull_ext("Orders", offset=1) | WAIT | more
        answer = await client.request(11, ext)
        assert answer.code == ResponseCode.PULL_NOT_FOUND


async def test_with_long_polling_off_a_pull_waits_the_short_time(tmp_path: Path) -> None:
    async with running_broker(
        tmp_path, long_polling_enable=False, short_polling_time_mills=200
    ) as app:
        client = await Client.connect(app)
        await fill(client, 1)
        started = time.monotonic()
        await client.request(11, pull_ext("Orders", offset=1) | WAIT)
        assert time.monotonic() - started >= 0.2
        await client.close()


async def test_the_holds_of_a_client_that_goes_are_dropped(app: AppBroker) -> None:
    writer = await Client.connect(app)
    await fill(writer, 1)
    reader = await Client.connect(app)
    for _ in range(10):
        reader.writer.write(encode_frame(reader.command(11, pull_ext("Orders", offset=1) | WAIT)))
    await until(lambda: len(app.broker.long_polling) == 10)
    await reader.close()
    await until(lambda: not len(app.broker.long_polling))
    assert (await writer.request(310, send_ext("Orders"))).code == 0
    await writer.close()


async def test_a_held_pull_is_answered_when_its_topic_is_deleted(app: AppBroker) -> None:
    reader, operator = await Client.connect(app), await Client.connect(app)
    await fill(operator, 1)
    waiting = asyncio.create_task(reader.request(11, pull_ext("Orders", offset=1) | WAIT_LONG))
    await until(lambda: len(app.broker.long_polling) == 1)
    assert (await operator.request(215, {"topic": "Orders"})).code == 0
    assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST
    await reader.close()
    await operator.close()


async def test_the_number_of_holds_is_bounded(app: AppBroker, client: Client) -> None:
    await fill(client, 1)
    app.broker.long_polling.holds_max = 3
    commands = [client.command(11, pull_ext("Orders", offset=1) | WAIT) for _ in range(5)]
    futures = [asyncio.create_task(client.ask(command)) for command in commands]
    await until(lambda: sum(future.done() for future in futures) == 2)
    assert len(app.broker.long_polling) == 3
    await fill(client, 1)  # delivered to the held pulls
    codes = [answer.code for answer in await asyncio.gather(*futures)]
    assert sorted(codes) == [ResponseCode.SUCCESS] * 3 + [ResponseCode.PULL_NOT_FOUND] * 2


async def test_held_pulls_are_answered_at_the_stop(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as app:
        client = await Client.connect(app)
        await fill(client, 1)
        waiting = asyncio.create_task(client.request(11, pull_ext("Orders", offset=1) | WAIT))
        await until(lambda: len(app.broker.long_polling) == 1)
    assert (await waiting).code == ResponseCode.PULL_NOT_FOUND
    await client.close()


async def test_no_memory_is_kept_of_holds_that_are_over(app: AppBroker, client: Client) -> None:
    await fill(client, 1)
    writer = await Client.connect(app)
    for offset in range(1, 100):
        ext = pull_ext("Orders", offset=offset) | WAIT
        waiting = asyncio.create_task(client.request(11, ext))
        await until(lambda: len(app.broker.long_polling))
        await writer.request(310, send_ext("Orders"))
        assert (await waiting).code == 0
    polling: long_polling.LongPolling = app.broker.long_polling
    assert not polling._by_queue and not polling._by_owner
    assert not any(polling._by_tick.values())
    await writer.close()
