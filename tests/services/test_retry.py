"""Messages sent back: levels that grow, dead letters, what is kept."""

from dataclasses import replace

import pytest
from services.services_world import HOST, START_MS, World

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.retry import SentBack
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import StoredMessage

RETRY, DEAD = "%RETRY%g", "%DLQ%g"


def send_back(
    world: World, message: StoredMessage, level: int = 0, most: int | None = None
) -> None:
    result = world.retry.send_back(SentBack("g", message.physical_offset, level, most), HOST)
    assert result is not None and result.ok
    world.dispatch()


def test_a_message_sent_back_comes_again_later_and_later_then_is_a_dead_letter(
    world: World,
) -> None:
    world.send("T", b"x", KEYS="k", TAGS="red")
    (message,) = world.read("T")
    first_id = message.message_id
    for times, delay_s in enumerate((10, 30, 60), 1):
        send_back(world, message, most=3)
        world.advance(delay_s - 0.001)
        world.run_schedule()
        assert len(world.read(RETRY)) == times - 1
        world.advance(0.001)
        world.run_schedule()
        message = world.read(RETRY)[-1]
        assert message.reconsume_times == times
    send_back(world, message, most=3)
    (dead,) = world.read(DEAD)
    found = dead.property_map()
    assert bytes(dead.body) == b"x" and dead.born_timestamp == START_MS
    assert (found["KEYS"], found["TAGS"], found["RETRY_TOPIC"]) == ("k", "red", "T")
    assert found["ORIGIN_MESSAGE_ID"] == found["DLQ_ORIGIN_MESSAGE_ID"] == first_id
    config = world.topics.get(DEAD)
    assert config is not None and config.readable and config.perm == 6


def test_a_consumer_can_choose_the_level_or_give_up_at_once(world: World) -> None:
    world.send("T", b"a")
    (message,) = world.read("T")
    send_back(world, message, level=1)
    world.advance(1)
    world.run_schedule()
    assert len(world.read(RETRY)) == 1
    send_back(world, message, level=-1)
    assert len(world.read(DEAD)) == 1


def test_a_message_with_the_most_retries_that_a_record_holds_can_be_sent_back(
    world: World,
) -> None:
    message = world.message("T", b"a")
    message.reconsume_times = 2**31 - 1
    assert world.store.put([message])[0].ok
    world.dispatch()
    send_back(world, world.read("T")[0])
    (dead,) = world.read(DEAD)
    assert dead.reconsume_times == 2**31 - 1


def test_the_largest_level_that_a_client_can_say_is_the_highest_there_is(world: World) -> None:
    world.send("T", b"a")
    send_back(world, world.read("T")[0], level=2**31 - 1)
    world.send("T", b"b", DELAY=str(2**31 - 1))
    assert world.read(RETRY) == [] and len(world.read("T")) == 1
    world.advance(2 * 3600)
    world.run_schedule()
    assert len(world.read(RETRY)) == 1 and len(world.read("T")) == 2


def test_retries_go_to_queues_that_are_read_also_when_the_group_asks_for_more_of_them(
    world: World,
) -> None:
    world.send("T", b"a")
    (message,) = world.read("T")
    send_back(world, message)  # makes the retry topic, with one queue
    config = world.groups.get("g")
    assert config is not None
    world.groups.put(replace(config, retry_queue_nums=16))
    for _ in range(20):
        send_back(world, message)
    world.advance(10)
    world.run_schedule()
    topic = world.topics.get(RETRY)
    assert topic is not None
    assert sum(len(world.read(RETRY, at)) for at in range(topic.read_queue_nums)) == 21


def test_a_committed_transaction_can_be_sent_back_and_die(world: World) -> None:
    world.send("T", b"a", TRAN_MSG="true")  # as stored: the property stays
    message = world.message("T", b"a", TRAN_MSG="true", PGROUP="p")
    assert world.store.put([message])[0].ok
    world.dispatch()
    send_back(world, world.read("T")[0], level=-1)
    assert len(world.read(DEAD)) == 1


@pytest.mark.parametrize("offset", [3, 10**12, -5])
def test_an_offset_that_is_no_message_is_refused(world: World, offset: int) -> None:
    world.send("T")
    with pytest.raises(Refused, match="look message by offset failed"):
        world.retry.send_back(SentBack("g", offset, 0), HOST)


def test_a_retry_in_flight_survives_a_kill(world: World) -> None:
    world.send("T", b"x")
    send_back(world, world.read("T")[0])
    world.reopen_after_kill()
    world.advance(10)
    world.run_schedule()
    (again,) = world.read(RETRY)
    assert bytes(again.body) == b"x" and again.property(props.RETRY_TOPIC) == "T"
