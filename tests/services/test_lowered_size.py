"""A maxMessageSize that was lowered: what was accepted before is still delivered."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from services.services_world import HOST, START_MS, World

from aerobee.broker.services.retry import SentBack
from aerobee.broker.services.transactions.service import EndRequest
from aerobee.broker.store.results import PutStatus
from aerobee.protocol.files.record import TRANSACTION_PREPARED

BODY = b"large" * 100


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "store", max_message_size=len(BODY))
    yield world
    world.close_quietly()


def lower_the_limit(world: World) -> None:
    world.settings.max_message_size = len(BODY) - 1
    world.reopen_after_kill()
    refused = world.store.put([world.message("T", BODY)])[0]
    assert refused.status is PutStatus.MESSAGE_ILLEGAL and "maxMessageSize" in refused.reason


def test_a_delayed_message_above_the_lowered_limit_is_delivered(world: World) -> None:
    world.send("T", BODY, DELAY="1")
    world.send("T", b"small", DELAY="1")
    lower_the_limit(world)
    world.advance(1)
    world.run_schedule()
    assert world.bodies("T") == [BODY, b"small"]


def test_a_timer_above_the_lowered_limit_fires(world: World) -> None:
    world.send("T", BODY, TIMER_DELIVER_MS=str(START_MS + 3000), UNIQ_KEY="u")
    world.run_timers()
    lower_the_limit(world)
    world.advance(4)
    world.run_timers()
    assert world.bodies("T") == [BODY]


def test_a_half_message_above_the_lowered_limit_can_be_committed(world: World) -> None:
    half = world.message("T", BODY, TRAN_MSG="true", PGROUP="p", UNIQ_KEY="u")
    half.sys_flag = TRANSACTION_PREPARED
    sent = world.store.put([world.hooks.apply(half)])[0]
    world.dispatch()
    lower_the_limit(world)
    world.transactions.end(EndRequest("p", sent.queue_offset, sent.physical_offset, commit=True))
    world.dispatch()
    assert world.bodies("T") == [BODY]


def test_a_message_above_the_lowered_limit_can_be_sent_back(world: World) -> None:
    sent = world.send("T", BODY)
    lower_the_limit(world)
    result = world.retry.send_back(SentBack("g", sent.physical_offset, 1), HOST)
    assert result is not None and result.ok
    world.dispatch()
    world.advance(1)
    world.run_schedule()
    assert world.bodies("%RETRY%g") == [BODY]
