"""Pulls that repeat one before them are decoded by comparison: the answers are those of the others.

One pull in each read, thousands of them, from a few consumers: usual numbers, odd ones, names
twice, other spellings, damaged bytes, reads that end within a frame or hold two.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.compiled import hot
from aerobee.broker.fast.compiled_path import CompiledPath
from aerobee.broker.fast.hot_path import HotPath
from aerobee.broker.fast.repeated_pulls import LEARN_MAX, Found, RepeatedPulls
from aerobee.broker.handlers.pull.plain import PlainPulls
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import encode_frame
from two_ways.bursts import damaged
from two_ways.in_process import Fed

pytestmark = pytest.mark.skipif(hot is None, reason="this installation is pure Python")

ODD = ["-1", "00", "01", "", "x", " 7", "7 ", "1e1", "9" * 18, "9" * 19, "2147483648", "\\u0031"]
LONG = ["9" * 18, "2147483648"]  # as an offset, no more than that
HEADER = (
    b'{"code":%s,"extFields":{"commitOffset":"%s","consumerGroup":"%s","expressionType":"TAG",'
    b'"maxMsgNums":"%s","queueId":"%s","queueOffset":"%s","subVersion":"0","subscription":"*",'
    b'"suspendTimeoutMillis":"0","sysFlag":"%s","topic":"Known"%s},"flag":%s,"language":"JAVA",'
    b'"opaque":%s,"serializeTypeCurrentRPC":"JSON","version":435}'
)
MORE = [b'"queueOffset":"1"', b'"queue\\u004fffset":"1"', b'"x":"\\"opaque\\":5"', b'"opaque":"3"']


def frame(header: bytes, body: bytes = b"") -> bytes:
    lengths = (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
    return lengths + header + body


def pull(draw: random.Random, opaque: int) -> bytes:
    """One of a few consumers' next pull."""
    numbers = [str(draw.randrange(9)), str(draw.randrange(5)), str(draw.choice([0, 1, 7, 30, 999]))]
    numbers.append(str(opaque))
    if draw.random() < 0.15:
        numbers[draw.randrange(4)] = draw.choice(ODD)
    commit, queue_id, offset, opaque_text = (number.encode() for number in numbers)
    more = b"," + draw.choice(MORE) if draw.random() < 0.02 else b""
    header = HEADER % (
        draw.choice([b"11"] * 9 + [b"361"]),
        commit,
        draw.choice([b"cg"] * 3 + [b"other"]),
        draw.choice([b"32"] * 5 + [b"1"]),
        queue_id,
        offset,
        draw.choice([b"4"] * 3 + [b"5"]),
        more,
        draw.choice([b"0"] * 20 + [b"1", b"2"]),
        opaque_text,
    )
    if draw.random() < 0.03:
        header = header.replace(b'":', b'" : ')
    data = frame(header, b"body" if draw.random() < 0.03 else b"")
    return damaged(draw, data) if draw.random() < 0.03 else data


def reads(draw: random.Random, count: int) -> Iterator[bytes]:
    for opaque in range(count):
        data = pull(draw, opaque)
        if draw.random() < 0.02:
            yield data[:20]
            data = data[20:]
        elif draw.random() < 0.02:
            data += pull(draw, opaque + 1)
        yield data


def counted(way: Fed) -> dict[str, Any]:
    offsets = way.broker.offsets
    groups = [f"Known@{group}" for group in ("cg", "other")]
    gets = way.broker.stats.broker_get
    return way.counted() | {
        "progress": {group: offsets.progress(group) for group in groups},
        "gets": (gets.nums, gets.size, gets.times, way.broker.stats.pulls_missed.nums),
    }


async def test_the_answers_are_those_of_the_path_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee.broker.fast.repeated_pulls.LEARN_MAX", 1 << 30)
    matched = 0
    pull_of = RepeatedPulls.pull_of

    def counting(self: RepeatedPulls, found: Found) -> object:
        nonlocal matched
        matched += 1
        return pull_of(self, found)

    monkeypatch.setattr(RepeatedPulls, "pull_of", counting)
    plain = count_bounds(monkeypatch)
    files: list[int] = []  # that the records of a pull are in
    takes = PlainPulls.takes

    def counting_files(self: PlainPulls, connection: Any, fields: Any, *found: Any) -> bool:
        files.append(len(found[0]))
        return takes(self, connection, fields, *found)

    monkeypatch.setattr(PlainPulls, "takes", counting_files)
    draw = random.Random(20)
    python = Fed(tmp_path / "one", HotPath)
    compiled = Fed(tmp_path / "two", CompiledPath)
    for number in range(200):
        ext = {"b": "Known", "d": "4", "e": str(number % 4), "f": "0", "g": "1", "h": "0"}
        ext["i"] = f"UNIQ_KEY\x01{number}\x02"
        data = encode_frame(Command(310, ext, bytes(draw.randrange(2000)), number))
        assert compiled.said(data) == python.said(data)
    for way in (python, compiled):
        way.broker.store.reput.catch_up()
    for number, data in enumerate(reads(draw, 4000)):
        assert compiled.said(data) == python.said(data), data
        if python.feed.error is not None:
            python.connect()
            compiled.connect()
        if number % 500 == 0:
            for way in (python, compiled):
                way.broker.offsets.reset("cg", "Known", 1, 3)
    assert counted(compiled) == counted(python)
    assert matched > 1000
    assert len(plain) > 500
    assert sum(count > 1 for count in files) > 100, "no pull was answered from two files of the log"


def count_bounds(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Gets a member for each pull that C was allowed to answer."""
    allowed: list[object] = []
    bounds = PlainPulls.bounds

    def counting(self: PlainPulls, *asked: Any) -> object:
        found = bounds(self, *asked)
        if found is not None:
            allowed.append(found)
        return found

    monkeypatch.setattr(PlainPulls, "bounds", counting)
    return allowed


async def test_entries_that_were_read_ahead_are_not_used_after_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that was cut gets others in their place."""
    allowed = count_bounds(monkeypatch)
    ways = Fed(tmp_path / "one", HotPath), Fed(tmp_path / "two", CompiledPath)

    def fill(way: Fed, letter: bytes) -> None:
        for number in range(100):
            ext = {"b": "Known", "d": "4", "e": "1", "f": "0", "g": "1", "h": "0"}
            ext["i"] = f"UNIQ_KEY\x01{number}\x02"
            way.said(encode_frame(Command(310, ext, letter * 600, number)))
        way.broker.store.reput.catch_up()

    def pull_at(offset: int, letter: bytes) -> None:
        numbers = b"0", b"cg", b"8", b"1", b"%d" % offset, b"4", b"", b"0", b"%d" % offset
        python, compiled = (way.said(frame(HEADER % (b"11", *numbers))) for way in ways)
        assert python == compiled
        assert letter * 600 in python[0]

    for way in ways:
        fill(way, b"a")
    for offset in (0, 8, 16):
        pull_at(offset, b"a")
    for way in ways:
        way.broker.store.queue_table.table["Known", 1].cut(24)
        way.broker.store.queue_table.table["Known", 1].assigned = 24
        fill(way, b"b")
    pull_at(24, b"b")
    pull_at(32, b"b")
    assert len(allowed) >= 4


def learned(header: bytes) -> RepeatedPulls:
    pulls = RepeatedPulls(1 << 20)
    pulls.learn(header)
    return pulls


def plain(opaque: int = 7, commit: bytes = b"3", more: bytes = b"") -> bytes:
    numbers = commit, b"g", b"32", b"1", b"5", b"4", more, b"0", b"%d" % opaque
    return HEADER % (b"11", *numbers)


def test_a_pull_is_known_by_the_one_before() -> None:
    pulls = learned(plain())
    found = pulls.answer(frame(plain(opaque=123456, commit=b"99")))
    assert found is not None
    opaque, flag, code, fields = pulls.pull_of(found)
    assert (opaque, flag, code) == (123456, 0, 11)
    assert (fields.commit_offset, fields.queue_id, fields.queue_offset) == (99, 1, 5)
    assert (fields.topic, fields.consumer_group, fields.max_msg_nums) == ("Known", "g", 32)
    assert (fields.sys_flag, fields.subscription, fields.max_msg_bytes) == (4, "*", None)


@pytest.mark.parametrize("commit", [text.encode() for text in ODD if text not in LONG])
def test_an_odd_number_is_not_read_here(commit: bytes) -> None:
    assert learned(plain()).answer(frame(plain(commit=commit))) is None


def test_what_is_not_one_whole_frame_is_not_read_here() -> None:
    pulls, data = learned(plain()), frame(plain())
    assert pulls.answer(data) is not None
    for other in (b"", data[:7], data[:-1], data + b"x", data * 2, frame(plain(), b"body")):
        assert pulls.answer(other) is None
    binary = encode_frame(Command(11, {"topic": "Known"}, codec=1))
    assert pulls.answer(binary) is None
    for at in range(len(data)):
        if not data[at : at + 1].isdigit():
            assert pulls.answer(data[:at] + b"\xff" + data[at + 1 :]) is None


@pytest.mark.parametrize("more", [b"," + each for each in MORE])
def test_a_header_that_may_mean_something_else_is_not_learned(more: bytes) -> None:
    assert learned(plain(more=more)).answer(frame(plain(more=more))) is None


def test_so_many_are_remembered_and_learning_ends() -> None:
    pulls = RepeatedPulls(1 << 20)
    headers = [plain(more=b',"x":"%d"' % number) for number in range(LEARN_MAX + 1)]
    for header in headers[:5]:
        pulls.learn(header)
    known = [pulls.answer(frame(header)) is not None for header in headers[:5]]
    assert known == [False, True, True, True, True]
    for header in headers[5:]:
        pulls.learn(header)
    assert pulls.answer(frame(headers[-2])) is not None
    assert pulls.answer(frame(headers[-1])) is None
