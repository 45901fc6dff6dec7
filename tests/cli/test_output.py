"""What the command prints: JSON for programs, tables for terminals, texts, completion."""

import ast
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import click
import pytest
from aerobee_command import aerobee, ended
from terminals import typed

from aerobee import (
    AerobeeError,
    Client,
    ConnectFailed,
    ConsumerOptions,
    NotFound,
    SendsFailed,
    Unconfirmed,
)
from aerobee.client.cli import cli
from aerobee.client.cli.common import failure_of
from aerobee.testing import EmbeddedBroker

ROOT = Path(__file__).resolve().parents[2]
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# What these hold is named by users and brokers: properties, attributes, topics, settings.
NAMED_BY_OTHERS = {"properties", "attributes", "conflicts", "settings"}


def helps(command: click.Command) -> Iterator[str]:
    """The help of the command, of its options and of the commands below it."""
    yield command.help or ""
    yield from (option.help or "" for option in command.params if isinstance(option, click.Option))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helps(below)


def test_no_help_names_a_class_of_the_code() -> None:
    """Renaming a class once renamed a word of a help text, too."""
    sources = (ROOT / "client").rglob("*.py")
    nodes = [node for file in sources for node in ast.walk(ast.parse(file.read_text()))]
    names = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    internal = {name for name in names if re.search("[a-z][A-Z]", name)}
    texts = list(helps(cli))
    assert len(texts) > 200
    assert [text for text in texts if internal & set(re.findall(r"\w+", text))] == []


def keys_of(value: object) -> Iterator[str]:
    """Every key that the command itself has named."""
    if isinstance(value, list):
        for item in value:
            yield from keys_of(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            inner = item.values() if key in NAMED_BY_OTHERS and isinstance(item, dict) else [item]
            for each in inner:
                yield from keys_of(each)


async def make_something_of_each(mq: Client) -> None:
    await mq.admin.create_topic("orders", queues=1)
    await mq.send("orders", b"x", key="k", properties={"Camel Case": "1"})
    await mq.send("orders", b"later", delay=3600)
    async with mq.consumer("orders", group="g", options=ConsumerOptions(max_retries=0)) as inbox:
        await (await inbox.get()).retry()


@pytest.mark.parametrize(
    "line",
    [
        "topic list",
        "topic show orders",
        "group list",
        "group show g",
        "offsets show g",
        "timer list",
        "dlq list",
        "dlq list g",
        "message key orders k",
        "message time orders",
        "consume orders -n 1",
        "cluster status",
        "cluster brokers",
        "ping",
        "doctor",
        "config flush",
        "bench -n 10 --size 10",
    ],
)
async def test_keys_of_json_are_snake_case(aerobee_broker: EmbeddedBroker, line: str) -> None:
    async with aerobee_broker.connect() as mq:
        await make_something_of_each(mq)
    url = "" if line.startswith("config") else aerobee_broker.url
    found = (await aerobee(*line.split(), "--json", url=url)).json
    assert found and [key for key in keys_of(found) if not SNAKE.fullmatch(key)] == []


async def test_settings_of_topics_and_groups_have_snake_case_too(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.admin.create_topic("orders", attributes={"message.type": "NORMAL"})
        await mq.admin.create_group("g", max_retries=3)
    [topic] = (
        (await aerobee("topic", "show", "orders", "--json", url=aerobee_broker.url))
        .json["settings"]
        .values()
    )
    assert topic["read_queue_nums"] == 4 and topic["attributes"] == {"message.type": "NORMAL"}
    [group] = (
        (await aerobee("group", "show", "g", "--json", url=aerobee_broker.url))
        .json["settings"]
        .values()
    )
    assert group["retry_max_times"] == 3


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (("topic", "show", "nowhere"), 3, "not_found"),
        (("topic", "create"), 2, "wrong_usage"),
        (("topic", "create", "bad*name"), 1, "failed"),
        (("offsets", "reset", "g", "t", "--to-first", "--to-last"), 2, "wrong_usage"),
    ],
)
async def test_with_json_failures_are_json_too(
    aerobee_broker: EmbeddedBroker, words: Sequence[str], code: int, kind: str
) -> None:
    output = await aerobee(*words, "--json", url=aerobee_broker.url, code=code)
    assert output.out == "" and output.err.count("\n") == 1
    assert set(output.error) == {"error", "kind", "exit_code"}
    assert (output.error["kind"], output.error["exit_code"]) == (kind, code)


async def test_with_json_nobody_reached_is_json_too() -> None:
    output = await aerobee("topic", "list", "--json", "--url", "mq://127.0.0.1:1", code=4)
    assert output.error["kind"] == "unreached" and "no connection" in output.error["error"]


@pytest.mark.parametrize("columns", [80, 40])
async def test_no_table_splits_an_id(aerobee_broker: EmbeddedBroker, columns: int) -> None:
    url = aerobee_broker.url
    async with aerobee_broker.connect() as mq:
        await make_something_of_each(mq)
        sent = await mq.send("orders", b"a body of several words " * 6, tag="paid", key="o-42")
        held = await mq.send("orders", b"later", delay=60)
        [dead] = [row async for row in mq.find("%DLQ%g")]
    assert held.recall_handle is not None
    for line, words in (
        ("message time orders", [sent.message_id]),
        ("message key orders o-42", [sent.message_id]),
        ("timer list", [held.message_id, held.recall_handle]),
        ("dlq list g", [dead.message_id]),
        ("cluster status", [aerobee_broker.address]),
        ("topic show orders", []),
    ):
        code, shown = await typed([*line.split(), "--url", url], columns=columns)
        assert code == 0
        for word in words:
            assert word in shown, f"{line}\n{shown}"


async def test_progress_of_a_group_is_a_table_at_80_columns(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        async with mq.consumer("orders", group="billing") as inbox:
            await (await inbox.get()).ack()
    words = ("offsets", "show", "billing", "--url", aerobee_broker.url)
    code, shown = await typed(words, columns=80)
    heading = next(line for line in shown.splitlines() if "topic" in line)
    assert code == 0 and "consumed" in heading and "lag" in heading, shown


async def test_a_table_that_fits_its_terminal_is_a_table(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        sent = await mq.send("orders", b"words " * 30, key="o-42")
    words = ("message", "key", "orders", "o-42", "--url", aerobee_broker.url)
    code, shown = await typed(words, columns=120)
    assert code == 0 and sent.message_id in shown
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 120
    assert any("offset" in line and "tag" in line for line in lines)


async def complete(url: str, *words: str) -> set[str]:
    """What bash would offer for the last word."""
    code, out, err = await ended(
        AEROBEE_URL=url,
        _AEROBEE_COMPLETE="bash_complete",
        COMP_WORDS=" ".join(("aerobee", *words)),
        COMP_CWORD=str(len(words)),
    )
    assert (code, err) == (0, b"")
    return {line.partition(",")[2] for line in out.decode().split()}


async def test_topics_groups_and_settings_are_completed(aerobee_broker: EmbeddedBroker) -> None:
    async with aerobee_broker.connect() as mq:
        for topic in ("orders", "orders-eu", "bills"):
            await mq.admin.create_topic(topic)
        await mq.admin.create_group("grocers")
    url = aerobee_broker.url
    assert await complete(url, "send", "or") == {"orders", "orders-eu"}
    assert await complete(url, "topic", "show", "b") == {"bills"}
    assert await complete(url, "consume", "b") == {"bills"}
    assert await complete(url, "consume", "orders", "--group", "g") == {"grocers"}
    assert await complete(url, "offsets", "show", "g") == {"grocers"}
    assert await complete(url, "offsets", "show", "grocers", "or") == {"orders", "orders-eu"}
    assert await complete(url, "dlq", "replay", "g") == {"grocers"}
    assert "flushDiskType=" in await complete(url, "broker", "--set", "flushD")
    assert "flushDiskType" in await complete(url, "config", "flushD")
    assert "flushDiskType=" in await complete(url, "cluster", "settings", "--set", "flushD")
    nobody = "mq://127.0.0.1:1"
    assert await complete(nobody, "topic", "show", "b") == set()


async def test_a_delayed_send_tells_when_it_is_due_and_its_handle(
    aerobee_broker: EmbeddedBroker,
) -> None:
    url = aerobee_broker.url
    output = (await aerobee("send", "orders", "x", "--delay", "3600", url=url)).out
    async with aerobee_broker.connect() as mq:
        [timer] = await mq.admin.timers("orders")
    due = datetime.fromtimestamp(timer["deliverTimestamp"] / 1000).astimezone()
    assert f"due {due.isoformat(sep=' ', timespec='milliseconds')}" in output
    assert f"aerobee timer recall orders {timer['recallHandle']}" in output
    assert " at 0 " not in output and "/0" not in output  # the place is that of the broker's timers
    sent = (await aerobee("send", "orders", "y", "--deliver-at", "2h", "--json", url=url)).json
    assert sent["recall_handle"] and sent["due"] and "queue_offset" not in sent


@pytest.mark.parametrize(
    ("words", "code", "said", "unsaid"),
    [
        (("message", "id", "AAAA"), 2, "--topic", "needs the topic"),
        (("message", "id", "AAAA", "--topic", "orders"), 3, "AAAA", "hexadecimal"),
        (("message", "id", "7F0000013DFA42B8BCF55585ADD20000"), 3, "--topic", "which 127."),
        (("cluster", "settings", "--set", "nosuch=1"), 1, "there is no setting nosuch", "NO_PERM"),
        (("send", "orders", "x", "--order-key", ""), 2, "an order key", "a order"),
        (("send", "orders", "x", "--key", "a b"), 2, "repeat --key", "list"),
        (
            ("send", "orders", "x", "--delay", "1", "--deliver-at", "2h"),
            *(2, "--deliver-at", "deliver_at"),
        ),
        (("send", "orders", "x", "--delay", "-1"), 2, "--delay", "deliver_at"),
        (("consume", "orders", "--tag", "a", "--sql", "b > 1"), 2, "--tag or --sql", "tags or sql"),
        (("consume", "orders", "--tag", "*"), 2, "--tag", "tags out"),
        (("topic", "list", "--timeout", "0"), 2, "--timeout", "argument"),
        (("timer", "recall", "orders", "AAAA"), 2, "AAAA", "_"),
    ],
)
async def test_errors_name_the_commands_own_options(
    aerobee_broker: EmbeddedBroker, words: Sequence[str], code: int, said: str, unsaid: str
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
    output = (await aerobee(*words, url=aerobee_broker.url, code=code)).err
    assert said in output and unsaid not in output


async def test_what_a_message_does_not_have_is_a_dash_in_a_table(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"body")
    done = await aerobee("message", "time", "orders", url=aerobee_broker.url)
    assert re.search(r"[0-9A-F]{32} +- +- +body", done.out), done.out


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([ConnectFailed("x"), Unconfirmed("x", message_id="", topic=""), NotFound("x")], 5),
        ([ConnectFailed("x"), ConnectFailed("x")], 4),
        ([ConnectFailed("x"), NotFound("x")], 1),
    ],
)
def test_lines_that_were_not_sent_give_the_exit_code_of_their_errors(
    errors: list[AerobeeError], code: int
) -> None:
    assert failure_of(SendsFailed([(b"x", error) for error in errors])).status == code
