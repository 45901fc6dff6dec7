"""Asking for what does not exist or is damaged: reported as such, and nothing is created."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from aerobee_command import Result, aerobee

from aerobee.broker.daemon.namesrv import AppNameServer
from aerobee.broker.settings import Settings
from aerobee.testing import EmbeddedBroker


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "nowhere"),
        ("consume", "nowhere", "--group", "nobody"),
        ("consume", "nowhere", "--follow"),
        ("consume", "nowhere", "--follow", "--group", "nobody"),
        ("offsets", "show", "nobody"),
        ("offsets", "show", "nobody", "orders"),
        ("offsets", "show", "billing", "nowhere"),
        ("offsets", "reset", "nobody", "orders", "--to-first"),
        ("offsets", "reset", "billing", "nowhere", "--to-first"),
    ],
)
async def test_what_is_not_there_is_not_found_and_not_made(
    aerobee_broker: EmbeddedBroker, words: Sequence[str]
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x")
        await mq.admin.create_group("billing")
        before = await mq.admin.topics(system=True), await mq.admin.groups(system=True)
        missing = "nowhere" if "nowhere" in words else "nobody"
        output = await aerobee(*words, url=aerobee_broker.url, code=3)
        assert missing in output.err
        assert (await mq.admin.topics(system=True), await mq.admin.groups(system=True)) == before


async def damaged_store(folder: Path) -> Path:
    """Three messages; one bit of the second one's body is flipped."""
    async with EmbeddedBroker(folder) as broker, broker.connect() as mq:
        await mq.admin.create_topic("orders", queues=1)
        for number in range(3):
            await mq.send("orders", b"sound message %d" % number, key=f"k{number}")
    store = folder / "store"
    [log] = (store / "commitlog").iterdir()
    with log.open("r+b") as file:
        content = file.read()
        at = content.index(b"sound message 1")
        file.seek(at)
        file.write(b"S")
        os.fsync(file.fileno())
    return store


@pytest.mark.parametrize(
    "chosen",
    [(), ("--topic", "orders"), ("--topic", "orders", "--queue", "0"), ("--key", "k1"),
     ("--topic", "orders", "--key", "k1")],
)  # fmt: skip
async def test_a_damaged_record_is_not_dumped_as_a_good_one(
    tmp_path: Path, chosen: tuple[str, ...]
) -> None:
    store = await damaged_store(tmp_path / "b")
    output = await aerobee("store", "dump", str(store), *chosen, code=1)
    assert "ound message 1" not in output.out
    assert "damaged: " in output.err and "checksum" in output.err
    if "--key" not in chosen:
        assert "sound message 0" in output.out and "sound message 2" in output.out


async def asked_without_brokers(folder: Path, words: Sequence[str]) -> Result:
    """The command with a name server that knows no broker; it ends with 3."""
    names = AppNameServer(Settings(namesrv_listen_port=0, store_path_root_dir=str(folder)))
    await names.start()
    try:
        return await aerobee(*words, url=f"mq://127.0.0.1:{names.namesrv_port}", code=3)
    finally:
        await names.stop()


@pytest.mark.parametrize(
    "words",
    [
        ("user", "add", "bob"),
        ("user", "rotate", "bob"),
        ("user", "remove", "bob", "--yes"),
        ("user", "list"),
        ("acl", "grant", "bob", "Pub", "Topic:orders"),
        ("acl", "revoke", "bob"),
        ("acl", "show"),
    ],
)
async def test_users_of_a_cluster_without_brokers_are_not_found(
    tmp_path: Path, words: Sequence[str]
) -> None:
    said = await asked_without_brokers(tmp_path, words)
    assert "know no broker" in said.err and not said.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("send", "orders", "x"), "no registered broker makes topics by itself"),
        (("cluster", "settings"), "aerobee: the name servers know no broker"),
    ],
)
async def test_what_fails_for_want_of_a_broker_says_so(
    tmp_path: Path, words: Sequence[str], text: str
) -> None:
    said = await asked_without_brokers(tmp_path, words)
    assert text in said.err


@pytest.mark.parametrize("address", ["nohost", "127.0.0.1:99999", "127.0.0.1:"])
async def test_promoting_what_is_no_address_is_reported(
    aerobee_broker: EmbeddedBroker, address: str
) -> None:
    said = await aerobee("promote", address, "--yes", url=aerobee_broker.url, code=4)
    assert "an address is host:port" in said.err
