"""Bugs of RocketMQ's delays, timers and ends of transactions since 2023, by the number of their
issue; each with the bug planted."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from services.services_world import START_MS, World
from services.test_rmq_services import fire
from services.test_transactions import end, half
from store.rmq_bugs import story_of

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.delay.schedule import Schedule
from aerobee.broker.services.timers import firing
from aerobee.broker.services.timers.timer_log import TimerLog
from aerobee.broker.services.timers.wheel import TimerWheel
from aerobee.broker.services.transactions.service import EndRequest, Transactions
from aerobee.broker.store.queues.queue_table import QueueTable
from aerobee.broker.store.results import PutResult, PutStatus
from aerobee.protocol.files.record import Message

Patch = pytest.MonkeyPatch


def refuse_once(world: World) -> list[int]:
    """The store refuses one put of a service; what it was asked to put."""
    real = world.store.put_accepted
    refused: list[int] = []

    def put(messages: list[Message]) -> list[PutResult]:
        if refused:
            return real(messages)
        refused.append(len(messages))
        return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE) for _ in messages]

    world.store.put_accepted = put  # type: ignore[assignment]
    return refused


def test_rmq_9248_a_delayed_message_that_could_not_be_delivered_is_retried(
    world: World,
) -> None:
    for number in range(3):
        world.send("T", b"%d" % number, DELAY="1")
    world.advance(1)
    refused = refuse_once(world)
    for _ in range(5):
        world.run_schedule()
        world.advance(0.1)
    assert refused == [3]
    assert world.bodies("T") == [b"0", b"1", b"2"]


def go_on_behind_it(patch: Patch) -> None:
    real = Schedule._deliver

    def deliver(self: Schedule, batch: list[Any]) -> int | None:
        failed = real(self, batch)
        return None if failed is None else failed + 1

    patch.setattr(Schedule, "_deliver", deliver)


def test_rmq_7077_delays_that_are_past_their_queues_end_come_back_to_it(world: World) -> None:
    """The saved offset may be past the end of the level's queue after a repair of the log: later
    messages are delivered, including the first."""
    world.send("T", b"kept", DELAY="1")
    world.stop()
    path = world.root / "config" / "delayOffset.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"offsetTable": {"1": 77}}))
    world.open()
    for number in range(3):
        world.send("T", b"%d" % number, DELAY="1")
        world.run_schedule()
    world.advance(1)
    world.run_schedule()
    assert world.bodies("T") == [b"0", b"1", b"2"]


def wait_for_the_queue_to_grow(patch: Patch) -> None:
    patch.setattr(Schedule, "_within_queue", lambda self, level: self._next.get(level, 0))


def test_rmq_7480_timers_that_come_after_the_log_was_cut_are_set(world: World) -> None:
    """The timers' checkpoint is ahead of a log that was cut by a repair."""
    first = world.send("T", b"cut", TIMER_DELIVER_MS=str(START_MS + 1000))
    for number in range(4):
        world.send("T", b"%d" % number, TIMER_DELIVER_MS=str(START_MS + 1000))
    world.advance(2)  # they are due when they are read, so nothing in the timer log tells of them
    world.run_timers()
    world.store.flush.step()
    world.timers.checkpoints.step()
    world.kill()
    with (world.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.truncate(first.physical_offset)
        file.truncate(8 << 20)
    world.open()
    assert world.store.max_physical_offset == first.physical_offset
    for number in range(3):
        world.send("T", b"new %d" % number, TIMER_DELIVER_MS=str(START_MS + 5000))
    fire(world, 12)
    assert world.bodies("T") == [b"new 0", b"new 1", b"new 2"]


def believe_the_checkpoint(patch: Patch) -> None:
    patch.setattr(firing, "within_queue", lambda store, queue_offset: queue_offset)


def test_rmq_11047_timers_whose_units_the_disk_refused_in_part_are_set_once(
    world: World, monkeypatch: Patch
) -> None:
    for number in range(5):
        world.send("T", b"%d" % number, TIMER_DELIVER_MS=str(START_MS + 1000 * (number + 1)))
    real, puts = type(world.timers.wheel).put, [0]

    def put(self: Any, second: int, slot: Any) -> None:
        puts[0] += 1
        if puts[0] == 3:
            raise OSError(5, "Input/output error")
        real(self, second, slot)

    monkeypatch.setattr(type(world.timers.wheel), "put", put)
    with pytest.raises(OSError):
        world.run_timers()
    fire(world, 8)
    assert sorted(world.bodies("T")) == [b"%d" % number for number in range(5)]
    assert world.timers.pending == 0


def leave_units_of_a_failed_batch(patch: Patch) -> None:
    patch.setattr(TimerLog, "take_back", lambda self, end: None)

    def put_all(self: TimerWheel, slots: Any) -> None:
        for second, slot in slots.items():
            self.put(second, slot)

    patch.setattr(TimerWheel, "put_all", put_all)


def test_rmq_7709_a_commit_that_cannot_be_stored_leaves_the_transaction_open(world: World) -> None:
    """The store refuses the committed message, for lack of replicas or space: the half message
    is kept, and the commit can be retried."""
    sent = half(world, b"paid")
    refuse_once(world)
    with pytest.raises(Refused, match="stays open"):
        world.transactions.end(EndRequest("p", sent.queue_offset, sent.physical_offset, True))
    assert world.bodies("T", 1) == []
    world.reopen_after_kill()
    end(world, sent)
    assert world.bodies("T", 1) == [b"paid"]


def note_the_end_before_the_message(patch: Patch) -> None:
    def put_both(
        self: Transactions, message: Message, op: Message, put: object = None
    ) -> tuple[PutResult, PutResult]:
        del put
        noted = self._store.put([op])[0]
        return self._store.put_accepted([message])[0], noted

    patch.setattr(Transactions, "_put_both", put_both)


def test_rmq_8660_asking_for_a_queue_that_is_not_there_makes_none(world: World) -> None:
    """Neither in memory nor on disk: clients could fill both by asking."""
    store = world.store
    assert (store.min_offset("gone", 0), store.max_offset("gone", 0)) == (0, 0)
    assert store.queue_entry("gone", 0, 0) is None
    store.read_queue("gone", 0, 5, 32, max_bytes=1 << 20).release()
    store.offset_by_time("gone", 0, START_MS)
    world.send("T")
    world.stop()
    assert "gone" not in store.queues() and "T" in store.queues()
    assert not (world.root / "consumequeue" / "gone").exists()
    world.open()


def make_the_queue_that_is_asked_for(patch: Patch) -> None:
    patch.setattr(QueueTable, "get", QueueTable.get_or_create)


BUGS: dict[int, Callable[[Patch], None]] = {
    9248: go_on_behind_it,
    7077: wait_for_the_queue_to_grow,
    7480: believe_the_checkpoint,
    11047: leave_units_of_a_failed_batch,
    7709: note_the_end_before_the_message,
    8660: make_the_queue_that_is_asked_for,
}


@pytest.mark.parametrize("number", BUGS)
def test_its_own_bug_breaks_it(number: int, world: World, monkeypatch: Patch) -> None:
    BUGS[number](monkeypatch)
    story = story_of(number, globals())
    given = [world, monkeypatch][: story.__code__.co_argcount]
    with pytest.raises((AssertionError, Refused)):
        story(*given)
