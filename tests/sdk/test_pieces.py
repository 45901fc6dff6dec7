"""The parts of the SDK that need no broker (addresses, errors, strategies), and its public API."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from loop_turns import counted_calls

import aerobee
from aerobee import AerobeeError, BrokerBusy, BrokerError, MessageQueue, Misuse, TopicNotFound
from aerobee.client.consuming.rebalance import STRATEGIES, strategy_of
from aerobee.client.errors import refusal
from aerobee.client.message import delay_level, inflate
from aerobee.client.transport.url import parse_url
from aerobee.protocol.files import compression, record
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.signing import Credentials
from aerobee.testing import EmbeddedBroker


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("mq://localhost", ["localhost:9876"]),
        ("mq://a:1,b:2", ["a:1", "b:2"]),
        ("mq://a:1;b", ["a:1", "b:9876"]),
        ("mq://[::1]:99/", ["[::1]:99"]),
        ("mq://[::1]", ["[::1]:9876"]),
    ],
)
def test_addresses_are_read(url: str, servers: list[str]) -> None:
    assert parse_url(url) == (servers, None)


@pytest.mark.parametrize(
    "url", ["http://a", "mq://a:port", "mq://:1", "mq://k@a:1", "mq://a:70000"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Misuse):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://key:planted@a:1",
        "mq://key:planted",
        "mq://key:planted://more@a:1x",
        "mq://key:planted@a:port",
        "mq://:planted@a",
    ],
)
def test_an_error_about_an_address_does_not_repeat_the_secret(url: str) -> None:
    with pytest.raises(Misuse) as caught:
        parse_url(url)
    assert "planted" not in str(caught.value)


def test_the_repr_of_credentials_hides_the_secret() -> None:
    _, credentials = parse_url("mq://key:planted@a:1")
    assert "key" in repr(credentials)
    assert "planted" not in repr(credentials)


def test_the_environment_names_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEROBEE_URL", "mq://elsewhere:1")
    assert parse_url(None)[0] == ["elsewhere:1"]
    monkeypatch.delenv("AEROBEE_URL")
    assert parse_url(None)[0] == ["127.0.0.1:9876"]


def test_credentials_of_a_file_are_taken_where_the_address_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "root.json"
    file.write_text('{"accessKey":"root","secretKey":"planted"}')
    monkeypatch.setenv("AEROBEE_CREDENTIALS_FILE", str(file))
    assert parse_url("mq://a:1")[1] == Credentials("root", "planted")
    assert parse_url("mq://key:secret@a:1")[1] == Credentials("key", "secret")
    for wrong in ("planted", '["planted"]', '{"accessKey":"planted"}'):
        file.write_text(wrong)
        with pytest.raises(Misuse, match="secretKey") as caught:
            parse_url("mq://a:1")
        assert "planted" not in str(caught.value)
    file.unlink()
    with pytest.raises(Misuse, match=r"AEROBEE_CREDENTIALS_FILE names .*No such file"):
        parse_url("mq://a:1")


def test_credentials_sign_as_rocketmq_does() -> None:
    _, credentials = parse_url("mq://RocketMQ:12345678@a:1")
    assert credentials == Credentials("RocketMQ", "12345678")
    ext = {"consumerGroup": "g1", "queueId": "0", "topic": "TopicTest"}
    command = Command(11, ext, b"body")
    credentials.sign(command)
    assert command.ext["Signature"] == "nVsCcu9agMUhgOrTIdCqS4938qk="


def test_refusals_have_their_class_code_and_hint() -> None:
    error = refusal(17, "no topic", what="a send")
    assert isinstance(error, TopicNotFound) and not error.retriable
    assert error.code == 17 and error.remark == "no topic" and "topic create" in error.hint
    assert isinstance(refusal(2, None, what="x"), BrokerBusy)
    assert refusal(2, None, what="x").retriable
    unknown = refusal(4711, "what?", what="x")
    assert type(unknown) is BrokerError and "4711" in str(unknown)


@given(st.integers(0, 40), st.integers(1, 9), st.sampled_from(sorted(STRATEGIES)))
def test_every_queue_has_exactly_one_reader(queue_count: int, member_count: int, name: str) -> None:
    queues = [MessageQueue("t", "b", number) for number in range(queue_count)]
    members = sorted(f"10.0.0.{number}@{number}" for number in range(member_count))
    split = [strategy_of(name)(me, queues, members) for me in members]
    assert sorted(queue for mine in split for queue in mine) == queues
    assert strategy_of(name)("a stranger", queues, members) == []
    if name != "consistent hash":
        sizes = [len(mine) for mine in split]
        assert max(sizes) - min(sizes) <= 1


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(Misuse, match="averagely"):
        strategy_of("fairly")


@pytest.mark.parametrize(
    ("seconds", "level"), [(0, 1), (1, 1), (1.1, 2), (5, 2), (59, 5), (7200, 18), (99999, 18)]
)
def test_delays_are_rounded_up_to_a_level(seconds: float, level: int) -> None:
    assert delay_level(seconds) == level


def test_every_public_name_can_be_imported() -> None:
    for name in aerobee.__all__:
        assert getattr(aerobee, name) is not None
    assert "connect" in dir(aerobee)
    with pytest.raises(AttributeError):
        aerobee.nothing  # noqa: B018


def test_importing_the_package_imports_neither_sdk_nor_broker() -> None:
    code = "import sys, aerobee; print([m for m in sys.modules if m.startswith('aerobee.')])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


async def test_an_embedded_broker_starts_with_few_calls() -> None:
    async with EmbeddedBroker():
        pass  # imports what a broker needs
    broker = EmbeddedBroker()
    with counted_calls() as calls:
        await broker.start()
    await broker.stop()
    assert calls.count < 15_000  # 5,200 when this was written


async def test_an_embedded_broker_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    async with EmbeddedBroker() as broker, broker.connect() as mq:
        await mq.send("orders", b"x")
        assert os.listdir(tmp_path) == [broker.folder.name]
    assert os.listdir(tmp_path) == []


async def test_a_given_folder_keeps_the_store_for_the_next_broker(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path) as broker, broker.connect() as mq:
        receipt = await mq.send("orders", b"kept")
    async with EmbeddedBroker(tmp_path) as broker, broker.connect() as mq:
        assert (await mq.message(receipt.message_id, topic="orders")).body == b"kept"


def test_a_body_in_zstandard_that_does_not_tell_its_size_is_inflated() -> None:
    """As Java's producer writes it: by a stream."""
    packed = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(packed, closefd=False) as stream:
        stream.write(b"x" * 10_000)
    flag = record.COMPRESSED | record.COMPRESSION_ZSTD
    assert inflate(packed.getvalue(), flag) == b"x" * 10_000


@pytest.mark.parametrize(
    ("form", "text"), [(0, "inflated"), (record.COMPRESSION_ZLIB, "inflated"), (0x400, "not known")]
)
def test_a_body_that_cannot_be_inflated_is_a_clear_error(form: int, text: str) -> None:
    with pytest.raises(AerobeeError, match=text):
        inflate(b"nonsense", record.COMPRESSED | form)


def test_a_form_whose_package_is_missing_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(compression, "import_module", absent)
    compression._decompressor.cache_clear()
    with pytest.raises(AerobeeError, match=r"form 0x100, .* the package lz4 \(pip install lz4\)"):
        inflate(b"x", record.COMPRESSED | record.COMPRESSION_LZ4)


async def test_what_a_search_by_key_cannot_select_is_refused(
    aerobee_broker: EmbeddedBroker,
) -> None:
    async with aerobee_broker.connect() as mq:
        await mq.send("orders", b"x", key="k", tag="a")
        selections: list[dict[str, Any]] = [{"tags": "b"}, {"sql": "amount > 5"}]
        for filters in selections:
            with pytest.raises(Misuse, match="key"):
                [row async for row in mq.find("orders", key="k", **filters)]
