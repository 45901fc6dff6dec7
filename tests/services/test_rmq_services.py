"""Bugs of RocketMQ's services, by the number of their issue; each with the bug planted."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from services.services_world import START_MS, World
from services.test_consumer_group import member_of, wants
from services.test_transactions import half
from store.rmq_bugs import story_of

from aerobee.broker.services.clients.consumer_group import ConsumerGroup
from aerobee.broker.services.clients.subscription import build_subscription
from aerobee.broker.services.filters.sql_filters import Filters
from aerobee.broker.services.timers import delivery, messages, recovery
from aerobee.broker.services.timers.delivery import TimerDelivery
from aerobee.broker.services.transactions.checks import TransactionChecks
from aerobee.broker.store.results import PutResult, PutStatus
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import Message
from aerobee.protocol.names import TRANSACTION_HALF_TOPIC

Patch = pytest.MonkeyPatch


class Producer:
    """A connection of a producer: what it is asked."""

    def __init__(self, fails: bool = False) -> None:
        self.asked = 0
        self._fails = fails

    def send_oneway(self, _command: object) -> None:
        if self._fails:
            raise RuntimeError("the transport is closing")
        self.asked += 1


def connect(world: World, **producers: Producer) -> None:
    world.clients.producer_channel = producers.get  # type: ignore[method-assign, assignment]


def fire(world: World, seconds: int = 5) -> None:
    for _ in range(seconds * 2):
        world.advance(0.5)
        world.run_timers()


def test_rmq_6984_a_put_refused_in_a_batch_repeats_none_before_it(world: World) -> None:
    """A put that is refused in the middle of a batch repeats none of those before it."""
    for number in range(5):
        world.send("T", b"%d" % number, TIMER_DELIVER_MS=str(START_MS + 1500 + number))
    real, refused = world.store.put_accepted, [0]

    def put(messages: Sequence[Message]) -> list[PutResult]:
        if len(messages) < 2 or refused[0] == 3:
            return real(messages)
        refused[0] += 1
        rest = [PutResult(PutStatus.SERVICE_NOT_AVAILABLE) for _ in messages[1:]]
        return real(messages[:1]) + rest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store, "put_accepted", put)
        fire(world)
    assert refused == [3]
    assert world.bodies("T") == [b"%d" % number for number in range(5)]


def repeat_the_batch(patch: Patch) -> None:
    real = TimerDelivery._put_batch

    def put_batch(self: TimerDelivery, batch: list[Any]) -> int:
        done = real(self, batch)
        return done if done == len(batch) else 0

    patch.setattr(TimerDelivery, "_put_batch", put_batch)


def test_rmq_9654_a_timer_of_the_largest_size_blocks_nobody(world: World) -> None:
    """A timer of the largest size, which its own properties make larger still, blocks no other."""
    size = world.settings.max_message_size
    world.send("T", bytes(size), KEYS="k" * 400, TIMER_DELIVER_MS=str(START_MS + 1000))
    world.send("T", b"next", TIMER_DELIVER_MS=str(START_MS + 2000))
    fire(world)
    assert [len(body) for body in world.bodies("T")] == [size, 4]


def a_buffer_of_100_bytes_more(patch: Patch) -> None:
    real = messages.message_of

    def message_of(store: Any, unit: Any) -> Any:
        found = real(store, unit)
        return None if found is not None and found.size > (4 << 20) + 100 else found

    patch.setattr(delivery, "message_of", message_of)


def test_rmq_10668_units_whose_records_a_crash_took_deliver_nothing_else(world: World) -> None:
    """Units of the timer log whose records were lost in a crash do not deliver what was stored
    there later, and block no other."""
    world.send("T", b"stays", TIMER_DELIVER_MS=str(START_MS + 2000))
    lost = world.send("T", b"lost!", TIMER_DELIVER_MS=str(START_MS + 2000))
    world.run_timers()
    world.kill()
    with (world.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.truncate(lost.physical_offset)
        file.truncate(8 << 20)
    world.open()
    assert world.store.max_physical_offset == lost.physical_offset
    world.send("Other", b"other", TIMER_DELIVER_MS=str(START_MS + 4000))  # of the same size
    fire(world)
    assert (world.bodies("T"), world.bodies("Other")) == ([b"stays"], [b"other"])
    assert world.timers.pending == 0


def keep_units_of_lost_records(patch: Patch) -> None:
    def scan(timer_log: Any, *_: object) -> Iterator[Any]:
        yield from timer_log.scan()

    patch.setattr(recovery, "_scan", scan)


def test_rmq_10019_recalled_timers_do_not_wait_for_ever(world: World) -> None:
    """Recalled timers are not counted as waiting for ever."""
    at_ms = str(START_MS + 1500)
    for number in range(3):
        unique = b"%d" % number
        world.send("T", unique, TIMER_DELIVER_MS=at_ms, UNIQ_KEY=unique.hex())
        recall: dict[str, Any] = {
            "TIMER_DEL_UNIQKEY": f"T+{unique.hex()}",
            "TIMER_DELIVER_MS": at_ms,
        }
        world.send("T", b"", UNIQ_KEY=f"r{number}", **recall)
    fire(world)
    assert world.bodies("T") == [] and world.timers.pending == 0


def count_what_is_delivered_alone(patch: Patch) -> None:
    real = TimerDelivery._put_batch

    def put_batch(self: TimerDelivery, batch: list[Any]) -> int:
        return real(self, [each._replace(counts=each.made is not None) for each in batch])

    patch.setattr(TimerDelivery, "_put_batch", put_batch)


def test_rmq_8311_rounds_in_which_no_producer_is_asked_are_no_checks(world: World) -> None:
    """Rounds within the immunity time are not counted as checks."""
    producer = Producer()
    connect(world, p=producer)
    half(world, CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    for _ in range(20):
        world.checks.step(world.clock.now_ms())
        world.dispatch()
        world.advance(30)
    assert producer.asked == 0
    world.advance(1)
    world.checks.step(world.clock.now_ms())
    assert producer.asked == 1


def count_every_round(patch: Patch) -> None:
    def bring_up(self: TransactionChecks, root: int, half: Any, checks: int) -> None:
        self._transactions.copy(root, half, checks + 1)

    patch.setattr(TransactionChecks, "_copy_forward", bring_up)


def test_rmq_9500_a_check_that_fails_ends_no_round(world: World) -> None:
    """A failed check blocks neither the others of its round nor the progress."""
    producer = Producer()
    connect(world, bad=Producer(fails=True), p=producer)
    half(world, b"first", PGROUP="bad")
    half(world, b"second")
    world.advance(60)
    for _ in range(2):
        world.checks.step(world.clock.now_ms())
        world.dispatch()
    assert producer.asked == 2
    assert {m.property(props.PGROUP) for m in world.read(TRANSACTION_HALF_TOPIC)} == {"bad", "p"}


def end_the_round(patch: Patch) -> None:
    patch.setattr(TransactionChecks, "_try", TransactionChecks._look_at)


def test_rmq_6679_a_client_whose_clock_was_set_back_changes_what_it_subscribes(
    world: World,
) -> None:
    group = ConsumerGroup("g")
    first = member_of(group, "c1")
    group.subscribe(first, wants({"T": "a"}, version=2000))
    group.subscribe(first, wants({"T": "b"}, version=1000))
    assert group.subscriptions["T"].expression == "b"
    group.leave(first.connection)
    group.subscribe(member_of(group, "c1"), wants({"T": "c"}, version=500))  # it rejoins
    assert group.subscriptions["T"].expression == "c"
    filters = Filters(str(world.root / "config" / "consumerFilter.json"), world.clock)
    for version, text in ((2000, "x = 1"), (1000, "x = 2")):
        wanted = build_subscription("T", text, "SQL92", version)
        group.subscribe(next(iter(group.members.values())), [wanted])
        filters.group_changed("g", group)
        assert filters.for_pull("T", "g", version)({"x": text[-1]}) is True


def take_rising_versions_only(patch: Patch) -> None:
    real = ConsumerGroup.subscribe

    def subscribe(self: ConsumerGroup, member: Any, wanted: Any) -> bool:
        known = self.subscriptions
        newer = [
            each
            for each in wanted
            if each.topic not in known or (each.version > known[each.topic].version)
        ]
        return bool(newer) and real(self, member, newer)

    patch.setattr(ConsumerGroup, "subscribe", subscribe)


BUGS: dict[int, Callable[[Patch], None]] = {
    6984: repeat_the_batch,
    9654: a_buffer_of_100_bytes_more,
    10668: keep_units_of_lost_records,
    10019: count_what_is_delivered_alone,
    8311: count_every_round,
    9500: end_the_round,
    6679: take_rising_versions_only,
}


@pytest.mark.parametrize("number", BUGS)
def test_its_own_bug_breaks_it(number: int, world: World, monkeypatch: Patch) -> None:
    BUGS[number](monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):
        story_of(number, globals())(world)
