"""The `aerobee` command as scripts and people run it: a real process against a real broker."""

import asyncio
import json
import re
import signal
import socket
from pathlib import Path

import pytest
from aerobee_command import AEROBEE, aerobee
from peers.tools import heed_interrupts
from waiting import until

from aerobee import AerobeeError, Client, ConsumerOptions
from aerobee.protocol.names import REPLAYED_TOPIC
from aerobee.testing import EmbeddedBroker


async def test_what_is_sent_can_be_consumed_and_found(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    sent = (
        await aerobee("send", "orders", "hello", "--tag", "t", "--key", "k", "--json", url=url)
    ).json
    assert sent["topic"] == "orders" and sent["queue_offset"] == 0 and sent["ok"] is True
    await aerobee("send", "orders", "-", "--property", "a=b", url=url, stdin=b"from a pipe")
    await aerobee("send", "orders", "--lines", url=url, stdin=b"one\ntwo\nthree\n")

    lines = (await aerobee("consume", "orders", "--json", url=url)).out.splitlines()
    found = {json.loads(line)["body"] for line in lines}
    assert found == {"hello", "from a pipe", "one", "two", "three"}
    only = await aerobee("consume", "orders", "--tag", "t", url=url)
    assert only.out.count("\n") == 1 and only.out.rstrip().endswith("[t] k  hello")

    by_key = (await aerobee("message", "key", "orders", "k", "--json", url=url)).json
    assert [row["body"] for row in by_key] == ["hello"]
    words = ("message", "id", sent["message_id"], "--topic", "orders", "--json")
    by_id = (await aerobee(*words, url=url)).json
    assert by_id["offset_message_id"] == sent["offset_message_id"]
    shown = await aerobee("message", "id", sent["offset_message_id"], url=url)
    assert "KEYS = k" in shown.out and "hello" in shown.out
    by_time = (await aerobee("message", "time", "orders", "--since", "1h", "--json", url=url)).json
    assert len(by_time) == 5
    early = await aerobee("message", "time", "orders", "--until", "2h", "--json", url=url, code=3)
    assert early.json == [] and "no message found" in early.err


async def test_consuming_in_a_group_commits(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    await aerobee("send", "orders", "--lines", url=url, stdin=b"1\n2\n3\n4\n")
    first = await aerobee("consume", "orders", "--group", "g", "-n", "3", "--json", url=url)
    second = await aerobee("consume", "orders", "--group", "g", "-n", "1", "--json", url=url)
    bodies = [json.loads(line)["body"] for line in (first.out + second.out).splitlines()]
    assert sorted(bodies) == ["1", "2", "3", "4"]
    lag = (await aerobee("offsets", "show", "g", "orders", "--json", url=url)).json
    assert sum(row["lag"] for row in lag) == 0
    await aerobee("offsets", "reset", "g", "orders", "--to-first", url=url)
    lag = (await aerobee("offsets", "show", "g", "orders", "--json", url=url)).json
    assert sum(row["lag"] for row in lag) == 4
    both = await aerobee("offsets", "reset", "g", "orders", url=url, code=2)
    assert "--to-first" in both.err


async def test_follow_prints_what_comes_until_interrupted(aerobee_broker: EmbeddedBroker) -> None:
    await aerobee("topic", "create", "orders", url=aerobee_broker.url)
    process = await asyncio.create_subprocess_exec(
        *(AEROBEE, "consume", "orders", "--follow", "--json", "--url", aerobee_broker.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=heed_interrupts,
    )
    assert process.stdout is not None
    async with aerobee_broker.connect() as mq, asyncio.timeout(20):
        await mq.send("orders", b"while it looks")
        assert json.loads(await process.stdout.readline())["body"] == "while it looks"
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 130


async def test_topics_are_made_shown_and_deleted(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    await aerobee("topic", "create", "orders", "--queues", "3", url=url)
    assert (await aerobee("topic", "list", "--json", url=url)).json == [{"topic": "orders"}]
    assert "TBW102" in (await aerobee("topic", "list", "--all", url=url)).out
    shown = (await aerobee("topic", "show", "orders", "--json", url=url)).json
    assert len(shown["queues"]) == 3
    await aerobee("topic", "delete", "orders", "--yes", url=url)
    assert "no topics yet" in (await aerobee("topic", "list", url=url)).out
    gone = await aerobee("topic", "show", "orders", url=url, code=3)
    assert "orders" in gone.err


async def test_groups_are_made_shown_and_deleted(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    await aerobee("group", "create", "g", "--max-retries", "3", url=url)
    assert (await aerobee("group", "list", "--json", url=url)).json == [
        {"group": "g", "members": 0, "lag": 0}
    ]
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        async with mq.consumer("orders", group="g"):
            shown = (await aerobee("group", "show", "g", "--json", url=url)).json
            assert [row["client"] for row in shown["members"]] == [mq.client_id]
    assert "at most 3 retries" in (await aerobee("group", "show", "g", url=url)).out
    await aerobee("group", "delete", "g", "--yes", url=url)
    await aerobee("group", "show", "g", url=url, code=3)


async def test_dead_letters_are_listed_shown_and_replayed(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    assert "no group has dead letters" in (await aerobee("dlq", "list", url=url)).out
    async with aerobee_broker.connect() as mq:
        options = ConsumerOptions(max_retries=0)
        async with mq.consumer("orders", group="g", options=options) as inbox:
            receipt = await mq.send("orders", b"poison", tag="t", key="k", properties={"own": "1"})
            async with asyncio.timeout(10):
                await (await inbox.get()).retry()
    rows = (await aerobee("dlq", "list", "--json", url=url)).json
    assert rows == [{"group": "g", "dead_letters": 1}]
    [row] = (await aerobee("dlq", "list", "g", "--json", url=url)).json
    assert row["topic"] == "orders" and row["body"] == "poison"
    shown = (await aerobee("dlq", "show", "g", receipt.message_id, "--json", url=url)).json
    assert shown["body"] == "poison"
    counted = (await aerobee("dlq", "replay", "g", "--dry-run", "--json", url=url)).json
    assert counted["replayed"] == 0 and counted["found"] == 1
    done = (await aerobee("dlq", "replay", "g", "--rate", "50", "--json", url=url)).json
    assert done["replayed"] == 1
    found = (await aerobee("message", "key", "orders", "k", "--json", url=url)).json
    again = found[-1]
    assert len(found) == 2 and again["tag"] == "t" and again["properties"]["own"] == "1"
    assert again["properties"]["AEROBEE_REPLAYED_FROM"] == shown["offset_message_id"]
    await aerobee("dlq", "show", "g", "nothing", url=url, code=3)


async def test_delayed_messages_are_listed_and_recalled(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    assert "no delayed message is pending" in (await aerobee("timer", "list", url=url)).out
    sent = (await aerobee("send", "orders", "later", "--delay", "3600", "--json", url=url)).json
    [row] = (await aerobee("timer", "list", "orders", "--json", url=url)).json
    assert row["id"] == sent["message_id"] and row["bytes"] == 5
    recalled = (
        await aerobee("timer", "recall", "orders", row["recall_handle"], "--json", url=url)
    ).json
    assert recalled == {"recalled": sent["message_id"]}


async def test_members_that_subscribe_differently_are_shown(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    async with aerobee_broker.connect() as one, aerobee_broker.connect() as two:
        await one.send("orders", b"x")
        async with (
            one.consumer("orders", group="g", tags="a"),
            two.consumer("orders", group="g", tags="b"),
        ):
            shown = (await aerobee("group", "show", "g", "--json", url=url)).json
            assert {row["sub_string"] for row in shown["conflicts"]["orders"]} == {"a", "b"}
            assert (
                "WARNING: members subscribe orders"
                in (await aerobee("group", "show", "g", url=url)).out
            )
            found = (await aerobee("doctor", "--json", url=url, code=1)).json
            assert any("subscribe differently" in row["finding"] for row in found)


async def test_the_lag_of_a_broadcasting_group_is_shown_as_not_kept(
    aerobee_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    options = ConsumerOptions(state_path=tmp_path / "offsets.json")
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        async with mq.consumer("orders", group="g", broadcast=True, options=options):
            shown = await aerobee("group", "show", "g", url=aerobee_broker.url)
            assert "lag: not kept" in shown.out


async def test_replay_keeps_to_its_rate(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    async with aerobee_broker.connect() as mq:
        for number in range(10):
            await mq.send("%DLQ%g", b"%d" % number, properties={"DLQ_ORIGIN_TOPIC": "orders"})
        begun = asyncio.get_running_loop().time()
        await aerobee("dlq", "replay", "g", "--rate", "10", url=url)
        assert asyncio.get_running_loop().time() - begun > 0.9
        assert len([row async for row in mq.find("orders")]) == 10


async def test_a_dead_letter_that_cannot_be_replayed_does_not_keep_the_others_back(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        sender = mq._core.sender
        for keys in ("k0", "a\tb", "k2"):  # other clients allow more than this one sends
            letter = sender.make("%DLQ%g", keys.encode(), properties={"DLQ_ORIGIN_TOPIC": "orders"})
            letter.properties += f"KEYS\x01{keys}\x02"
            receipt = await sender.send(letter, 3.0)
            if keys == "a\tb":
                refused = receipt.message_id
        result = await aerobee("dlq", "replay", "g", "--json", url=aerobee_broker.url, code=1)
        assert result.json == {"group": "g", "found": 3, "replayed": 2, "replayed_before": 0}
        assert refused in result.err and "blank" in result.err
        assert {row.body async for row in mq.find("orders")} == {b"k0", b"k2"}


async def test_a_replay_that_ends_half_way_tells_how_far_it_came(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        for number in range(3):
            await mq.send("%DLQ%g", b"%d" % number, properties={"DLQ_ORIGIN_TOPIC": "orders"})
        words = ("dlq", "replay", "g", "--rate", "0.25", "--timeout", "1")
        replay = asyncio.create_task(aerobee(*words, url=aerobee_broker.url, code=4))

        async def one_is_marked() -> bool:
            return bool(await bodies_of(mq, REPLAYED_TOPIC))

        await until(one_is_marked)  # its answer was sent before that
    await aerobee_broker.stop()
    assert "1 of 3 dead letter(s) of g were sent again, then: " in (await replay).err


async def bodies_of(mq: Client, topic: str) -> list[bytes]:
    try:
        return [row.body async for row in mq.find(topic)]
    except AerobeeError:
        return []


async def test_a_cluster_is_shown_pinged_and_its_settings_listed(
    aerobee_broker: EmbeddedBroker,
) -> None:
    url = aerobee_broker.url
    [broker] = (await aerobee("cluster", "brokers", "--json", url=url)).json
    assert broker["address"] == aerobee_broker.address
    [status] = (await aerobee("cluster", "status", "--json", url=url)).json
    assert status["disk"].endswith("%")
    tables = (await aerobee("cluster", "settings", "--json", url=url)).json
    assert tables[aerobee_broker.address]["bindAddress"] == "127.0.0.1"
    answers = (await aerobee("ping", "-n", "2", "--json", url=url)).json
    assert {row["answer"] for row in answers} == {"yes"}
    none = await aerobee("cluster", "settings", "--broker", "nobody", url=url, code=3)
    assert "nobody" in none.err


async def test_doctor_finds_a_healthy_cluster_healthy(aerobee_broker: EmbeddedBroker) -> None:
    await aerobee("send", "orders", "x", url=aerobee_broker.url)
    found = (await aerobee("doctor", "--topic", "orders", "--json", url=aerobee_broker.url)).json
    assert {row["verdict"] for row in found} == {"ok"}
    assert any(row["what"] == "topic orders" for row in found)


def dead_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def test_doctor_says_what_to_do_when_nothing_listens() -> None:
    result = await aerobee("doctor", "--json", url=f"mq://{dead_address()}", code=1)
    [server, *_] = result.json
    assert server["verdict"] == "trouble"
    assert "aerobee broker" in server["remedy"] or "did you mean" in server["remedy"]


async def test_doctor_names_a_topic_without_a_route(aerobee_broker: EmbeddedBroker) -> None:
    result = await aerobee("doctor", "--topic", "nowhere", "--json", url=aerobee_broker.url, code=1)
    [topic] = [row for row in result.json if row["what"] == "topic nowhere"]
    assert topic["verdict"] == "trouble" and "topic create nowhere" in topic["remedy"]


async def test_doctor_sees_a_broker_at_an_address_that_cannot_be_reached(
    aerobee_broker: EmbeddedBroker,
) -> None:
    """The name server's route points elsewhere, as after a wrong brokerIP1."""
    async with aerobee_broker.connect() as mq:
        # The name service drops brokers that disconnect: the ghost stays connected.
        await register_ghost(mq, aerobee_broker.namesrv, dead_address())
        result = await aerobee("doctor", "--json", url=aerobee_broker.url, code=1)
    [ghost] = [row for row in result.json if row["what"] == "broker ghost"]
    assert ghost["verdict"] == "trouble" and "brokerIP1" in ghost["remedy"]


async def register_ghost(mq: Client, namesrv: str, address: str) -> None:
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    topics = {
        name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        for name in ("ghost-1", "ghost-2")
    }
    body = {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": topics},
    }
    ext = {
        "brokerName": "ghost",
        "brokerAddr": address,
        "clusterName": "DefaultCluster",
        "haServerAddr": address,
        "brokerId": "0",
    }
    await mq._core.remoting.ask(namesrv, 103, ext, json.dumps(body).encode(), what="registering")


async def test_exit_codes_tell_scripts_what_happened(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    await aerobee("send", "orders", "x", url=url, code=0)
    refused = await aerobee("send", "bad*name", "x", "--timeout", "1", url=url, code=1)
    assert refused.err.startswith("aerobee: ")
    await aerobee("send", url=url, code=2)
    await aerobee("message", "key", "orders", "none", url=url, code=3)
    unreached = await aerobee("topic", "list", url=f"mq://{dead_address()}", code=4)
    assert "no connection" in unreached.err


async def test_bench_measures(aerobee_broker: EmbeddedBroker) -> None:
    rows = (
        await aerobee("bench", "-n", "2000", "--size", "100", "--json", url=aerobee_broker.url)
    ).json
    assert [row["what"] for row in rows] == ["send in batches", "consume", "send one by one"]
    assert all(row["messages_per_second"] > 0 for row in rows)


async def test_config_lists_settings_with_their_meaning() -> None:
    rows = (await aerobee("config", "flushDiskType", "--json")).json
    assert rows[0]["key"] == "flushDiskType" and rows[0]["default"] == "ASYNC_FLUSH"
    rows = (await aerobee("config", "listenPort", "--set", "listenPort=5", "--json")).json
    assert next(row for row in rows if row["key"] == "listenPort")["value"] == "5"
    wrong = await aerobee("config", "--set", "lissenPort=5", code=1)
    assert "listenPort" in wrong.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_completion_prints_a_script(shell: str) -> None:
    assert "_AEROBEE_COMPLETE" in (await aerobee("completion", shell)).out


async def test_help_names_every_command_and_the_exit_codes() -> None:
    text = (await aerobee("--help")).out
    for name in ("broker", "send", "consume", "doctor", "dlq", "offsets", "install-service"):
        assert re.search(rf"^  {name} ", text, re.M)
    assert "4 unreachable" in text
