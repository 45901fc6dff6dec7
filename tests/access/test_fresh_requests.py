"""A request replayed from the wire is rejected where the broker requires fresh requests."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from access.guarded import Asker, guarded_broker, make_topics, pull_fields, send_fields
from aerobee import NoPermission, connect
from aerobee.broker.auth import freshness
from aerobee.broker.auth.freshness import Freshness
from aerobee.broker.base.clock import Clock
from aerobee.broker.daemon.app import AppBroker
from aerobee.protocol.wire import signing
from aerobee.protocol.wire.codecs import decode_command
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ, Command
from aerobee.protocol.wire.frame import FrameDecoder, encode_frame
from aerobee.protocol.wire.signing import Credentials, Signer

ROOT = Credentials("root", "a-secret-of-root")
NUMBER = "0123456789abcdef.1"
OTHER = "fedcba9876543210.1"


def frame_of(signer: Signer, code: int, ext: dict[str, Any], body: bytes, codec: int) -> bytes:
    texts = {name: str(value) for name, value in ext.items()}
    command = Command(code, texts, body, 1, codec=codec)
    signer.sign(command)
    return encode_frame(command)


async def answer_to(app: AppBroker, frame: bytes) -> Command:
    """Over a separate connection, as an attacker would replay it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", app.broker_port)
    decoder = FrameDecoder()
    try:
        writer.write(frame)
        while True:
            data = await asyncio.wait_for(reader.read(1 << 16), 10)
            assert data
            for found in decoder.feed(data):
                return decode_command(*found)
    finally:
        writer.close()
        await writer.wait_closed()


TOPIC = {"perm": 6, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
REQUESTS = {
    "send": (310, send_fields("t"), b"once"),
    "pull": (11, pull_fields("t", "g"), b""),
    "administration": (17, {"topic": "made", "readQueueNums": 1, "writeQueueNums": 1} | TOPIC, b""),
}


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ, MSGPACK])
@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_copy_is_refused_and_the_next_request_is_not(
    tmp_path: Path, kind: str, codec: int
) -> None:
    code, ext, body = REQUESTS[kind]
    async with guarded_broker(tmp_path) as app:
        await make_topics(app, "t")
        app.settings.requests_must_be_fresh = True
        app.broker.guard.book.generation += 1
        signer = Signer(ROOT)
        for _ in range(2):
            frame = frame_of(signer, code, ext, body, codec)
            assert (await answer_to(app, frame)).code in (0, 19)
            copy = await answer_to(app, frame)
            assert copy.code == 16
            assert "was received before" in (copy.remark or "")
        # Another code under the same signature, where that is not signed by RocketMQ's rules.
        frame = frame_of(signer, 30, {"topic": "t", "queueId": 0}, b"", JSON)
        changed = await answer_to(app, frame.replace(b'"code":30,', b'"code":31,'))
        assert "signed for code 30 and not for 31" in (changed.remark or "")


@pytest.mark.parametrize("moved", [1, 15, 16, -1])
async def test_a_copy_whose_session_is_cut_is_refused(tmp_path: Path, moved: int) -> None:
    """What is cut off goes to a field beside it: the signature covers the same text."""
    code, ext, body = REQUESTS["administration"]
    async with guarded_broker(tmp_path, requests_must_be_fresh=True) as app:
        signer = Signer(ROOT)
        for _ in range(10):  # numbers of two digits
            command = Command(code, {name: str(text) for name, text in ext.items()}, body, 1)
            signer.sign(command)
        assert (await answer_to(app, encode_frame(command))).code == 0
        number = command.ext["_n"]
        command.ext["_n"] = number[moved:] if moved > 0 else number[:moved]
        command.ext["_d" if moved > 0 else "_o"] = number[:moved] if moved > 0 else number[moved:]
        copy = await answer_to(app, encode_frame(command))
        assert copy.code == 16 and "check signature" not in (copy.remark or "")


async def test_our_client_is_served_and_others_get_an_error_that_names_what_is_missing(
    tmp_path: Path,
) -> None:
    async with guarded_broker(tmp_path, requests_must_be_fresh=True) as app:
        url = f"mq://root:a-secret-of-root@127.0.0.1:{app.broker_port}"
        async with connect(url) as mq:
            for number in range(100):
                await mq.send("t", b"%d" % number)
            async with mq.consumer("t", group="g", start="first") as inbox:
                found = set()
                async for message in inbox:
                    found.add(message.body)
                    await message.ack()
                    if len(found) == 100:
                        break
        async with Asker.connected(app.broker_port) as asker:
            answer = await asker.ask("root", 28)
            assert answer.code == 16
            assert "_t" in (answer.remark or "")
            assert "Aerobee's SDK" in (answer.remark or "")


async def test_one_account_may_be_asked_for_it_alone(tmp_path: Path) -> None:
    users = """accounts:
  - {accessKey: root, secretKey: a-secret-of-root, type: Super}
  - {accessKey: careful, secretKey: a-secret-of-careful, type: Super, fresh: true}
"""
    async with guarded_broker(tmp_path, users) as app, Asker.connected(app.broker_port) as asker:
        assert (await asker.ask("root", 310, send_fields("t"), b"x")).code == 0
        assert (await asker.ask("careful", 310, send_fields("t"), b"x")).code == 16


async def test_wrong_clocks_are_reported_with_their_difference(tmp_path: Path) -> None:
    async with guarded_broker(tmp_path, requests_must_be_fresh=True) as app:
        wrong = time.time_ns() + 90 * 10**9
        with mock.patch.object(signing, "time", SimpleNamespace(time_ns=lambda: wrong)):
            async with connect(f"mq://root:a-secret-of-root@127.0.0.1:{app.broker_port}") as mq:
                with pytest.raises(
                    NoPermission, match=r"(89|90)\.\d s ahead of the broker's clock"
                ):
                    await mq.send("t", b"x")


def test_what_was_made_before_the_start_may_be_a_copy() -> None:
    fresh = Freshness(Clock(), 60_000)
    before = str(Clock().now_ms() - 5000)
    assert "before the broker has started" in fresh.why_stale("u", 310, "310", NUMBER, before)


class Hands(Clock):
    """A clock that a test advances by `ms`, and sets by `set_by`."""

    ms = 100_000_000
    set_by = 0

    def now_ms(self) -> int:
        return self.ms + self.set_by

    def monotonic(self) -> float:
        return self.ms / 1000


def test_no_copy_is_taken_after_the_clock_was_set_back() -> None:
    """The session is forgotten by then, and the request seems new."""
    clock = Hands()
    fresh = Freshness(clock, 60_000)
    clock.ms += 7_200_000
    made = str(clock.now_ms())
    assert fresh.why_stale("u", 310, "310", NUMBER, made) == ""
    clock.ms += 3_600_000  # the session is forgotten with the next one
    assert fresh.why_stale("u", 310, "310", OTHER, str(clock.now_ms())) == ""
    clock.set_by = -3_600_000
    refused = fresh.why_stale("u", 310, "310", NUMBER, made)
    assert "clock was set back" in refused and "restart the broker" in refused
    clock.ms += 60_000
    assert fresh.why_stale("u", 310, "310", f"{3:016x}.1", str(clock.now_ms())) == ""


def test_the_reason_names_a_clock_that_was_set_back_since_the_start() -> None:
    clock = Hands()
    fresh = Freshness(clock, 60_000)
    clock.ms += 1_000
    clock.set_by = -3_600_000
    refused = fresh.why_stale("u", 310, "310", NUMBER, str(clock.now_ms()))
    assert "the broker's clock was set back" in refused and "3599.0 s" in refused


def test_a_clock_that_was_set_back_keeps_no_session_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "SESSIONS_PER_USER_MAX", 8)
    clock = Hands()
    fresh = Freshness(clock, 1000)
    clock.ms += 600_000
    for number in range(8):
        assert fresh.why_stale("u", 310, "310", f"a{number:015x}.1", str(clock.now_ms())) == ""
    clock.set_by = -300_000
    clock.ms += 2001
    assert (
        fresh.why_stale("v", 310, "310", f"{4:016x}.1", str(clock.now_ms())) == ""
    )  # they go with it
    assert "set back" in fresh.why_stale("v", 310, "310", "b.2", str(clock.now_ms()))
    clock.ms += 300_000
    for number in range(8):
        assert fresh.why_stale("u", 310, "310", f"b{number:015x}.1", str(clock.now_ms())) == ""
    assert len(fresh._sessions) == 8


def test_memory_is_bounded_by_sessions_of_two_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "SESSIONS_MAX", 20)
    monkeypatch.setattr(freshness, "SESSIONS_PER_USER_MAX", 8)
    clock = Hands()
    fresh = Freshness(clock, 1000)
    numbers = itertools.count()

    def begin(user: str) -> str:
        return fresh.why_stale(user, 310, "310", f"{next(numbers):016x}.1", str(clock.ms))

    for _ in range(8):
        assert begin("u") == ""
    assert "too many sessions" in begin("u")
    assert begin("other") == ""
    clock.ms += 2001  # none of these can be replayed any more
    for _ in range(8):
        assert begin("u") == ""
    assert len(fresh._sessions) == 8
