"""The `aerobee` command with closed pipes, interrupts, odd bytes and wrong usage."""

import asyncio
import base64
import json
import os
import re
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from aerobee_command import AEROBEE, aerobee
from peers.tools import heed_interrupts
from waiting import until

from aerobee import AerobeeError
from aerobee.client.producing.sender import Sender
from aerobee.protocol.files.record import COMPRESSED
from aerobee.testing import EmbeddedBroker

PIPE = asyncio.subprocess.PIPE


BODIES = ["[bold]plain[/bold]", "[/] closes nothing", ":smile: [link=x]", "[red]"]


async def test_tables_show_what_looks_like_markup_as_it_is(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        for body in BODIES:
            await mq.send("orders", body.encode(), key="[k]")
    out, _ = await aerobee("message", "key", "orders", "[k]", url=aerobee_broker.url)
    for body in BODIES:
        assert body in out
    assert out.count("[k]") == len(BODIES)


async def test_a_reader_that_goes_away_is_no_error(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq, mq.producer("orders", linger=0.005) as orders:
        for number in range(2000):  # more output than a pipe holds
            await orders.send(b"%d" % number + b"x" * 100)
    store = aerobee_broker.folder / "store"
    for words in (
        f"store dump '{store}'",
        "consume orders",
        "consume orders --json",
        "message time orders -n 2000",
        "config",
    ):
        line = f"set -o pipefail; '{AEROBEE}' {words} | head -n 1"
        environment = {**os.environ, "AEROBEE_URL": aerobee_broker.url}
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", line), stdout=PIPE, stderr=PIPE, env=environment
        )
        out, err = await process.communicate()
        assert (process.returncode, err) == (0, b""), words
        assert out.count(b"\n") == 1


async def test_interrupting_a_send_that_reads_its_input_ends_it(
    aerobee_broker: EmbeddedBroker,
) -> None:
    for words in (["send", "orders"], ["send", "orders", "--lines"]):
        process = await asyncio.create_subprocess_exec(
            *(AEROBEE, *words, "--url", aerobee_broker.url),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            preexec_fn=heed_interrupts,
        )
        await until(partial(has_threads, process.pid))  # it is reading
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(5):
            await process.wait()
        assert process.returncode == 130
        _, err = await process.communicate()
        assert err == b"aerobee: interrupted\n"


def has_threads(pid: int) -> bool:
    return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1


async def test_looking_leaves_no_group_behind(aerobee_broker: EmbeddedBroker) -> None:
    await aerobee("topic", "create", "orders", url=aerobee_broker.url)
    process = await asyncio.create_subprocess_exec(
        *(AEROBEE, "consume", "orders", "--follow", "--json", "--url", aerobee_broker.url),
        stdout=PIPE,
        stderr=PIPE,
        preexec_fn=heed_interrupts,
    )
    async with aerobee_broker.connect() as mq, asyncio.timeout(20):
        await mq.send("orders", b"x")
        assert process.stdout is not None
        assert json.loads(await process.stdout.readline())["body"] == "x"
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert process.returncode == 130
        assert [name for name in await mq.admin.groups() if "look" in name] == []
        assert [name for name in await mq.admin.topics(system=True) if "look" in name] == []


async def test_bytes_of_arguments_and_input_arrive_as_they_are(
    aerobee_broker: EmbeddedBroker,
) -> None:
    url = aerobee_broker.url
    await aerobee("send", "orders", b"\xff\xfe argument", url=url)
    await aerobee("send", "orders", url=url, stdin=b"\xff\xfe input\r\n")
    await aerobee("send", "orders", "--lines", url=url, stdin=b"\xff one\r\n\xfe two")
    async with aerobee_broker.connect() as mq:
        bodies = {message.body async for message in mq.find("orders")}
    assert bodies == {b"\xff\xfe argument", b"\xff\xfe input\r\n", b"\xff one", b"\xfe two"}
    _, err = await aerobee("send", "orders", "x", "--key", b"\xff", url=url, code=2)
    assert "UTF-8" in err


async def test_a_large_binary_body_is_shown_as_hex(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"\xff\x00\x80A" * 500, key="binary")
        await mq.send("orders", "é".encode() * 999 + b"!", key="text")
    out, _ = await aerobee("consume", "orders", url=aerobee_broker.url)
    [binary] = [line for line in out.splitlines() if " binary " in line]
    assert "ff008041" in binary
    [text] = [line for line in out.splitlines() if " text " in line]
    assert "éééé" in text


async def test_control_characters_do_not_reach_the_terminal(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        receipt = await mq.send(
            "orders", b"a\x1b[2Jb\nc", tag="t\x1b[1m\n", properties={"p": "\x1b]0;x\x07"}
        )
    for words in (
        ("consume", "orders"),
        ("message", "id", receipt.message_id, "--topic", "orders"),
        ("message", "time", "orders"),
    ):
        out, _ = await aerobee(*words, url=aerobee_broker.url)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", out), words
    out, _ = await aerobee("consume", "orders", url=aerobee_broker.url)
    assert out.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["topic", "list", "--url", "http://somewhere"], "mq://"),
        (["topic", "list", "--url", "mq://a:b"], "host:port"),
        (["topic", "list", "--url", "mq://a:²"], "host:port"),
        (["topic", "list", "--timeout", "0"], "timeout"),
        (["send", "orders", "x", "--property", "a"], "NAME=VALUE"),
        (["send", "orders", "x", "--tag", ""], "tag"),
        (["topic", "create", "orders", "--attribute", "a"], "NAME=VALUE"),
        (["cluster", "settings", "--set", "flushDiskType"], "NAME=VALUE"),
        (["consume", "orders", "--tag", "a||b"], "tag"),
        (["consume", "orders", "--tag", "a", "--sql", "b > 1"], "not both"),
        (["consume", "orders", "--from", "0001-01-01"], "time"),
        (["offsets", "reset", "g", "orders", "--to-first", "--queue", "-7"], "-7"),
        (["send", "orders", "x", "--delay", "nan"], "delay"),
        (["send", "orders", "x", "--delay", "inf"], "delay"),
        (["topic", "list", "--timeout", "nan"], "timeout"),
        (["store", "dump", ".", "--limit", "-1"], "--limit"),
    ],
)
async def test_wrong_usage_is_reported_as_such(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], text: str
) -> None:
    monkeypatch.setenv("AEROBEE_URL", aerobee_broker.url)
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
    _, err = await aerobee(*words, code=2)
    assert text in err


@pytest.mark.parametrize("url", ["mq://a..b:9876", "mq://" + "x" * 70 + ":9876"])
async def test_a_host_name_that_cannot_be_is_not_reached(url: str) -> None:
    _, err = await aerobee("topic", "list", url=url, code=4)
    assert "no connection" in err
    out, _ = await aerobee("doctor", "--json", url=url, code=1)
    assert json.loads(out)[0]["verdict"] == "trouble"


async def test_settings_in_json_are_those_asked_for(aerobee_broker: EmbeddedBroker) -> None:
    words = ("cluster", "settings", "--grep", "flushDisk", "--json")
    out, _ = await aerobee(*words, url=aerobee_broker.url)
    [table] = json.loads(out).values()
    assert table and all("flushdisk" in key.lower() for key in table)


async def test_bench_does_not_touch_a_topic_that_is_there(aerobee_broker: EmbeddedBroker) -> None:
    url = aerobee_broker.url
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=8)
        await mq.send("orders", b"precious")
        _, err = await aerobee("bench", "-n", "10", "--topic", "orders", url=url, code=1)
        assert "orders" in err
        assert [message.body async for message in mq.find("orders")] == [b"precious"]
        assert len(await mq.queues("orders")) == 8
        before = await mq.admin.topics(system=True)
        await aerobee("bench", "-n", "10", "--topic", "another", url=url)
        assert await mq.admin.topics(system=True) == before
        assert await mq.admin.groups() == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("send orders <&-", b"standard input"),
        ("send orders --lines <&-", b"standard input"),
        ("send orders 0> /dev/null", b"standard input"),
        ("consume orders > /dev/full", b"No space left"),
        ("topic list > /dev/full", b"No space left"),
    ],
)
async def test_input_and_output_that_cannot_be_used_are_reported(
    aerobee_broker: EmbeddedBroker, line: str, text: bytes
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", f"'{AEROBEE}' {line}"),
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "AEROBEE_URL": aerobee_broker.url},
    )
    _, err = await process.communicate()
    assert process.returncode == 1
    assert text in err and err.startswith(b"aerobee: ") and err.count(b"\n") == 1


async def test_deleting_what_is_not_there_is_reported(aerobee_broker: EmbeddedBroker) -> None:
    for words in (("topic", "delete", "nowhere", "--yes"), ("group", "delete", "nobody", "--yes")):
        _, err = await aerobee(*words, url=aerobee_broker.url, code=3)
        assert words[2] in err


async def test_deliver_at_counts_from_now_on(aerobee_broker: EmbeddedBroker) -> None:
    await aerobee("send", "orders", "later", "--deliver-at", "2h", url=aerobee_broker.url)
    async with aerobee_broker.connect() as mq:
        [timer] = await mq.admin.timers("orders")
        in_seconds = timer["deliverTimestamp"] / 1000 - time.time()
        assert 7000 < in_seconds < 7300


@pytest.mark.parametrize(
    "words",
    [
        ("send", b"\xff", "x"),
        ("consume", "orders", "--group", b"\xff"),
        ("topic", "create", b"\xff"),
        ("message", "key", "orders", b"\xff"),
    ],
)
async def test_names_that_are_no_text_are_refused(
    aerobee_broker: EmbeddedBroker, words: Sequence[str]
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
    _, err = await aerobee(*words, url=aerobee_broker.url, code=2)
    assert "UTF-8" in err


async def test_a_body_that_cannot_be_inflated_does_not_end_the_looking(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        sender = mq._core.sender
        broken = sender.make("orders", b"not deflated", key="broken")
        broken.sys_flag = COMPRESSED
        stored = await sender.send(broken, 3)
        await mq.send("orders", b"sound")
        with pytest.raises(AerobeeError, match="inflated"):
            _ = (await mq.message(stored.message_id, topic="orders")).body
    for words in (
        ("consume", "orders"),
        ("consume", "orders", "--json"),
        ("message", "time", "orders"),
        ("message", "time", "orders", "--json"),
    ):
        out, _ = await aerobee(*words, url=aerobee_broker.url)
        assert "sound" in out and "inflated" in out
    out, _ = await aerobee("message", "key", "orders", "broken", "--json", url=aerobee_broker.url)
    assert base64.b64decode(json.loads(out)[0]["body_base64"]) == b"not deflated"
    out, _ = await aerobee("message", "id", stored.offset_message_id, url=aerobee_broker.url)
    assert "inflated" in out


@pytest.mark.parametrize("born", [2**62, -(2**62)])
async def test_a_time_of_birth_that_no_calendar_has_does_not_end_the_looking(
    aerobee_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, born: int
) -> None:
    fields_of = Sender._ext

    def born_then(sender: Sender, *arguments: object) -> dict[str, str]:
        return fields_of(sender, *arguments) | {"g": str(born)}  # type: ignore[arg-type]

    url = aerobee_broker.url
    async with aerobee_broker.connect() as mq:
        monkeypatch.setattr(Sender, "_ext", born_then)
        strange = await mq.send("orders", b"strange")
        monkeypatch.undo()
        await mq.send("orders", b"plain")
    output = await aerobee("consume", "orders", "--json", url=url)
    found = {row["body"]: row for row in map(json.loads, output.out.splitlines())}
    assert found.keys() == {"strange", "plain"}
    assert found["strange"]["born_at"][:10] == ("9999-12-30" if born > 0 else "0001-01-02")
    for words in (("message", "id", strange.offset_message_id), ("why", strange.message_id)):
        await aerobee(*words, url=url)
