"""The arbiter's adapter with Apache's real controller."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from peers.controller import ApacheController
from peers.tools import free_port

from aerobee.broker.ha.arbiter import Alive, ArbiterError, Record, View
from aerobee.broker.ha.controller import ControllerArbiter, SetMember, apply_for
from aerobee.broker.ha.controller_client import ControllerClient
from aerobee.broker.ha.identity import FILE_NAME, Identity, given_id
from aerobee.broker.settings import Settings
from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.files.real_disk import RealDisk

pytestmark = [pytest.mark.apache, pytest.mark.timeout(180)]

LEASE_MS = 2000


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheController]:
    with ApacheController(tmp_path_factory.mktemp("controller")) as running:
        yield running


@pytest.fixture
def settings(controller: ApacheController, tmp_path: Path) -> Settings:
    name, root = uuid.uuid4().hex, str(tmp_path / "store")
    return Settings(
        broker_name=name,
        store_path_root_dir=root,
        enable_controller_mode=True,
        controller_addr=controller.address,
    )


@pytest.fixture
async def life_of(settings: Settings) -> AsyncIterator[Callable[..., ControllerArbiter]]:
    """A life of a replica at the controller, which knows its id."""
    lives: list[ControllerArbiter] = []

    def make(number: int, life: str = "life") -> ControllerArbiter:
        us = SetMember(settings.broker_cluster_name, settings.broker_name, number, life, lambda: 0)
        records, beats = (ControllerClient(settings, 5.0) for _ in range(2))
        made = ControllerArbiter(us, records, beats, LEASE_MS)
        lives.append(made)
        return made

    yield make
    for each in lives:
        await each.close()


async def joined(arbiter: ControllerArbiter, **announced: object) -> View:
    own = Alive(arbiter._us.broker_id, f"127.0.0.1:{free_port()}", **announced)  # type: ignore[arg-type]
    await arbiter.announce(own)
    view = await arbiter.read()
    await arbiter.renew()
    return view


async def led(arbiter: ControllerArbiter) -> View:
    """Elected for the first time."""
    await joined(arbiter)
    assert await arbiter.compare_and_set(0, Record(1, 1, frozenset({1}), "life"))
    view = await arbiter.read()
    assert view.record == Record(1, 1, frozenset({1}), "life")
    return view


async def read_until(arbiter: ControllerArbiter, is_so: Callable[[View], object]) -> View:
    for _ in range(600):
        if is_so(view := await arbiter.read()):
            return view
        await asyncio.sleep(0.1)
    raise AssertionError(view)


Lives = Callable[..., ControllerArbiter]


async def test_one_that_asks_first_is_elected_and_the_other_sees_it(life_of: Lives) -> None:
    one, other = life_of(1), life_of(2)
    await led(one)
    seen = await joined(other)
    assert seen.record == Record(1, 1, frozenset({1}), "")
    assert seen.is_led and seen.alive[1].leads == 1
    assert await other.compare_and_set(0, Record(2, 2, frozenset({2}), "life")) is None


async def test_a_set_is_changed_by_its_master_and_once_from_each_revision(life_of: Lives) -> None:
    one, other = life_of(1), life_of(2)
    view = await led(one)
    await joined(other)
    assert view.record is not None
    wanted = replace(view.record, in_sync=frozenset({1, 2}))
    revision = await one.compare_and_set(view.revision, wanted)
    assert revision is not None and revision > view.revision
    seen = await one.read()
    assert (seen.record, seen.revision) == (wanted, revision)
    assert await one.compare_and_set(view.revision, view.record) is None  # a stale revision
    assert (await one.read()).revision == revision


async def test_an_absent_replica_is_not_taken_into_the_set(life_of: Lives) -> None:
    one, other = life_of(1), life_of(2)
    view = await led(one)
    await joined(other, electable=False)
    assert 2 not in (await one.read()).alive
    assert view.record is not None
    wanted = replace(view.record, in_sync=frozenset({1, 2}))
    assert await one.compare_and_set(view.revision, wanted) is None
    assert (await one.read()).revision == view.revision


async def with_both_in_sync(one: ControllerArbiter, other: ControllerArbiter) -> View:
    view = await led(one)
    await joined(other)
    assert view.record is not None
    wanted = replace(view.record, in_sync=frozenset({1, 2}))
    assert await one.compare_and_set(view.revision, wanted)
    return await other.read()


async def test_the_end_of_its_heartbeats_lets_another_be_elected(life_of: Lives) -> None:
    one, other = life_of(1), life_of(2)
    await with_both_in_sync(one, other)
    await one.withdraw()
    view = await read_until(other, lambda view: view.record and view.record.master == 2)
    assert view.record == Record(2, 2, frozenset({2}), "life")


async def test_a_replica_that_may_lack_something_does_not_accept_its_election(
    life_of: Lives,
) -> None:
    """It was elected by the heartbeats of its last life, whose end went unnoticed."""
    one, other = life_of(1), life_of(2)
    await with_both_in_sync(one, other)
    later = life_of(2, "a later life")
    await joined(later, electable=False)
    await one.withdraw()
    view = await read_until(later, lambda view: view.record and view.record.epoch > 2)
    assert view.record is not None
    assert view.record.master == 0 and view.record.in_sync == {2}  # no master: left to an operator


async def test_a_later_life_is_no_master_from_memory(life_of: Lives) -> None:
    await led(life_of(1))  # killed, unnoticed by the controller
    later = life_of(1, "a later life")
    view = await joined(later)
    assert view.record is not None and view.record.holder == ""
    view = await read_until(later, lambda view: view.record and view.record.master == 0)
    assert view.record is not None
    await later.renew()
    wanted = Record(view.record.epoch + 1, 1, frozenset({1}), "a later life")
    assert await later.compare_and_set(view.revision, wanted)
    found = (await later.read()).record
    assert found is not None and found.epoch >= wanted.epoch  # each attempt to elect increments it
    assert replace(found, epoch=wanted.epoch) == wanted


async def test_a_number_that_the_log_has_is_not_used_again(life_of: Lives) -> None:
    """The folder was with another arbiter before: epochs are counted up until they are new."""
    one = life_of(1)
    await joined(one, last_epoch=4)
    async with asyncio.timeout(60):
        while (view := await one.read()).record is None or view.record.holder != "life":
            await one.renew()
            epoch = view.record.epoch if view.record else 0
            if view.record is None or view.record.master == 0:
                await one.compare_and_set(view.revision, Record(epoch + 1, 1, frozenset(), "life"))
    assert view.record.epoch > 4


async def test_a_change_whose_outcome_stays_unknown_ends_the_epoch(life_of: Lives) -> None:
    """The controller does not change a set to itself, so no later change can resolve it."""
    one = life_of(1)
    view = await led(one)
    assert view.record is not None
    assert await one.compare_and_set(view.revision, view.record) is None
    view = await read_until(one, lambda view: view.record and view.record.epoch > 1)
    assert view.record is not None and view.record.master == 0


async def test_an_id_is_given_once(settings: Settings, tmp_path: Path) -> None:
    client, disk, root = ControllerClient(settings, 5.0), RealDisk(), tmp_path / "store"
    assert await given_id(settings, disk, client, ";one") == 1
    text = f"DefaultCluster#{settings.broker_name}#1"
    assert (root / FILE_NAME).read_text() == text
    assert [path.name for path in root.iterdir()] == [FILE_NAME]
    assert await given_id(settings, disk, client, ";one, restarted") == 1
    (root / FILE_NAME).rename(root / f"{FILE_NAME}-temp")  # killed before it was noted
    (root / f"{FILE_NAME}-temp").write_text(f"{text}#;one")
    assert await given_id(settings, disk, client, ";one, later") == 1
    settings.store_path_root_dir = str(tmp_path / "other")
    assert await given_id(settings, disk, client, ";two") == 2
    (tmp_path / "other" / FILE_NAME).write_text("DefaultCluster#another#2")
    with pytest.raises(StoreError, match="is of broker another"):
        await given_id(settings, disk, client, ";two")
    client.close()


async def test_an_id_of_another_is_not_ours(settings: Settings, life_of: Lives) -> None:
    client = ControllerClient(settings, 5.0)
    await apply_for(client, life_of(1)._us, ";one")
    with pytest.raises(ArbiterError, match="does not give us id 1"):
        await apply_for(client, life_of(1)._us, ";another")
    client.close()


async def test_the_lack_of_a_controller_is_reported(settings: Settings, life_of: Lives) -> None:
    settings.controller_addr = f"127.0.0.1:{free_port()};127.0.0.1:{free_port()}"
    with pytest.raises(ArbiterError, match=r"cannot be reached.*cannot be reached"):
        await life_of(1).read()


async def test_names_are_looked_up(settings: Settings, life_of: Lives) -> None:
    settings.fetch_controller_addr_by_dns_lookup = True
    settings.controller_addr = settings.controller_addr.replace("127.0.0.1", "localhost")
    await led(life_of(1))


def test_an_identity_is_as_java_writes_it() -> None:
    assert Identity("c", "n", 3).encode() == b"c#n#3"
    assert Identity.decode(b"c#n#3\n") == Identity("c", "n", 3)
    assert Identity.decode(b"c#n#3#host;1") == Identity("c", "n", 3, "host;1")
    with pytest.raises(ValueError):
        Identity.decode(b"c#n")
