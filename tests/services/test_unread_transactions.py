"""Transactions on a disk that cannot read something: the others continue, and none ends twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from services.services_world import HandClock, World
from services.test_transactions import end, half
from store.faulty_disk import SECTOR, Fault, FaultyDisk
from structlog.testing import capture_logs

from aerobee.broker.base.refused import Refused
from aerobee.broker.store.results import PutResult
from aerobee.broker.store.retention.keepers import Standing
from aerobee.protocol.names import (
    TRANSACTION_GROUP,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)

BIG = b"." * 3 * SECTOR  # so that no two messages share a sector


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def world(tmp_path: Path, disk: FaultyDisk) -> Iterator[World]:
    world = World(tmp_path / "store", HandClock(), disk=disk)
    yield world
    world.close_quietly()


def halves(world: World, disk: FaultyDisk, how: str) -> list[PutResult]:
    """Three; the second one cannot be read any more after a start."""
    sent = [half(world, b"%d" % number + BIG) for number in range(3)]
    world.send("Z", BIG)
    world.store.flush.step()
    world.store.queue_flush.step(thorough=True)
    place = sent[1].physical_offset + sent[1].size // 2
    disk.bad_sectors.add((f"commitlog/{0:020d}", place // SECTOR))
    world.stop() if how == "stop" else world.kill()
    world.open()
    return sent


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_half_message_on_a_bad_sector_holds_up_neither_a_start_nor_the_others(
    world: World, disk: FaultyDisk, how: str
) -> None:
    sent = halves(world, disk, how)
    world.checks.step(world.clock.now_ms())
    assert [root for root, _ in world.transactions.open_halves()] == [0, 2]
    end(world, sent[0])
    end(world, sent[2], commit=False)
    assert [body[:1] for body in world.bodies("T", 1)] == [b"0"]
    with pytest.raises(OSError, match="Input/output"):
        end(world, sent[1])


def test_it_is_open_again_once_it_can_be_read_also_after_another_start(
    world: World, disk: FaultyDisk
) -> None:
    sent = halves(world, disk, "kill")
    end(world, sent[0])
    end(world, sent[2])
    for _ in range(2):
        world.checks.step(world.clock.now_ms())
        world.dispatch()
        world.store.flush.step()
    assert world.offsets.query(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, 0) == 1
    world.stop()
    world.open()
    world.checks.step(world.clock.now_ms())
    assert world.transactions.open_count == 0
    disk.bad_sectors.clear()
    with capture_logs() as lines:
        world.checks.step(world.clock.now_ms())
    assert [line for line in lines if line["log_level"] == "error"] == []
    assert [root for root, _ in world.transactions.open_halves()] == [1]
    end(world, sent[1])
    assert [body[:1] for body in world.bodies("T", 1)] == [b"0", b"2", b"1"]


def test_its_end_is_taken_as_soon_as_it_can_be_read(world: World, disk: FaultyDisk) -> None:
    sent = halves(world, disk, "stop")
    world.checks.step(world.clock.now_ms())
    disk.bad_sectors.clear()
    end(world, sent[1])
    with pytest.raises(Refused, match="not open any more"):
        end(world, sent[1])
    assert len(world.bodies("T", 1)) == 1


def test_its_file_is_kept(world: World, disk: FaultyDisk) -> None:
    halves(world, disk, "stop")
    keeper = next(one for one in world.store.clean.keepers._keepers if one.kind == "half")
    standings = {keeper.carry(world.store.max_physical_offset, True) for _ in range(3)}
    assert standings == {Standing.STUCK} and "cannot be read" in keeper.problem


def test_a_start_that_could_read_only_some_ends_lets_no_transaction_end_twice(
    world: World, disk: FaultyDisk
) -> None:
    sent = [half(world, b"%d" % number) for number in range(3)]
    end(world, sent[0])
    end(world, sent[1])
    world.stop()
    world.open()
    disk.faults = [Fault("read", TRANSACTION_OP_TOPIC, times=1)]
    with pytest.raises(OSError, match="Input/output"):
        world.transactions.prepare()
    for ended in sent[:2]:
        with pytest.raises(Refused, match="not open any more"):
            end(world, ended)
    assert world.bodies("T", 1) == [b"0", b"1"]
    assert world.transactions.open_count == 1
