"""The plain stream without sockets: what is parsed, sent, taken and counted."""

from __future__ import annotations

import random
from struct import pack

import pytest

from aerobee.broker.base.clock import VirtualClock
from aerobee.broker.ha.copies import Copies
from aerobee.broker.ha.receiver import Receiver
from aerobee.broker.ha.sender import Pace, Sender
from aerobee.broker.ha.wire import FrameReader, ReportReader, StreamError
from aerobee.broker.store.results import PutStatus
from aerobee.protocol.files.record import Message, encode_record
from aerobee.protocol.files.record_layout import BLANK_MAGIC

FILE = 4096


def record(offset: int, body: bytes = b"body") -> bytes:
    message = Message("topic", 0, body, "", 0, 0, 1, bytes(8), bytes(8), 0, 0)
    return encode_record(message, 0, offset, 1700000000000)


def log_of(files: int, start: int = 0) -> bytes:
    """Whole files of records, each ended by a blank one."""
    log = b""
    rng = random.Random(files)
    while len(log) < files * FILE:
        made = record(start + len(log), rng.randbytes(rng.randrange(700)))
        room = FILE - len(log) % FILE
        if len(made) + 8 > room:
            made = pack(">ii", room, BLANK_MAGIC).ljust(room, b"\0")
        log += made
    return log


def frame(offset: int, data: bytes) -> bytes:
    return pack(">qi", offset, len(data)) + data


def sent(log: bytes, sizes: random.Random, start: int = 0) -> bytes:
    """The log as frames of any size, none over the end of a file, heartbeats in between."""
    stream, position = b"", 0
    while position < len(log):
        size = min(sizes.randrange(1, 900), FILE - position % FILE, len(log) - position)
        stream += frame(start + position, log[position : position + size])
        position += size
        if sizes.random() < 0.2:
            stream += frame(start + position, b"")
    return stream


def test_the_last_whole_report_counts_however_they_are_cut() -> None:
    reader = ReportReader()
    reports = pack(">qqq", 5, 7, 1 << 40)
    assert [reader.feed(reports[at : at + 1]) for at in range(7)] == [None] * 7
    assert reader.feed(reports[7:20]) == 7
    assert reader.feed(reports[20:]) == 1 << 40
    assert reader.feed(reports) == 1 << 40


def test_a_frame_larger_than_a_file_closes_the_link() -> None:
    with pytest.raises(StreamError):
        list(FrameReader(FILE).feed(memoryview(frame(0, bytes(FILE + 1)))))


@pytest.mark.parametrize("start", [0, 3 * FILE])
def test_whole_records_arrive_however_the_stream_is_cut(start: int) -> None:
    for seed in range(30):
        check_cuts(random.Random(seed), start)


def check_cuts(rng: random.Random, start: int) -> None:
    log = log_of(3, start)
    stream = sent(log, rng, start)
    receiver = Receiver(start, FILE)
    taken, position = bytearray(), 0
    while position < len(stream):
        size = rng.randrange(1, 1500)
        for offset, lot in receiver.feed(memoryview(stream)[position : position + size]):
            assert offset == start + len(taken), "each lot follows the one before"
            assert offset // FILE == (offset + len(lot) - 1) // FILE, "a lot lies in one file"
            taken += lot
        position += size
        assert receiver.whole == start + len(taken)
    assert bytes(taken) == log


def test_a_log_that_begins_at_0_is_had_whole_from_a_master_that_is_told_1() -> None:
    log = log_of(1)
    receiver = Receiver(0, FILE, b"\0")
    assert receiver.received == 1
    lots = receiver.feed(memoryview(frame(1, log[1:])))
    assert b"".join(bytes(lot) for _, lot in lots) == log


@pytest.mark.parametrize(
    "stream",
    [
        frame(8, b""),
        frame(1, record(0)[1:]),
        frame(0, record(64)),
        frame(0, b"\0" * 64),
        frame(0, pack(">ii", FILE + 1, BLANK_MAGIC)),
        frame(0, pack(">ii", 20, -626843481) + bytes(12)),
        frame(0, record(0) + bytes(20)),
    ],
    ids=["heartbeat", "gap", "misplaced", "zeros", "long blank", "short record", "end of records"],
)
def test_a_stream_that_is_not_the_next_of_our_log_closes_the_link(stream: bytes) -> None:
    with pytest.raises(StreamError):
        Receiver(0, FILE).feed(memoryview(stream))


def test_a_java_master_without_a_file_has_no_offset_in_its_heartbeats() -> None:
    receiver = Receiver(0, FILE)
    assert receiver.feed(memoryview(frame(-1, b""))) == []
    [(at, data)] = receiver.feed(memoryview(frame(0, record(0))))
    assert (at, bytes(data)) == (0, record(0))
    with pytest.raises(StreamError):
        receiver.feed(memoryview(frame(-1, b"x")))


def test_frames_never_cross_a_file_and_end_with_the_log() -> None:
    sender = Sender(1000, FILE)
    sender.begin(FILE - 100, 0, 2 * FILE)
    frames = []
    while (found := sender.next_frame(FILE + 1500)) is not None:
        frames.append(found)
        sender.claim(found[1])
    assert frames == [(FILE - 100, 100), (FILE, 1000), (FILE + 1000, 500)]


def test_an_empty_slave_gets_the_log_from_its_first_file() -> None:
    sender = Sender(1000, FILE)
    sender.begin(0, 5 * FILE, 7 * FILE)
    assert (sender.position, sender.acked) == (5 * FILE, 0)


def test_first_report_beyond_the_log_acks_nothing() -> None:
    sender = Sender(1000, FILE)
    with pytest.raises(StreamError, match="beyond ours at 100"):
        sender.begin(1 << 61, 0, 100)
    assert sender.acked == -1


def test_a_report_below_the_first_file_is_refused() -> None:
    with pytest.raises(StreamError, match="begins at 8192"):
        Sender(1000, FILE).begin(100, 8192, 10_000)


def test_an_ack_of_what_was_not_sent_closes_the_link() -> None:
    sender = Sender(1000, FILE)
    sender.begin(100, 0, 2000)
    sender.claim(500)
    sender.report(600)
    with pytest.raises(StreamError, match="sent the log up to 600"):
        sender.report(601)
    assert sender.acked == 600


def test_an_ack_never_goes_back() -> None:
    sender = Sender(1000, FILE)
    sender.begin(100, 0, 2000)
    sender.report(50)
    assert sender.acked == 100


def test_the_pace_holds_back_what_is_more_than_a_second_allows() -> None:
    pace = Pace(1000)
    assert pace.take(800, 5.0) == 0
    assert pace.take(800, 5.1) == 0  # the last one may exceed the limit
    assert pace.take(1, 5.25) == pytest.approx(0.75)
    assert pace.take(800, 6.0) == 0


class Asked:
    """The status of each put."""

    def __init__(self, needed: int = 1, behind_max: int = 1000) -> None:
        self.clock = VirtualClock()
        self.end = 0
        self.copies = Copies(
            self.clock, lambda: self.end, needed=needed, behind_max=behind_max, timeout_ms=3000
        )
        self.told: list[tuple[int, PutStatus]] = []

    def put(self, end: int) -> None:
        self.end = end
        self.copies.when_copied(end, lambda status: self.told.append((end, status)))


async def test_a_put_waits_for_the_copy_of_its_last_byte() -> None:
    asked = Asked()
    asked.copies.acked("link", 1, 0)
    asked.put(100)
    asked.copies.acked("link", 1, 99)
    assert asked.told == []
    asked.copies.acked("link", 1, 100)
    assert asked.told == [(100, PutStatus.PUT_OK)]


async def test_two_links_of_one_broker_are_one_copy() -> None:
    asked = Asked(needed=2)
    asked.copies.acked("first", 1, 100)
    asked.copies.acked("second", 1, 100)
    asked.put(100)
    assert asked.told == [(100, PutStatus.SLAVE_NOT_AVAILABLE)]
    asked.copies.acked("third", 2, 50)
    asked.put(120)
    asked.copies.acked("second", 1, 120)
    assert asked.told[1:] == []
    asked.copies.acked("third", 2, 120)
    assert asked.told[1:] == [(120, PutStatus.PUT_OK)]


async def test_the_newest_link_of_a_broker_says_what_it_has() -> None:
    asked = Asked()
    asked.copies.acked("old", 1, 500)
    asked.copies.acked("new", 1, 0)  # its folder was emptied
    assert asked.copies.by_broker() == {1: 0}


async def test_without_a_slave_near_enough_a_put_is_answered_so_at_once() -> None:
    asked = Asked(behind_max=1000)
    asked.put(10)
    asked.copies.acked("link", 1, 10)
    asked.put(1010)
    assert asked.told == [
        (10, PutStatus.SLAVE_NOT_AVAILABLE),
        (1010, PutStatus.SLAVE_NOT_AVAILABLE),
    ]
    asked.put(1009)
    assert len(asked.told) == 2, "this one waits"


async def test_a_slave_that_left_does_not_count() -> None:
    asked = Asked()
    asked.copies.acked("link", 1, 0)
    asked.copies.left("link")
    asked.put(10)
    assert asked.told == [(10, PutStatus.SLAVE_NOT_AVAILABLE)]


async def test_a_copy_that_comes_too_late_is_a_slave_timeout() -> None:
    asked = Asked()
    asked.copies.acked("link", 1, 0)
    asked.put(10)
    await asked.clock.advance(3.1)
    asked.copies.waiters.expire()
    assert asked.told == [(10, PutStatus.FLUSH_SLAVE_TIMEOUT)]
