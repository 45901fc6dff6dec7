"""Commands that change or remove something: they refuse likely mistakes."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from aerobee_command import aerobee
from terminals import typed

from aerobee import Client
from aerobee.client.transport.routes import AUTO_CREATE_QUEUES
from aerobee.protocol.files.java_hash import java_hash
from aerobee.testing import EmbeddedBroker


async def stored_bodies(mq: Client, topic: str) -> list[bytes]:
    return sorted([row.body async for row in mq.find(topic)])


async def test_creating_a_topic_that_is_there_is_refused_and_changes_nothing(
    aerobee_broker: EmbeddedBroker,
) -> None:
    url = aerobee_broker.url
    await aerobee("topic", "create", "orders", "--queues", "8", url=url)
    refused = await aerobee("topic", "create", "orders", "--queues", "2", url=url, code=1)
    assert "topic orders exists already" in refused.err and "topic update" in refused.err
    async with aerobee_broker.connect() as mq:
        assert len(await mq.queues("orders")) == 8


async def test_updating_a_topic_changes_only_what_is_named(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    await aerobee("topic", "create", "orders", "--queues", "4", "--order", url=url)
    await aerobee("topic", "update", "orders", "--queues", "6", url=url)
    async with aerobee_broker.connect() as mq:
        [config] = (await mq.admin.topic_config("orders")).values()
    assert (config["readQueueNums"], config["writeQueueNums"]) == (6, 6)
    assert config["order"] is True and config["perm"] == 6
    await aerobee("topic", "update", "orders", "--no-write", url=url)
    async with aerobee_broker.connect() as mq:
        [config] = (await mq.admin.topic_config("orders")).values()
    assert (config["readQueueNums"], config["perm"]) == (6, 4)
    nothing = await aerobee("topic", "update", "orders", url=url, code=2)
    assert "--queues" in nothing.err
    both = await aerobee(
        "topic", "update", "orders", "--queues", "1", "--read-queues", "2", url=url, code=2
    )
    assert "not both" in both.err
    await aerobee("topic", "update", "nowhere", "--queues", "2", url=url, code=3)


async def test_creating_a_group_that_is_there_is_refused_and_changes_nothing(
    aerobee_broker: EmbeddedBroker,
) -> None:
    url = aerobee_broker.url
    await aerobee("group", "create", "billing", "--max-retries", "3", url=url)
    refused = await aerobee("group", "create", "billing", url=url, code=1)
    assert "group billing exists already" in refused.err and "group update" in refused.err
    async with aerobee_broker.connect() as mq:
        [config] = (await mq.admin.group_config("billing")).values()
    assert config["retryMaxTimes"] == 3


async def test_updating_a_group_changes_only_what_is_named(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    await aerobee("group", "create", "billing", "--max-retries", "3", "--no-broadcast", url=url)
    await aerobee("group", "update", "billing", "--no-consume", url=url)
    line = ("group", "update", "billing", "--max-retries", "5", "--json")
    assert (await aerobee(*line, url=url)).json == {"group": "billing", "max_retries": 5}
    async with aerobee_broker.connect() as mq:
        [config] = (await mq.admin.group_config("billing")).values()
    names = ("retryMaxTimes", "consumeEnable", "consumeBroadcastEnable")
    assert [config[name] for name in names] == [5, False, False]
    nothing = await aerobee("group", "update", "billing", url=url, code=2)
    assert "--max-retries" in nothing.err
    await aerobee("group", "update", "nobody", "--consume", url=url, code=3)


async def test_hiding_messages_by_fewer_read_queues_needs_force(
    aerobee_broker: EmbeddedBroker,
) -> None:
    url = aerobee_broker.url
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=4)
        for queue in await mq.queues("orders"):
            for number in range(queue.queue_id):  # none in the first, three in the last
                await mq.send("orders", b"%d" % number, order_key=_key_of(queue.queue_id))
        stats = {row.queue.queue_id: row.max_offset for row in await mq.admin.topic_stats("orders")}
        assert stats == {0: 0, 1: 1, 2: 2, 3: 3}
        refused = await aerobee("topic", "update", "orders", "--queues", "2", url=url, code=1)
        assert "5 message(s)" in refused.err and "queues 2, 3" in refused.err
        assert "--force" in refused.err and "--write-queues" in refused.err
        [config] = (await mq.admin.topic_config("orders")).values()
        assert config["readQueueNums"] == 4
        await aerobee("topic", "update", "orders", "--write-queues", "2", url=url)
        assert len(await stored_bodies(mq, "orders")) == 6
        forced = await aerobee("topic", "update", "orders", "--queues", "2", "--force", url=url)
        assert "5 message(s)" in forced.err
        assert len(await stored_bodies(mq, "orders")) == 1


async def test_fewer_queues_without_messages_need_no_force(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    await aerobee("topic", "create", "orders", "--queues", "4", url=url)
    done = await aerobee("topic", "update", "orders", "--queues", "2", "--json", url=url)
    assert done.json == {"topic": "orders", "read_queues": 2, "write_queues": 2}


def _key_of(queue_id: int) -> str:
    """An order key that goes to that queue of four."""
    return next(key for key in map(str, range(100)) if abs(java_hash(key)) % 4 == queue_id)


@pytest.mark.parametrize(
    "targets",
    [
        ("--to-first", "--to-last"),
        ("--to-first", "--to-time", "1h"),
        ("--to-last", "--to-time", "1h"),
        (),
    ],
)
async def test_a_reset_takes_exactly_one_target(
    aerobee_broker: EmbeddedBroker, targets: tuple[str, ...]
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        await mq.admin.create_group("g")
    words = ("offsets", "reset", "g", "orders", *targets)
    refused = await aerobee(*words, url=aerobee_broker.url, code=2)
    assert "one of --to-first, --to-last and --to-time" in refused.err
    async with aerobee_broker.connect() as mq:
        assert [row.offset for row in await mq.admin.lag("g", "orders") if row.offset > 0] == []


@pytest.mark.parametrize("words", [("topic", "delete", "orders"), ("group", "delete", "billing")])
async def test_deleting_without_a_terminal_asks_for_yes(
    aerobee_broker: EmbeddedBroker, words: Sequence[str]
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        await mq.admin.create_group("billing")
    refused = await aerobee(*words, url=aerobee_broker.url, stdin=b"y\n", code=2)
    assert "--yes" in refused.err and words[2] in refused.err
    async with aerobee_broker.connect() as mq:
        assert "orders" in await mq.admin.topics()
        assert "billing" in await mq.admin.groups()


@pytest.mark.parametrize("words", [("topic", "delete", "orders"), ("group", "delete", "billing")])
async def test_deleting_at_a_terminal_asks_by_name(
    aerobee_broker: EmbeddedBroker, words: Sequence[str]
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        await mq.admin.create_group("billing")
    command = [*words, "--url", aerobee_broker.url]
    code, shown = await typed(command, until=words[2], answer="n\n")
    assert code == 130 and f"Delete {words[0]} {words[2]}" in shown
    code, shown = await typed(command, until=words[2], answer="y\n")
    assert code == 0 and f"{words[0]} {words[2]} is deleted" in shown


async def test_the_question_is_no_part_of_the_output(
    aerobee_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
    command = ["topic", "delete", "orders", "--json", "--url", aerobee_broker.url]
    into = tmp_path / "out.json"
    code, shown = await typed(command, until="Delete topic orders", answer="y\n", into=into)
    assert code == 0, shown
    assert json.loads(into.read_text()) == {"deleted": "orders"}


async def test_a_topic_made_by_command_has_as_many_queues_as_one_made_by_sending(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("by-sending", b"x")
        await mq.admin.create_topic("by-program")
        await aerobee("topic", "create", "by-command", url=aerobee_broker.url)
        for topic in ("by-sending", "by-program", "by-command"):
            assert len(await mq.queues(topic)) == AUTO_CREATE_QUEUES, topic
