"""Bugs that RocketMQ once had in log, checkpoint and flush: each replayed, none happens here.

The number is that of the issue at github.com/apache/rocketmq. `rmq_bugs` has the bug itself for
each; the last test plants it and sees its test fail.
"""

from __future__ import annotations

import pytest

from aerobee.broker.store.results import PutStatus
from store.rmq_bugs import FAILURES, LOG_BUGS, story_of
from store.rmq_lab import Lab, bodies, checkpoint, dispatch, message, numbered, put, settle


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_rmq_467_the_tail_that_was_not_dispatched_is_dispatched_at_the_next_start(lab: Lab) -> None:
    """The tail that was not dispatched when the broker went is dispatched at the next start."""
    store = lab.open()
    put(store, *numbered(0, 3))
    settle(store)
    checkpoint(store)
    put(store, *numbered(3, 6))
    store.flush.step()
    lab.cut_power()
    assert bodies(lab.open()) == numbered(0, 6)


def test_rmq_405_a_clean_stop_with_part_of_the_log_dispatched_is_made_up_for(lab: Lab) -> None:
    """A stop marked clean with 60 of 100 messages dispatched: the other 40 are dispatched."""
    store = lab.open()
    put(store, *numbered(0, 60))
    settle(store)
    store.queue_flush.step(thorough=True)
    put(store, *numbered(60, 100))
    store.flush.step()
    lab.disk.unlink("/store/abort")
    lab.disk.syncdir("/store")
    lab.cut_power()
    assert bodies(lab.open()) == numbered(0, 100)


def test_rmq_1434_messages_on_both_sides_of_a_file_boundary_are_dispatched(lab: Lab) -> None:
    """The last messages of one file and the first of the next were not dispatched: all are."""
    store = lab.open()
    put(store, *numbered(0, 3, 1000))
    settle(store)
    checkpoint(store)
    put(store, *numbered(3, 9, 1000))
    assert len(store.commit_log.files.files) == 2
    store.flush.step()
    lab.cut_power()
    assert bodies(lab.open()) == numbered(0, 9, 1000)


def test_rmq_495_what_was_cut_off_a_queue_does_not_come_back(
    lab: Lab,
) -> None:
    """Two crashes: what the first one cut off a queue does not come back with the second."""
    store = lab.open()
    put(store, *numbered(0, 5))
    settle(store)
    checkpoint(store)
    put(store, *numbered(5, 10))
    dispatch(store)
    lab.write_back("consumequeue")
    lab.cut_power()
    store = lab.open()
    assert bodies(store) == numbered(0, 5)
    put(store, *numbered(50, 52, 900))  # the log grows beyond what was cut off
    settle(store)
    checkpoint(store)
    lab.cut_power()
    store = lab.open()
    assert bodies(store) == numbered(0, 5) + numbered(50, 52, 900)
    assert put(store, b"next")[0].queue_offset == 7


def test_rmq_10666_a_sound_record_behind_the_recovered_end_is_not_found_later(lab: Lab) -> None:
    """A sound record behind the end that recovery found is not there for a later recovery."""
    store = lab.open()
    put(store, *numbered(0, 1, 1000))
    settle(store)
    checkpoint(store)
    _, last = put(store, *numbered(1, 3, 1000))
    start = last.physical_offset
    lab.write_back("commitlog", start - start % 512, last.end_offset)
    lab.cut_power()
    store = lab.open()
    assert bodies(store) == numbered(0, 1, 1000)
    assert put(store, *numbered(7, 8, 1000))[0].end_offset == start  # the stale one is next to it
    store.flush.step()
    lab.cut_power()
    assert bodies(lab.open()) == numbered(0, 1, 1000) + numbered(7, 8, 1000)


def test_rmq_10017_a_sound_record_from_another_place_is_not_of_this_log(lab: Lab) -> None:
    """A whole old record with a sound checksum, but from another place: not of this log."""
    store = lab.open()
    (result,) = put(store, b"once")
    store.flush.step()
    end = result.end_offset
    inode = lab.disk.names["/store/commitlog/00000000000000000000"]
    inode.durable[end : 2 * end] = inode.durable[:end]
    lab.cut_power()
    store = lab.open()
    assert store.max_physical_offset == end
    assert bodies(store) == [b"once"]


def test_rmq_7437_a_record_with_torn_properties_does_not_count(lab: Lab) -> None:
    """The body is whole, a property is not: the record does not count."""
    store = lab.open()
    first, second = put(store, b"first", b"second")
    store.flush.step()
    inode = lab.disk.names["/store/commitlog/00000000000000000000"]
    at = bytes(inode.durable).rindex(b"KEYS\x01second")
    inode.durable[at + 5 : at + 8] = b"SEC"
    lab.cut_power()
    store = lab.open()
    assert store.max_physical_offset == first.end_offset == second.physical_offset
    assert bodies(store) == [b"first"]


def test_rmq_9121_a_checksum_of_zero_is_a_checksum_like_any_other(lab: Lab) -> None:
    """A checksum whose value is 0 is a checksum like any other."""
    body = bytes.fromhex("9d0ad96d")  # its CRC-32 is 0
    store = lab.open(enabled_append_prop_crc=False)
    (result,) = store.put([message(body)])
    store.flush.step()
    inode = lab.disk.names["/store/commitlog/00000000000000000000"]
    at = bytes(inode.durable).index(body)
    assert inode.durable[8:12] == bytes(4)
    whole = lab.image()
    inode.durable[at] ^= 1
    lab.cut_power()
    assert lab.open(enabled_append_prop_crc=False).max_physical_offset == 0
    lab.disk = whole
    assert lab.open(enabled_append_prop_crc=False).max_physical_offset == result.end_offset


def test_rmq_678_a_power_cut_during_a_checkpoint_never_promises_too_much(lab: Lab) -> None:
    """The power fails at any moment of a checkpoint: it never says more than is on disk."""
    store = lab.open()
    put(store, *numbered(0, 5))
    settle(store)
    checkpoint(store)
    put(store, *numbered(5, 9))
    store.flush.step()
    lab.cut_power()

    def work(other: Lab) -> None:
        again = other.open()
        put(again, *numbered(9, 12))
        settle(again)
        checkpoint(again)

    cuts = 0
    for after in lab.each_cut(work):
        store = after.open()
        found = bodies(store)
        assert found == numbered(0, max(9, len(found)))
        cuts += 1
    assert cuts > 5
    assert found == numbered(0, 12)


def test_rmq_10073_the_checkpoint_is_never_ahead_of_the_log_on_disk(lab: Lab) -> None:
    """Queues may be ahead of the log on disk; the checkpoint must not say that the log is too."""
    store = lab.open()
    put(store, *numbered(0, 5))
    settle(store)
    put(store, *numbered(5, 8))
    dispatch(store)
    checkpoint(store)
    assert store.checkpoint.value.dispatched_offset == store.flushed_offset
    lab.cut_power()
    store = lab.open()
    assert bodies(store) == numbered(0, 5)
    assert put(store, b"next")[0].queue_offset == 5


def test_rmq_7233_the_checkpoint_moves_on_when_nobody_waits_for_a_flush(lab: Lab) -> None:
    """No put waits for the flush of these messages: the checkpoint's times still advance."""
    store = lab.open(flush_disk_type="SYNC_FLUSH")
    for number in range(3):
        lab.clock.ms += 60_000
        put(store, *numbered(number * 7, number * 7 + 7, 1000))
    assert len(store.flush.waiters) == 0
    settle(store)
    checkpoint(store)
    assert store.checkpoint.value.physic_msg_timestamp == lab.clock.ms
    lab.cut_power()
    point = lab.open(flush_disk_type="SYNC_FLUSH").checkpoint.value
    assert min(point.physic_msg_timestamp, point.logics_msg_timestamp) == lab.clock.ms


def test_rmq_2706_a_failed_sync_confirms_nothing_and_takes_nothing_more(lab: Lab) -> None:
    """A sync that failed: no message is confirmed, and none is taken before a restart."""
    store = lab.open(flush_disk_type="SYNC_FLUSH")
    (result,) = put(store, b"lost")
    told: list[PutStatus] = []
    store.when_durable(result.end_offset, told.append)
    lab.disk.failing_syncs = {lab.disk.syncs + 1}
    store.flush.step()
    assert told == [PutStatus.UNKNOWN_ERROR]
    (refused,) = store.put([message()])
    assert not refused.ok and "could not be synced" in refused.reason


def test_rmq_3408_one_flush_confirms_waiters_in_two_files(lab: Lab) -> None:
    """Puts wait on the end of one file and on the next: one flush confirms all."""
    store = lab.open(flush_disk_type="SYNC_FLUSH")
    told: list[PutStatus] = []
    for result in put(store, *numbered(0, 10, 1000)):
        store.when_durable(result.end_offset, told.append)
    assert len(store.commit_log.files.files) == 2
    store.flush.step()
    assert told == [PutStatus.PUT_OK] * 10


def test_rmq_7523_the_pool_keeps_no_synced_send_waiting(lab: Lab) -> None:
    """SYNC_FLUSH with the transient store pool on: what is asked to be on disk is, at once."""
    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    store = lab.open(flush_disk_type="SYNC_FLUSH", **pool)
    told: list[PutStatus] = []
    for result in put(store, *numbered(0, 3)):
        store.when_durable(result.end_offset, told.append)
    store.flush.step()
    assert told == [PutStatus.PUT_OK] * 3
    lab.cut_power()
    assert bodies(lab.open()) == numbered(0, 3)


def test_rmq_8239_sync_flush_shows_nothing_that_a_power_cut_would_take_back(lab: Lab) -> None:
    """In SYNC_FLUSH no consumer sees a message that a power cut could lose."""
    store = lab.open(flush_disk_type="SYNC_FLUSH")
    put(store, b"one")
    dispatch(store)
    assert bodies(store) == []
    store.flush.step()
    dispatch(store)
    assert bodies(store) == [b"one"]


@pytest.mark.parametrize("number", LOG_BUGS)
def test_its_own_bug_breaks_it(number: int, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    LOG_BUGS[number](monkeypatch)
    with pytest.raises(FAILURES):
        story_of(number, globals())(lab)
