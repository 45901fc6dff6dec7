"""Topics, groups, offsets and key-values are saved by a thread: an answer waits for its own save
and for no other."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import statistics
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gated_disk import GatedDisk
from peers.in_process import Client, pull_ext, running_broker, send_ext
from waiting import until

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.handlers.send import Sends
from aerobee.broker.net.requests import Request
from aerobee.broker.services.config_files import table_file
from aerobee.broker.services.config_files.table_text import whole_slices
from aerobee.protocol.files.record import decode_records
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import SendRequest

Ask = Callable[[Client, str], Command]


def create_topic(client: Client, name: str) -> Command:
    fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4"}
    more = {"perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"}
    return client.command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | more)


def create_by_send(client: Client, name: str) -> Command:
    return client.command(RequestCode.SEND_MESSAGE_V2, send_ext(name), b"first")


def create_group(client: Client, name: str) -> Command:
    body = fastjson.dumps({"groupName": name})
    return client.command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


def put_key(client: Client, name: str) -> Command:
    return client.command(
        RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": name, "value": "v" * 10}
    )


def reset_offset(client: Client, name: str) -> Command:
    fields = {"topic": "Live", "group": "g", "timestamp": "-1", "isForce": "true", "offset": "-1"}
    return client.command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields | {"queueId": name})


KINDS = {
    "topic": create_topic,
    "topic by a send": create_by_send,
    "group": create_group,
    "key-value": put_key,
}
FILES = {
    "topic": "topics.json",
    "topic by a send": "topics.json",
    "group": "subscriptionGroup.json",
    "key-value": "kvConfig.json",
}


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
async def app(tmp_path: Path, disk: GatedDisk) -> AsyncIterator[AppBroker]:
    async with running_broker(tmp_path, disk=disk, namesrv_listen_port=0) as app:
        try:
            yield app
        finally:
            disk.error = None
            disk.let_go()


@pytest.fixture
async def clients(app: AppBroker) -> AsyncIterator[tuple[Client, Client]]:
    """One client sends to an existing topic, the other creates things."""
    pair = await Client.connect(app), await Client.connect(app)
    await pair[0].request(RequestCode.SEND_MESSAGE_V2, send_ext("Live"), b"first")
    await pair[1].ask(create_group(pair[1], "g"))
    for make in KINDS.values():  # the first of each kind writes the whole file
        assert (await pair[1].ask(make(pair[1], "Settled"))).code == 0
    yield pair
    for client in pair:
        await client.close()


async def live(client: Client, count: int = 20) -> None:
    """Sends to an existing topic, each answered."""
    for _ in range(count):
        answer = await client.request(RequestCode.SEND_MESSAGE_V2, send_ext("Live"), b"live")
        assert answer.code == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_sends_continue_while_a_change_is_being_saved_and_its_answer_waits(
    kind: str, disk: GatedDisk, clients: tuple[Client, Client]
) -> None:
    sender, maker = clients
    disk.hold()
    made = asyncio.ensure_future(maker.ask(KINDS[kind](maker, "New")))
    await until(lambda: disk.stopped)
    await live(sender)
    await live(maker)  # nor do the same client's sends wait
    assert not made.done()
    disk.let_go()
    assert (await made).code == 0


async def test_no_config_file_is_synced_on_the_loop(
    disk: GatedDisk, clients: tuple[Client, Client]
) -> None:
    _, maker = clients
    disk.threads.clear()
    for number in range(3):
        for make in KINDS.values():
            assert (await maker.ask(make(maker, f"N{number}"))).code == 0
    assert (await maker.ask(reset_offset(maker, "0"))).code == 0
    assert disk.threads and "MainThread" not in disk.threads


@pytest.mark.parametrize("kind", KINDS)
async def test_what_changes_during_one_save_is_saved_together_by_the_next(
    kind: str,
    app: AppBroker,
    disk: GatedDisk,
    clients: tuple[Client, Client],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, maker = clients
    monkeypatch.setattr(table_file, "QUIET_S", 3600.0)  # no JSON file is written in between
    await maker.ask(KINDS[kind](maker, "Before"))
    disk.hold()
    first = asyncio.ensure_future(maker.ask(KINDS[kind](maker, "First")))
    await until(lambda: disk.stopped)
    disk.passed.clear()
    others = asyncio.ensure_future(
        maker.ask_all([KINDS[kind](maker, f"N{number}") for number in range(100)])
    )
    topics, groups, keys = app.broker.topics, app.broker.groups, app.broker.name_service.kv
    await until(lambda: topics.get("N99") or groups.find("N99") or keys.get("n", "N99"))
    assert not first.done() and not others.done()
    disk.let_go()
    assert (await first).code == 0
    assert {answer.code for answer in await others} == {0}
    saves = [path for path in disk.passed if f"/{FILES[kind]}" in path]
    assert 2 <= len(saves) <= 4, saves  # 101 changes


async def test_an_offset_reset_is_on_disk_before_its_answer(
    app: AppBroker, disk: GatedDisk, clients: tuple[Client, Client]
) -> None:
    sender, maker = clients
    disk.hold()
    reset = asyncio.ensure_future(maker.ask(reset_offset(maker, "0")))
    await until(lambda: disk.stopped)
    await live(sender, 3)
    assert not reset.done()
    disk.let_go()
    assert (await reset).code == 0
    assert app.broker.offsets.file.holds(("offsetTable", "Live@g"))


async def test_sends_to_a_new_topic_keep_their_order_while_it_is_saved(
    app: AppBroker, disk: GatedDisk, clients: tuple[Client, Client]
) -> None:
    _, maker = clients
    disk.hold()
    commands = [
        maker.command(RequestCode.SEND_MESSAGE_V2, send_ext("New"), b"%02d" % number)
        for number in range(20)
    ]
    answers = asyncio.ensure_future(maker.ask_all(commands[:10]))
    await until(lambda: disk.stopped)
    more = asyncio.ensure_future(maker.ask_all(commands[10:]))
    assert app._server is not None
    connections = app._server.connections
    await until(lambda: sum(each.waiting for each in connections) == 20)
    disk.let_go()
    for answer in await answers + await more:
        assert answer.code == 0
    pulled = await maker.request(RequestCode.PULL_MESSAGE, pull_ext("New"))
    bodies = [bytes(message.body) for message in decode_records(pulled.body)]
    assert bodies == [b"%02d" % number for number in range(20)]


async def test_the_queue_of_a_new_topic_gets_its_file_while_the_topic_is_saved(
    disk: GatedDisk, clients: tuple[Client, Client], tmp_path: Path
) -> None:
    _, maker = clients
    disk.hold()
    answer = asyncio.ensure_future(maker.ask(create_by_send(maker, "New")))
    await until(lambda: any(tmp_path.rglob("consumequeue/New/*/" + "0" * 20)))
    assert not answer.done()
    disk.let_go()
    assert (await answer).code == 0


async def test_sends_that_follow_each_answer_are_not_held_for_ever(
    app: AppBroker,
    disk: GatedDisk,
    clients: tuple[Client, Client],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[str] = []
    hold = Sends._hold

    def noted(
        self: Sends, request: Request, fields: SendRequest, topic: str, queue_id: int
    ) -> None:
        held.append(topic)
        hold(self, request, fields, topic, queue_id)

    monkeypatch.setattr(Sends, "_hold", noted)
    monkeypatch.setattr(app.broker.turns, "slice_s", 2e-5)  # one answer, or a few, at a time
    in_flight, rounds = 32, 20

    async def send_in_turn(client: Client) -> None:
        for _ in range(rounds):
            answer = await client.request(RequestCode.SEND_MESSAGE_V2, send_ext("New"), b"x")
            assert answer.code == 0

    disk.hold()
    senders = [asyncio.ensure_future(send_in_turn(clients[n % 2])) for n in range(in_flight)]
    await until(lambda: disk.stopped)
    disk.let_go()
    await asyncio.gather(*senders)
    assert len(held) <= 2 * in_flight  # of 640: those before the save, and a last few


async def test_a_send_whose_new_topic_cannot_be_saved_is_refused_and_not_stored(
    app: AppBroker,
    disk: GatedDisk,
    clients: tuple[Client, Client],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sender, maker = clients
    monkeypatch.setattr(table_file, "RETRY_S", 0.05)
    disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    end = app.broker.store.max_physical_offset
    answer = await maker.ask(create_by_send(maker, "New"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not stored" in (answer.remark or "") and "topics.json" in (answer.remark or "")
    assert app.broker.store.max_physical_offset == end
    await live(sender, 3)
    disk.error = None
    await until(lambda: app.broker.topics.is_durable("New"))  # retried automatically
    assert (await maker.ask(create_by_send(maker, "New"))).code == 0


@pytest.mark.parametrize("kind", ["topic", "group", "key-value"])
async def test_a_change_that_is_not_saved_is_reported_and_saved_later(
    kind: str,
    tmp_path: Path,
    disk: GatedDisk,
    clients: tuple[Client, Client],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, maker = clients
    monkeypatch.setattr(table_file, "RETRY_S", 0.05)
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    answer = await maker.ask(KINDS[kind](maker, "New"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "a restart would undo it" in (answer.remark or "")
    assert "Input/output error" in (answer.remark or "")
    disk.error = None
    config = tmp_path / "store" / "config"

    def is_saved() -> bool:
        with contextlib.suppress(FileNotFoundError):  # while one file replaces another
            return any('"New"' in path.read_text() for path in config.glob("*.json"))
        return False

    await until(is_saved)


async def test_what_a_change_costs_does_not_grow_with_the_table(
    disk: GatedDisk, clients: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, maker = clients
    monkeypatch.setattr(table_file, "QUIET_S", 3600.0)

    def written() -> int:
        return sum(size for name, size in disk.written.items() if name.startswith("topics.json"))

    costs = []
    for first in (0, 2000, 4000):
        await maker.ask_all([create_topic(maker, f"N{first + n}") for n in range(1990)])
        ends = [written()]
        for number in range(first + 1990, first + 2000):
            assert (await maker.ask(create_topic(maker, f"N{number}"))).code == 0
            ends.append(written())
        # The median: a full journal rewrites the whole file once in thousands of changes.
        costs.append(statistics.median(end - start for start, end in pairwise(ends)))
    assert max(costs) < 2 * min(costs), costs


async def test_the_json_file_is_written_in_slices_between_which_others_are_served(
    app: AppBroker, clients: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, maker = clients
    monkeypatch.setattr(table_file, "WHOLE_SHARE", 1.0)  # the next file is due sooner
    await maker.ask_all([create_topic(maker, f"N{n}") for n in range(3000)])
    topics = app.broker.topics
    while topics.file._journal.is_used:  # until the JSON file has it all
        await live(sender, 1)
    assert len(topics.all()) > 3000
    slices = sum(1 for _ in whole_slices(topics._entries, topics.file._left_out))
    assert slices > 20, "3,000 topics were written in one go"


async def test_key_values_have_a_limit_and_the_answer_says_so(
    app: AppBroker, clients: tuple[Client, Client]
) -> None:
    _, maker = clients
    app.settings.change({"maxKvConfigBytes": "200000"})

    async def put(key: str, value: str) -> Command:
        fields = {"namespace": "n", "key": key, "value": value}
        return await maker.request(RequestCode.PUT_KV_CONFIG, fields)

    answers = [await put(f"k{number}", "v" * 60_000) for number in range(5)]
    assert [answer.code for answer in answers] == [0, 0, 0, 1, 1]
    assert "maxKvConfigBytes" in (answers[-1].remark or "")
    assert (await put("k0", "shorter")).code == 0
    assert (await put("k3", "v" * 50_000)).code == 0
    deleted = await maker.request(RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": "k1"})
    assert deleted.code == 0
    assert (await put("k4", "v" * 50_000)).code == 0
    assert app.broker.name_service.kv.size <= 200_000


async def test_a_clean_stop_leaves_whole_json_files_and_no_journal(
    tmp_path: Path, disk: GatedDisk
) -> None:
    async with running_broker(tmp_path, disk=disk) as app:
        client = await Client.connect(app)
        for kind, make in KINDS.items():
            if kind != "key-value":
                assert (await client.ask(make(client, "Last"))).code == 0
        await client.close()
    config = tmp_path / "store" / "config"
    assert not list(config.glob("*.journal*"))
    for name in ("topics.json", "subscriptionGroup.json"):
        content: Any = fastjson.loads((config / name).read_bytes())
        assert any("Last" in table for table in content.values()), name
