"""Order locks, the groups' filters and their file, progress files, recall handles, put hooks."""

import asyncio
import errno
import gc
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from services.services_world import START_MS, HandClock, SetClock, World
from waiting import until

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.services.clients.consumer_group import ConsumerGroup
from aerobee.broker.services.clients.subscription import build_subscription
from aerobee.broker.services.config_files import config_file
from aerobee.broker.services.config_files.config_file import ConfigFile
from aerobee.broker.services.config_files.json_file import load_json
from aerobee.broker.services.filters.filter_properties import properties_matcher, record_matcher
from aerobee.broker.services.filters.selection import by_expression, by_heartbeat
from aerobee.broker.services.filters.sql_filters import DEAD_KEPT_MS, Filters
from aerobee.broker.services.order_locks import OrderLocks
from aerobee.broker.sql92 import compile_filter, parser
from aerobee.protocol.files.ids import encode_host
from aerobee.protocol.files.record import Message, encode_record
from aerobee.protocol.files.record_layout import record_properties
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire import recall_handle

QUEUE = MessageQueue("T", "b", 0)


def test_a_lock_is_kept_by_refreshing_and_lost_by_silence() -> None:
    clock = HandClock()
    locks = OrderLocks(clock)
    assert locks.lock("g", "one", [QUEUE]) == [QUEUE]
    assert locks.lock("g", "two", [QUEUE]) == [] and locks.has_live("g")
    clock.at_ms += 60_000
    assert locks.lock("g", "two", [QUEUE]) == []
    clock.at_ms += 1
    assert locks.lock("g", "two", [QUEUE]) == [QUEUE]
    assert locks.table("g") == {QUEUE: "two"}
    clock.at_ms += 60_001
    assert not locks.has_live("g") and locks.table("g") == {}


def test_a_lock_is_lost_by_silence_also_when_the_clock_is_set_back() -> None:
    clock = HandClock()
    locks = OrderLocks(clock)
    locks.lock("g", "one", [QUEUE])
    clock.set_by_ms = -3_600_000
    clock.at_ms += 60_001
    assert not locks.has_live("g")
    assert locks.lock("g", "two", [QUEUE]) == [QUEUE]


def test_only_the_owner_gives_a_lock_up() -> None:
    locks = OrderLocks(HandClock())
    locks.lock("g", "one", [QUEUE])
    locks.unlock("g", "two", [QUEUE])
    assert locks.has_live("g")
    locks.unlock("g", "one", [QUEUE])
    assert not locks.has_live("g")
    assert locks.lock("other", "two", [QUEUE]) == [QUEUE]


def test_no_more_locks_are_kept_than_allowed_and_expired_ones_make_room() -> None:
    clock = HandClock()
    locks = OrderLocks(clock, locks_max=100)
    for number in range(100):
        assert locks.lock(f"g{number}", "one", [QUEUE]) == [QUEUE]
    with pytest.raises(Refused, match="100 queues are locked already"):
        locks.lock("one more", "one", [QUEUE])
    assert locks.lock("g5", "one", [QUEUE]) == [QUEUE], "one's own lock can be refreshed"
    assert len(locks) == 100
    clock.at_ms += 60_001
    assert locks.lock("one more", "one", [QUEUE]) == [QUEUE]
    assert len(locks) < 50, "what has expired goes with the next requests"


def group_with(*subscriptions: tuple[str, str, str, int]) -> ConsumerGroup:
    group = ConsumerGroup("g")
    for topic, expression, kind, version in subscriptions:
        group.subscriptions[topic] = build_subscription(topic, expression, kind, version)
    return group


def test_a_groups_filter_lives_with_its_members_and_is_kept_for_a_day(tmp_path: Path) -> None:
    clock = HandClock()
    path = tmp_path / "consumerFilter.json"
    filters = Filters(str(path), clock)
    filters.group_changed("g", group_with(("T", "a > 5", "SQL92", 7), ("U", "x", "TAG", 7)))
    known = filters.get("T", "g")
    assert known is not None and not known.dead and filters.get("U", "g") is None
    filters.group_changed("g", None)
    assert known.dead
    filters.file.stop()
    entry = fastjson.loads(path.read_bytes())["filterDataByTopic"]["T"]
    assert entry["topic"] == "T"
    kept = entry["groupFilterData"]["g"]
    assert kept["expression"] == "a > 5" and kept["dead"] is True and kept["clientVersion"] == 7
    clock.at_ms += DEAD_KEPT_MS - 1
    again = Filters(str(path), clock)
    again.load()
    assert again.get("T", "g") is not None
    clock.at_ms += 1
    late = Filters(str(path), clock)
    late.load()
    assert late.get("T", "g") is None


def test_a_live_filter_counts_as_dead_after_a_load_until_the_heartbeat(tmp_path: Path) -> None:
    clock = HandClock()
    filters = Filters(str(tmp_path / "f.json"), clock)
    filters.group_changed("g", group_with(("T", "a > 5", "SQL92", 7)))
    filters.file.stop()
    again = Filters(str(tmp_path / "f.json"), clock)
    again.load()
    known = again.get("T", "g")
    assert known is not None and known.dead
    again.group_changed("g", group_with(("T", "a > 5", "SQL92", 7)))
    assert not known.dead


def test_a_group_that_comes_again_with_a_clock_set_back_has_its_new_filter(tmp_path: Path) -> None:
    clock = HandClock()
    filters = Filters(str(tmp_path / "f.json"), clock)
    filters.group_changed("g", group_with(("T", "a > 5", "SQL92", START_MS)))
    clock.set_by_ms = -3_600_000
    filters.group_changed("g", None)
    known = filters.get("T", "g")
    assert known is not None and known.dead
    filters.group_changed("g", group_with(("T", "a > 7", "SQL92", clock.now_ms())))
    known = filters.get("T", "g")
    assert known is not None and known.expression == "a > 7" and not known.dead


def test_a_pull_needs_a_filter_that_is_known_and_new_enough(tmp_path: Path) -> None:
    filters = Filters(str(tmp_path / "f.json"), HandClock())
    with pytest.raises(Refused) as caught:
        filters.for_pull("T", "g", 1)
    assert caught.value.code == 27
    filters.group_changed("g", group_with(("T", "a > 5", "SQL92", 7)))
    with pytest.raises(Refused) as caught:
        filters.for_pull("T", "g", 8)
    assert caught.value.code == 28
    filters.for_pull("T", "g", 7)
    filters.group_changed("g", group_with(("T", "a >", "SQL92", 9)))  # invalid: must be reported
    with pytest.raises(Refused) as caught:
        filters.for_pull("T", "g", 9)
    assert caught.value.code == 27


@pytest.mark.parametrize("ipv6", [False, True])
@pytest.mark.parametrize("topic", ["T", "t" * 200])
def test_the_properties_of_a_record_are_found_without_decoding_it(ipv6: bool, topic: str) -> None:
    host = encode_host("::1" if ipv6 else "127.0.0.1", 9)
    message = Message(topic, 0, b"body", "a\x017\x02", born_host=host, store_host=host)
    record = memoryview(encode_record(message, 1, 2, 3))
    assert record_properties(record) == "a\x017\x02"
    assert record_matcher(compile_filter("a > 5"))(record)
    assert not record_matcher(compile_filter("a > 8"))(record)
    assert properties_matcher(compile_filter("a = 7"))("a\x017\x02")


def test_a_recall_handle_is_upstreams() -> None:
    handle = recall_handle.encode("T", "broker-a", "1700000000000", "7F0001")
    assert handle == "djEgVCBicm9rZXItYSAxNzAwMDAwMDAwMDAwIDdGMDAwMQ=="
    assert recall_handle.decode(handle) == ("T", "broker-a", 1700000000000, "7F0001")
    assert recall_handle.decode(handle.rstrip("=")).unique_key == "7F0001"


@pytest.mark.parametrize("handle", ["", "x", "djIgVCBiIDEgdQ==", "djEgVCBiIHggdQ==", "ÿ"])
def test_what_is_no_handle_is_refused(handle: str) -> None:
    with pytest.raises(ValueError, match="recall handle is invalid"):
        recall_handle.decode(handle)


def test_a_delivered_timer_is_not_timed_again(world: World) -> None:
    message = world.message("T", TIMER_OUT_MS="5", TIMER_DELIVER_MS=str(START_MS + 10_000))
    assert world.hooks.apply(message).topic == "T"


def test_the_handle_of_a_timer_names_its_exact_time(world: World) -> None:
    message = world.hooks.apply(world.message("T", TIMER_DELAY_MS="1234", UNIQ_KEY="u"))
    handle = world.hooks.recall_handle(message)
    assert handle is not None
    assert recall_handle.decode(handle) == ("T", "broker-a", START_MS + 1234, "u")
    assert world.hooks.recall_handle(world.message("T", UNIQ_KEY="u")) is None


@pytest.mark.parametrize("wanted", [{"DELAY": "18"}, {"TIMER_DELAY_SEC": "7200"}])
async def test_a_clock_set_forward_makes_what_is_due_come_at_once(
    tmp_path: Path, wanted: dict[str, Any]
) -> None:
    clock = SetClock()
    world = World(tmp_path / "store", clock)
    world.send("T", b"due", **wanted)
    sent = world.store.max_physical_offset
    await world.schedule.start()
    await world.timers.start()
    try:
        await asyncio.sleep(0.05)  # both now sleep for two hours
        clock.set_by_ms = 7_200_000
        await until(lambda: world.store.max_physical_offset > sent)
    finally:
        await world.schedule.stop()
        await world.timers.stop()
        world.close_quietly()


async def test_a_change_whose_saving_is_cut_off_by_the_stop_is_saved_by_it(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    table = {"a": 1}
    file = ConfigFile(str(path), Clock(), lambda: dict(table))
    file.save()
    loop = asyncio.get_running_loop()
    busy = threading.Event()
    pool = ThreadPoolExecutor(1)
    loop.set_default_executor(pool)
    other = loop.run_in_executor(None, busy.wait)  # keeps the only thread busy
    running = asyncio.create_task(file.run(0.01))
    table["a"] = 2
    file.changed_lazily()
    await until(lambda: pool._work_queue.qsize())  # the save is queued
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    busy.set()
    await other
    file.save()
    assert load_json(str(path)) == {"a": 2}


@pytest.mark.parametrize("delay_s", [5, 90 * 86400])  # the second one rolls on the way
def test_a_timer_whose_properties_have_no_room_for_more_fires_all_the_same(
    world: World, delay_s: int
) -> None:
    taken = 0
    for room in range(0, 400, 10):
        message = world.message("T", text="x" * (32767 - room), TIMER_DELAY_SEC=str(delay_s))
        taken += world.store.put([world.hooks.apply(message)])[0].ok
    assert 20 < taken < 40
    world.dispatch()
    for _ in range(40):
        world.advance(3 * 86400)
        world.run_timers()
    assert len(world.bodies("T")) == taken


async def test_a_change_that_the_disk_refused_is_saved_by_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    file = ConfigFile(str(path), Clock(), lambda: {"a": 1})

    def refuse(path: str, value: object, **_: object) -> None:
        refused.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    refused = threading.Event()
    monkeypatch.setattr(config_file, "save_json", refuse)
    running = asyncio.create_task(file.run(0.01))
    file.changed_lazily()
    await until(lambda: refused.is_set() and file._dirty)  # it waits for the next try
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    monkeypatch.undo()
    file.save()
    assert load_json(str(path)) == {"a": 1}


def test_long_expressions_that_change_with_every_pull_do_not_fill_memory() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(6):
            text = " OR ".join(f"a = {number * 10_000 + other}" for other in range(2_000))
            selection = by_expression(text, "SQL92")
            assert selection.matches_properties is not None
            assert selection.matches_properties(f"a\x01{number * 10_000}\x02")
        del selection
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1 << 20


def test_a_groups_filter_is_compiled_once_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters = Filters(str(tmp_path / "f.json"), HandClock())
    text = " OR ".join(f"a = {number}" for number in range(2_000))
    subscription = build_subscription("T", text, "SQL92", 7)
    filters.group_changed("g", group_with(("T", text, "SQL92", 7)))
    by_heartbeat(subscription, filters, "g", 7)
    monkeypatch.setattr(parser, "parse", lambda text: pytest.fail("compiled again"))
    for _ in range(3):
        selection = by_heartbeat(subscription, filters, "g", 7)
        assert selection.matches_properties is not None
        assert selection.matches_properties("a\x011999\x02")
