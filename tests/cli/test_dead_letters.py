"""`aerobee dlq`: what is dead, replayed once, never back among the dead, and gone when purged."""

from collections.abc import Sequence

import pytest
from aerobee_command import aerobee

from aerobee import Client
from aerobee.testing import EmbeddedBroker


async def put_letters(mq: Client, *bodies: bytes, origin: str = "orders") -> None:
    for body in bodies:
        await mq.send("%DLQ%g", body, key="k", properties={"DLQ_ORIGIN_TOPIC": origin})


async def bodies_of(mq: Client, topic: str) -> list[bytes]:
    return sorted([row.body async for row in mq.find(topic)])


async def test_a_letter_is_replayed_once_and_listed_as_such(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    async with aerobee_broker.connect() as mq:
        await put_letters(mq, b"one")
        assert (await aerobee("dlq", "replay", "g", "--json", url=url)).json["replayed"] == 1
        await put_letters(mq, b"two")
        rows = (await aerobee("dlq", "list", "g", "--json", url=url)).json
        assert {row["body"]: bool(row["replayed"]) for row in rows} == {"one": True, "two": False}
        done = (await aerobee("dlq", "replay", "g", "--json", url=url)).json
        assert done == {"group": "g", "found": 2, "replayed": 1, "replayed_before": 1}
        assert await bodies_of(mq, "orders") == [b"one", b"two"]
        output = await aerobee("dlq", "replay", "g", url=url)
        assert "2 were replayed before" in output.out and "--again" in output.out
        await aerobee("dlq", "replay", "g", "--again", url=url)
        assert await bodies_of(mq, "orders") == [b"one", b"one", b"two", b"two"]
        shown = [row["topic"] for row in (await aerobee("topic", "list", "--json", url=url)).json]
        assert shown == ["orders"]  # the command's own topic of marks is hidden


async def test_a_replay_never_goes_among_the_dead_letters(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    async with aerobee_broker.connect() as mq:
        await mq.send("%DLQ%g", b"by hand")  # no origin property
        await put_letters(mq, b"of a letter", origin="%DLQ%other")
        await put_letters(mq, b"known")
        output = await aerobee("dlq", "replay", "g", url=url, code=1)
        assert "2 could not be sent" in output.err and "--to" in output.err
        assert await bodies_of(mq, "orders") == [b"known"]
        assert len(await bodies_of(mq, "%DLQ%g")) == 3
        assert "%DLQ%other" not in await mq.admin.topics(system=True)
        refused = await aerobee("dlq", "replay", "g", "--to", "%DLQ%g", url=url, code=2)
        assert "cannot go to a dead-letter topic" in refused.err
        await aerobee("dlq", "replay", "g", "--to", "repaired", url=url)
        assert await bodies_of(mq, "repaired") == [b"by hand", b"of a letter"]


async def test_purging_removes_the_letters_of_one_group(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    async with aerobee_broker.connect() as mq:
        await put_letters(mq, b"one", b"two")
        await mq.send("%DLQ%h", b"another group's")
        refused = await aerobee("dlq", "purge", "g", url=url, stdin=b"y\n", code=2)
        assert "--yes" in refused.err and "group g" in refused.err
        done = (await aerobee("dlq", "purge", "g", "--yes", "--json", url=url)).json
        assert done == {"group": "g", "purged": 2}
        rows = (await aerobee("dlq", "list", "--json", url=url)).json
        assert rows == [{"group": "h", "dead_letters": 1}]
        await put_letters(mq, b"after")
        assert await bodies_of(mq, "%DLQ%g") == [b"after"]


@pytest.mark.parametrize("words", [("list",), ("replay",), ("purge", "--yes")])
async def test_a_group_without_dead_letters_is_no_failure_and_an_unknown_one_is(
    aerobee_broker: EmbeddedBroker, words: Sequence[str]
) -> None:
    url = aerobee_broker.url
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_group("clean")
    output = await aerobee("dlq", *words, "clean", url=url)
    assert output.out == "group clean has no dead letters\n"
    output = await aerobee("dlq", *words, "nobody", url=url, code=3)
    assert "'nobody'" in output.err
