"""The pages' data, tested without a browser: passing time, many brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ha.pairs import in_step, running_master, running_slave

from aerobee.client.client import Client, connect
from aerobee.client.console.app import page_of
from aerobee.client.console.history import GROWING_SAMPLES, History
from aerobee.client.console.options import ConsoleOptions
from aerobee.client.console.view import View, now_ms
from aerobee.client.console.views import (
    cluster,
    groups,
    life,
    messages,
    overview,
    resets,
    store,
    topics,
    waiting,
)
from aerobee.client.console.views.store import size_of, space_ends_ms
from aerobee.client.errors import Misuse
from aerobee.testing import EmbeddedBroker


@asynccontextmanager
async def viewing(url: str, **options: Any) -> AsyncIterator[View]:
    async with connect(url) as mq:
        view = View(mq, ConsoleOptions(url=url, **options))
        yield view
        await view.jobs.close()


async def send_numbered(mq: Client, topic: str, count: int) -> None:
    for number in range(count):
        await mq.send(topic, b"%d" % number, key=f"k-{number}")


async def test_slaves_are_shown_with_what_they_lack(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path) as master,
        running_slave(tmp_path, master) as slave,
        viewing(f"mq://127.0.0.1:{master.namesrv_port}") as view,
    ):
        await view.mq.send("orders", b"x")
        await in_step(slave, master)
        async with asyncio.timeout(60):
            while True:
                view.shared.forget()
                rows = (await cluster.cluster(view, {}))["brokers"]
                found = [one for row in rows for one in row.get("slaves", ())]
                if found and not found[0]["behind"]:
                    break
                await asyncio.sleep(0.05)
        assert found[0]["in_sync"] is True


async def test_files_of_the_log_lie_on_a_time_line() -> None:
    small = EmbeddedBroker(mappedFileSizeCommitLog=64 << 10)
    async with small as broker, viewing(broker.url) as view:
        for _ in range(5):
            await send_numbered(view.mq, "t", 150)
            await broker.advance(minutes=10)
        row = (await store.store(view, {}))["brokers"][0]
        starts = [one["since"] for one in row["segments"]]
        assert len(starts) > 2
        assert starts == sorted(starts) and None not in starts
        assert sum(one["bytes"] for one in row["segments"]) == row["max"] - row["min"]
        assert row["reserved_hours"] == 72
        first = row["segments"][0]
        assert first["expires"] == first["until"] + 72 * 3_600_000


def test_the_end_of_space_follows_from_growth_and_room() -> None:
    view: Any = type("Seen", (), {"history": History()})()
    hour_ago = now_ms() - 3_600_000
    state = {
        "commitLogMinOffset": "0",
        "commitLogMaxOffset": str(1 << 30),  # a GiB in an hour
        "earliestMessageTimeStamp": str(hour_ago),
        "commitLogDiskRatio": "0.5",
        "commitLogDirCapacity": "Total : 40.0 GiB, Free : 20.0 GiB.",
    }
    ends = space_ends_ms(view, "a", state, {"diskMaxUsedSpaceRatio": "75"})
    assert ends == pytest.approx(10 * 3_600_000, rel=0.05)  # 10 GiB are left before 75 %
    full = state | {"commitLogDiskRatio": "0.8"}
    assert space_ends_ms(view, "a", full, {"diskMaxUsedSpaceRatio": "75"}) == 0
    kept = {"diskMaxUsedSpaceRatio": "75", "fileReservedTime": "5"}
    assert space_ends_ms(view, "a", state, kept) is None  # retention removes files before that
    assert size_of("Free : 1.5 MiB.") == 3 << 19 and size_of("") is None


def test_a_lag_grows_when_each_look_finds_more() -> None:
    history = History()
    for lag in range(GROWING_SAMPLES):
        assert not history.is_growing("g")
        history.see_lag("g", lag * 10)
    assert history.is_growing("g")
    history.see_lag("g", 3)
    assert not history.is_growing("g")


def test_a_member_that_was_there_at_the_first_look_did_not_join() -> None:
    history = History()
    history.see_members("g", {"a": "1", "b": "2"})
    history.see_members("g", {"b": "2", "c": "3"})
    events = [(row["event"], row["client"]) for row in history.events["g"]]
    assert events == [("joined", "c"), ("left", "a")]


async def test_pages_of_many_queues_are_in_the_order_of_time() -> None:
    async with EmbeddedBroker() as broker, viewing(broker.url) as view:
        await view.admin.create_topic("many", queues=8)
        for number in range(100):
            await view.mq.send("many", b"%d" % number)
            await broker.advance(seconds=1)
        found: list[str] = []
        cursor = ""
        while True:
            params = {"topic": "many", "mode": "time", "limit": "30", "cursor": cursor}
            page = await messages.find(view, params)
            found += [row["preview"] for row in page["messages"]]
            cursor = page["cursor"]
            if not cursor:
                break
        assert found == [str(number) for number in range(100)]
        with pytest.raises(Misuse):
            await messages.find(view, {"topic": "many", "mode": "time", "cursor": "broken"})


async def test_the_last_millisecond_of_a_time_is_part_of_it() -> None:
    async with EmbeddedBroker() as broker, viewing(broker.url) as view:
        await view.admin.create_topic("t", queues=1)
        stored: list[int] = []
        for _ in range(40):
            await view.mq.send("t", b"x")
            await broker.advance(seconds=0.007)
        async for message in view.mq.find("t"):
            stored.append(message.stored.store_timestamp)
        for number, until in enumerate(stored, 1):
            params = {"topic": "t", "mode": "time", "until": str(until)}
            assert len((await messages.find(view, params))["messages"]) == number


async def test_an_export_that_was_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "EXPORT_MAX", 500)
    async with EmbeddedBroker() as broker, viewing(broker.url) as view:
        async with view.mq.producer("t", linger=0) as producer:
            for _ in range(501):
                await producer.send(b"x")
        found = (await messages.export(view, {"topic": "t"})).body.splitlines()
        assert len(found) == 501
        assert found[-1] == b'{"stopped":"at 500 messages"}'
        monkeypatch.setattr(messages, "EXPORT_MAX", 501)
        found = (await messages.export(view, {"topic": "t"})).body.splitlines()
        assert len(found) == 501
        assert b"stopped" not in found[-1]


async def test_a_filter_leaves_out_what_it_does_not_select() -> None:
    async with EmbeddedBroker() as broker, viewing(broker.url) as view:
        for number in range(60):
            await view.mq.send(
                "t", b"x", tag="odd" if number % 2 else "even", properties={"n": str(number)}
            )
        by_sql = await messages.find(view, {"topic": "t", "mode": "time", "sql": "n >= 50"})
        assert len(by_sql["messages"]) == 10
        by_tag = await messages.find(view, {"topic": "t", "mode": "time", "tag": "odd"})
        assert {row["tag"] for row in by_tag["messages"]} == {"odd"}
        assert len(by_tag["messages"]) == 30


async def test_the_life_of_a_message_that_was_delayed_and_retried_is_reported() -> None:
    async with EmbeddedBroker() as broker, viewing(broker.url) as view:
        sent = await view.mq.send("t", b"x", delay=30)
        async with view.mq.consumer("t", group="g") as inbox:
            await broker.advance(seconds=31)
            first = await asyncio.wait_for(inbox.get(), 60)
            await first.retry(delay=5, reason="not yet")
            await broker.advance(seconds=6)
            await (await asyncio.wait_for(inbox.get(), 60)).ack()
        params = {"topic": "t", "id": sent.message_id}
        found = await life.one(view, params)
        events = {row["event"] for row in found["life"]}
        assert "delayed" in events
        assert len(found["life"]) >= 3
        assert found["groups"][0]["verdict"] in ("passed", "consumed")


async def test_delay_levels_and_timers_both_wait() -> None:
    async with EmbeddedBroker() as broker, viewing(broker.url) as view:
        await view.mq.send("t", b"x", delay=3600)
        async with view.mq.consumer("t", group="g") as inbox:
            await view.mq.send("t", b"again")
            await (await asyncio.wait_for(inbox.get(), 60)).retry()
        found = await waiting.waiting(view, {})
        assert [row["topic"] for row in found["timers"]] == ["t"]
        waits = len(found["timers"]) + sum(row["count"] for row in found["levels"])
        assert waits == 2


async def test_what_needs_attention_is_named_with_where_to_look() -> None:
    async with EmbeddedBroker() as broker, viewing(broker.url) as view:
        await send_numbered(view.mq, "t", 5)
        async with view.mq.consumer("t", group="gone") as inbox:
            await (await asyncio.wait_for(inbox.get(), 60)).reject("no")
        found = await overview.overview(view, {})
        rows = {row["what"]: row for row in found["attention"]}
        assert (
            "nobody is online" in rows["group gone"]["text"] or "dead" in rows["group gone"]["text"]
        )
        assert any(row.get("dead") == "gone" for row in found["attention"])
        assert found["behind"][0]["group"] == "gone"
        again = await overview.overview(view, {"since": found["now"]["at"]})
        assert again["samples"] == [] or again["samples"][0]["at"] > found["now"]["at"]


async def test_a_reset_moves_several_topics_together() -> None:
    async with EmbeddedBroker() as broker, viewing(broker.url, write=True) as view:
        for topic in ("a", "b"):
            await send_numbered(view.mq, topic, 10)
        async with view.mq.consumer(["a", "b"], group="g") as inbox:
            for _ in range(20):
                await (await asyncio.wait_for(inbox.get(), 60)).ack()
        wanted = {"group": "g", "topic": "a,b", "to": "first"}
        plan = await resets.preview(view, wanted)
        assert plan["again"] == 20 and plan["skipped"] == 0
        change = {"group": "g", "moves": plan["moves"]}
        for wrong in (change, wanted | {"confirm": "g"}, change | {"confirm": "g", "moves": [1]}):
            with pytest.raises(Misuse):
                await resets.reset(view, wrong)
        await send_numbered(view.mq, "a", 3)  # messages after the preview do not change it
        await resets.reset(view, change | {"confirm": "g"})
        lags = await view.admin.lag("g")
        assert sum(row.lag for row in lags if row.queue.topic in ("a", "b")) == 23


async def test_viewers_share_what_is_asked_of_the_broker() -> None:
    async with EmbeddedBroker() as broker, viewing(broker.url) as view:
        await view.mq.send("t", b"x")
        asked = 0
        runtime = view.admin.runtime

        async def counted(address: str) -> dict[str, str]:
            nonlocal asked
            asked += 1
            return await runtime(address)

        ask = lambda: counted(broker.address)  # noqa: E731
        await asyncio.gather(*(view.shared.get("one", 5.0, ask) for _ in range(20)))
        assert asked == 1


async def test_a_page_is_made_once_for_all_its_viewers() -> None:
    made: list[str] = []

    async def reader(_view: View, params: dict[str, Any]) -> dict[str, Any]:
        made.append(params.get("topic", ""))
        return {"made": len(made)}

    async with EmbeddedBroker() as broker, viewing(broker.url) as view:
        asked = [page_of(reader, "waiting", {"topic": topic}, view) for topic in "aab"]
        assert await asyncio.gather(*asked) == [b'{"made":1}', b'{"made":1}', b'{"made":2}']
        await asyncio.gather(*(page_of(reader, "tail", {}, view) for _ in range(2)))
        assert made == ["a", "b", "", ""]  # tails are not shared: each has its own position


async def test_lists_of_topics_and_groups_are_whole() -> None:
    async with EmbeddedBroker() as broker, viewing(broker.url) as view:
        for number in range(30):
            await view.admin.create_topic(f"t-{number:02}", queues=1)
            await view.admin.create_group(f"g-{number:02}")
        shown = (await topics.listed(view, {}))["topics"]
        assert [row["topic"] for row in shown] == [f"t-{number:02}" for number in range(30)]
        named = (await groups.listed(view, {}))["groups"]
        assert [row["group"] for row in named] == [f"g-{number:02}" for number in range(30)]
