"""The fast ways, in Python and compiled, and the general one answer and store the same bytes."""

import random
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
import uvloop
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee.broker.auth import guard
from aerobee.protocol.wire.command import JSON, MSGPACK, ROCKETMQ
from two_ways.requests import Asked, bursts, each_odd_request, usual_sends
from two_ways.signed import USERS, all_signed
from two_ways.twins import FEEDS, stored, twins

MODES = st.fixed_dictionaries(
    {
        "flush_disk_type": st.sampled_from(["ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH"]),
        "broker_permission": st.sampled_from([6] * 8 + [4, 2]),
        "trace_on": st.booleans(),
        "enabled_append_prop_crc": st.booleans(),
        "lite_pull_message_enable": st.sampled_from([True, True, False]),
    }
)


@pytest.mark.timeout(900)  # on a busy machine an example takes seconds
@settings(
    max_examples=examples(30, share=6),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(MODES, st.lists(bursts(), min_size=3, max_size=10))
def test_all_ways_give_the_same_answers_and_store_the_same_bytes(
    modes: dict[str, object], script: list[list[Asked]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(compare(Path(folder), modes, script))
        assert_stored_alike(Path(folder))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("codec", [JSON, ROCKETMQ, MSGPACK])
async def test_every_odd_field_and_property_is_answered_and_stored_alike(
    tmp_path: Path, codec: int, flush: str
) -> None:
    await compare(tmp_path, {"flush_disk_type": flush}, each_odd_request(codec))
    assert_stored_alike(tmp_path)


def steps(modes: dict[str, object], script: list[list[Asked]]) -> Iterator[list[Asked]]:
    """Under SYNC_FLUSH a pull that comes with sends shows what the disk has by then, which no
    two runs have alike: there the pulls of a burst go by themselves."""
    for burst in script:
        if modes.get("flush_disk_type") == "SYNC_FLUSH":
            for _, same in groupby(
                burst, key=lambda asked: asked.shown.startswith(("11 ", "361 "))
            ):
                yield list(same)
        else:
            yield burst


@settings(max_examples=examples(25, share=5), suppress_health_check=list(HealthCheck))
@given(st.lists(bursts(), min_size=3, max_size=10))
def test_signed_requests_are_admitted_and_refused_alike_on_both_ways(
    script: list[list[Asked]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(compare(Path(folder), guarded(Path(folder)), all_signed(script)))
        assert_stored_alike(Path(folder))


@pytest.mark.parametrize("codec", [JSON, ROCKETMQ, MSGPACK])
async def test_every_odd_field_is_checked_stored_and_refused_alike_when_it_is_signed(
    tmp_path: Path, codec: int
) -> None:
    await compare(tmp_path, guarded(tmp_path), all_signed(each_odd_request(codec)))
    assert_stored_alike(tmp_path)


def guarded(folder: Path) -> dict[str, object]:
    path = folder / "access.yml"
    path.write_text(USERS)
    path.chmod(0o600)
    return {"acl_enable": True, "acl_file": str(path)}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many wrong signatures do not close the connection, which would end the comparison."""
    monkeypatch.setattr(guard, "GUESSES_MAX", -1)


async def compare(folder: Path, modes: dict[str, object], script: list[list[Asked]]) -> None:
    async with twins(folder, **modes) as (ways, clock):
        first = all_signed([usual_sends()])[0] if "acl_enable" in modes else usual_sends()
        for step, burst in enumerate(steps(modes, [first, *script])):
            clock.ms += step
            found = []
            for way in ways:
                random.seed(step)  # queue ids that the broker chooses
                found.append(await way.answers(burst))
            for asked in burst:
                if asked.opaque is not None:
                    answers = [each[asked.opaque] for each in found]
                    assert answers == answers[:1] * len(ways), asked
        counted = [way.counted() for way in ways]
        assert counted == counted[:1] * len(ways)


def assert_stored_alike(folder: Path) -> None:
    wanted = stored(folder / "general")
    for way in FEEDS:
        assert stored(folder / way) == wanted, way
