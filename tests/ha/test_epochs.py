"""Epochs without a broker: their file, what two logs have in common, which role a start takes."""

from __future__ import annotations

import itertools
import random
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.broker.ha.epochs import EpochFile, Epochs, common_end
from aerobee.broker.ha.follower import Follower
from aerobee.broker.ha.framing import EpochFraming
from aerobee.broker.ha.rejoin import Cut, Follow, LogState, plan_rejoin
from aerobee.broker.ha.role import Decision, Role, decide_role
from aerobee.broker.ha.wire import (
    ACK,
    EPOCH_HEAD,
    TRANSFER,
    FrameHead,
    FrameReader,
    ReportReader,
    StreamError,
    Welcome,
    decode_hello,
    decode_welcome,
    encode_hello,
    encode_welcome,
)
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.protocol.files.epoch_file import Epoch, decode_epochs, encode_epochs


def epochs(*pairs: tuple[int, int]) -> Epochs:
    return Epochs(Epoch(*pair) for pair in pairs)


# --- the file


def test_the_file_is_as_rocketmq_5_writes_it() -> None:
    lines = b"1-0\n3-4096\n"
    expected = b"2\n%d\n" % (zlib.crc32(lines) & 0x7FFFFFFF) + lines
    assert encode_epochs((Epoch(1, 0), Epoch(3, 4096))) == expected
    assert decode_epochs(expected) == (Epoch(1, 0), Epoch(3, 4096))


def test_a_file_without_a_checksum_is_read_as_rocketmq_5_0_wrote_it() -> None:
    assert decode_epochs(b"2\n1-0\n3-4096\n") == (Epoch(1, 0), Epoch(3, 4096))


@pytest.mark.parametrize("at", range(1, 20))
def test_a_damaged_file_is_not_believed(at: int) -> None:
    whole = encode_epochs((Epoch(1, 0), Epoch(12, 4096)))
    with pytest.raises(ValueError):
        decode_epochs(whole[:at])


def test_a_damaged_file_stops_the_start_and_says_which(tmp_path: object) -> None:
    path = f"{tmp_path}/epochFileCheckpoint"
    RealDisk().write_small(path, b"2\n77\n1-0\n2-5\n")
    with pytest.raises(StoreError, match="epochFileCheckpoint cannot be read: its checksum"):
        EpochFile(path, RealDisk()).load()


def test_what_was_saved_is_loaded(tmp_path: object) -> None:
    path = f"{tmp_path}/epochFileCheckpoint"
    EpochFile(path, RealDisk()).save(epochs((1, 0), (2, 100)))
    again = EpochFile(path, RealDisk())
    again.load()
    assert again.epochs == epochs((1, 0), (2, 100))


# --- the list


def test_election_without_messages_replaces_the_empty_epoch() -> None:
    assert epochs((1, 0), (2, 500)).begun(3, 500) == epochs((1, 0), (3, 500))


def test_a_byte_belongs_to_the_last_epoch_that_began_before_it() -> None:
    known = epochs((1, 0), (4, 100), (5, 300))
    found = [known.at(offset) for offset in (0, 99, 100, 299)]
    assert found == [
        (Epoch(1, 0), 100),
        (Epoch(1, 0), 100),
        (Epoch(4, 100), 300),
        (Epoch(4, 100), 300),
    ]
    assert known.at(300)[0] == Epoch(5, 300)


def test_fast_second_failover_compares_starts() -> None:
    """Two brokers were elected under the same number, each without the other's messages."""
    ours = epochs((1, 0), (2, 100))
    theirs = epochs((1, 0), (2, 150), (3, 200))
    assert common_end(ours, 180, theirs, 250) == 100


def test_two_logs_are_never_said_to_agree_beyond_their_fork() -> None:
    for seed in range(200):
        check_a_fork(random.Random(seed))


def check_a_fork(rng: random.Random) -> None:
    """Masters chosen at random, each with a copy of a part of the log of one before it."""
    logs: list[tuple[list[int], Epochs]] = [([], Epochs())]
    for number in range(1, 8):
        log, known = rng.choice(logs)
        copied = rng.randrange(len(log) + 1) if rng.random() < 0.5 else len(log)
        written = log[:copied] + [number] * rng.randrange(4)  # each byte: who wrote it
        logs.append((written, known.cut(copied).begun(number, copied)))
    for (one, its), (other, others) in itertools.permutations(logs[1:], 2):
        end = common_end(its, len(one), others, len(other)) or 0
        assert one[:end] == other[:end], (its, others, end)


# --- before following


def state(end: int, *pairs: tuple[int, int], start: int = 0) -> LogState:
    return LogState(start, end, epochs(*pairs))


def test_an_empty_log_follows_any_master() -> None:
    assert plan_rejoin(state(0), state(900, (1, 0), (2, 50))) == Follow(Epochs(), 0)
    begun = state(0, (1, 0))  # killed before its first byte
    assert plan_rejoin(begun, state(900, (2, 0), start=0)) == Follow(Epochs(), 0)
    assert plan_rejoin(state(0), state(900, (1, 0), start=500)) == Follow(Epochs(), 500)


def test_a_log_of_which_all_has_expired_resumes_where_it_ended() -> None:
    """Not from the master's first byte: it may be in sync, and be elected before it has caught
    up again."""
    ours = state(600, (1, 0), (2, 500), start=600)
    followed = Follow(epochs((1, 0), (2, 500)), 600)
    assert plan_rejoin(ours, state(900, (1, 0), (2, 500), (3, 700))) == followed
    anew = Follow(Epochs(), 700)
    assert plan_rejoin(ours, state(900, (1, 0), (2, 500), start=700)) == anew
    assert plan_rejoin(ours, state(900, (1, 0), (3, 550))) == Cut(0)
    assert plan_rejoin(state(600, start=600), state(900, (1, 0), start=100)) == Cut(100)
    with pytest.raises(StreamError, match="was a master before"):
        plan_rejoin(ours, state(900, (1, 0)))


def test_a_copy_without_epochs_takes_over_those_of_its_part() -> None:
    plan = plan_rejoin(state(600), state(900, (1, 0), (2, 500), (3, 700)))
    assert plan == Follow(epochs((1, 0), (2, 500)), 600)


def test_a_log_that_ends_within_the_masters_is_followed() -> None:
    plan = plan_rejoin(state(600, (1, 0), (2, 500)), state(900, (1, 0), (2, 500), (3, 700)))
    assert plan == Follow(epochs((1, 0), (2, 500)), 600)


def test_a_returning_master_is_cut_where_its_successor_began() -> None:
    assert plan_rejoin(state(800, (1, 0)), state(750, (1, 0), (2, 700))) == Cut(700)


def test_replica_never_cuts_by_confirm_offset() -> None:
    """Its part of the common epoch is kept, however little the new master has acknowledged."""
    plan = plan_rejoin(state(700, (1, 0)), state(700, (1, 0), (2, 700)))
    assert isinstance(plan, Follow)


def test_an_epoch_that_has_no_byte_yet_is_known_to_followers() -> None:
    """So that its number is not used a second time."""
    plan = plan_rejoin(state(700, (1, 0)), state(700, (1, 0), (2, 700)))
    assert plan == Follow(epochs((1, 0), (2, 700)), 700)


@pytest.mark.parametrize(
    ("ours", "master", "reason"),
    [
        (state(800, (1, 0)), state(700, (1, 0)), "lost the end of its log"),
        (state(800, (1, 0), (2, 600)), state(900, (1, 0)), "was a master before"),
        (state(800, (1, 0)), state(900, (2, 5)), "different logs"),
        (state(800), state(700, (1, 0)), "not a copy of it"),
        (state(800, (1, 0)), state(900, (1, 0), start=850), "by now"),
        (state(800, (1, 0), start=600), state(900, (1, 0), (2, 500)), "by now"),
    ],
    ids=["lost end", "older master", "other log", "longer copy", "expired", "cut before our start"],
)
def test_a_replica_that_cannot_follow_says_why(
    ours: LogState, master: LogState, reason: str
) -> None:
    with pytest.raises(StreamError, match=reason):
        plan_rejoin(ours, master)


# --- the bytes


def test_the_handshake_has_the_layout_of_rocketmq_5() -> None:
    assert encode_hello(3).hex() == "00000001000000000000000000000003"
    hello = decode_hello(encode_hello(3))
    assert hello is not None and hello.broker_id == 3
    welcome = encode_welcome(900, (Epoch(1, 0), Epoch(2, 500)))
    assert welcome.hex() == (
        "00000001" "00000018" "0000000000000384" "00000002"
        "00000001" "0000000000000000" "00000002" "00000000000001f4"
    )  # fmt: skip
    assert [decode_welcome(welcome[:size]) for size in range(len(welcome))] == [None] * 44
    assert decode_welcome(welcome + b"next") == ((900, (Epoch(1, 0), Epoch(2, 500))), b"next")


@pytest.mark.parametrize("report", [0, 1, 700, 1 << 32, (1 << 32) + 65537, 1 << 40])
def test_a_plain_report_is_no_hello(report: int) -> None:
    assert decode_hello(report.to_bytes(8, "big")) is None


def test_frames_tell_epoch_and_confirm_offset_however_they_are_cut() -> None:
    framing = EpochFraming(epochs((1, 0), (2, 5)), lambda: 4)
    stream = framing.head(0, 5) + b"12345" + framing.head(5, 2) + b"67" + framing.head(7, 0)
    heads: list[FrameHead] = []
    reader = FrameReader(100, with_epochs=True, begun=heads.append)
    data = b""
    for at in range(len(stream)):
        for _, piece in reader.feed(memoryview(stream)[at : at + 1]):
            data += piece
    assert data == b"1234567"
    assert [(head.offset, head.size, head.epoch) for head in heads] == [
        (0, 5, Epoch(1, 0)),
        (5, 2, Epoch(2, 5)),
        (7, 0, Epoch(2, 5)),
    ]
    assert {head.confirmed for head in heads} == {4}


def test_a_java_master_names_the_next_epoch_with_the_last_bytes_of_a_short_one(
    tmp_path: object,
) -> None:
    file = EpochFile(f"{tmp_path}/epochFileCheckpoint", RealDisk())
    files = SimpleNamespace(mapped_file_size_commit_log=4096)
    empty: Any = SimpleNamespace(min_physical_offset=0, max_physical_offset=0, settings=files)
    follower = Follower(empty, file)
    theirs = (Epoch(1, 0), Epoch(3, 10), Epoch(4, 20), Epoch(6, 30))
    plan = follower.plan(Welcome(40, theirs), 0)
    assert isinstance(plan, Follow)
    receiver = follower.begin(plan)
    receiver.feed(memoryview(EPOCH_HEAD.pack(TRANSFER, 10, 0, 3, 10, 0)))
    assert file.epochs == epochs((1, 0), (3, 10))


def test_an_ack_of_another_kind_closes_the_link() -> None:
    assert ReportReader(ACK).feed(ACK.pack(2, 77)) == 77
    with pytest.raises(StreamError, match="kind 1"):
        ReportReader(ACK).feed(ACK.pack(1, 77))


# --- the role


@pytest.mark.parametrize(
    ("configured", "saved", "last_epoch", "expected"),
    [
        ("ASYNC_MASTER", None, 0, Decision("ASYNC_MASTER")),
        ("SLAVE", None, 3, Decision("SLAVE")),
        ("SLAVE", Role("SLAVE", "SLAVE", 3), 3, Decision("SLAVE")),
        ("SLAVE", Role("SLAVE", "SYNC_MASTER", 4), 3, Decision("SYNC_MASTER", 4)),
        ("SLAVE", Role("SLAVE", "SYNC_MASTER", 4), 4, Decision("SYNC_MASTER")),
        ("SYNC_MASTER", Role("SLAVE", "SLAVE", 3), 3, Decision("SYNC_MASTER", 4)),
        ("SYNC_MASTER", Role("SLAVE", "SLAVE", 0), 0, Decision("SYNC_MASTER", 2)),
        ("SYNC_MASTER", Role("SLAVE", "ASYNC_MASTER", 4), 4, Decision("SYNC_MASTER")),
        ("SLAVE", Role("ASYNC_MASTER", "ASYNC_MASTER", 4), 4, Decision("SLAVE")),
    ],
)
def test_the_role_of_a_start_follows_from_settings_and_epochs(
    configured: str, saved: Role | None, last_epoch: int, expected: Decision
) -> None:
    assert decide_role(configured, saved, last_epoch) == expected
