"""The same odd requests to Apache RocketMQ 4.9.7, 5.5.0 and to us: where it serves, so do we.

Codes are compared, and the fields that a row names; texts are not. Where RocketMQ answers 1, an
exception of its own, we may say more exactly what is wrong, or serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from peers.aerobee_broker import AerobeeBroker
from peers.apache import ApacheBroker
from peers.wire import Wire

from odd_requests.asked import Asked, Seen
from odd_requests.asks import Row
from odd_requests.rows import ROWS, SETTINGS
from odd_requests.stricter import MORE, STRICTER

pytestmark = pytest.mark.apache

SYSTEM_ERROR = 1
GET_NAMESRV_CONFIG = 319


class Three(NamedTuple):
    """The same world in three brokers."""

    old: Asked
    new: Asked
    ours: Asked


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """All started at once: most of a JVM's start is waiting."""
    folder = tmp_path_factory.mktemp("three")
    brokers = (
        ApacheBroker("4.9.8", folder / "old", **SETTINGS),  # its server is 4.9.7
        ApacheBroker("5.5.0", folder / "new", **SETTINGS),
        AerobeeBroker(folder / "ours", **SETTINGS),
    )
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        for broker in threads.map(stack.enter_context, brokers):
            assert broker.broker
        yield Three(*threads.map(lambda each: Asked(each.broker, each.namesrv), brokers))


def is_served_alike(old: Seen, new: Seen, ours: Seen) -> bool:
    if ours.code == new.code:
        return ours.fields in (old.fields, new.fields)
    if new.code == SYSTEM_ERROR:
        return True
    return new.code != 0 and ours.code == old.code  # what 4.9.7 did, where 5.5.0 refuses


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_odd_requests_are_answered_as_by_apache(three: Three, row: Row) -> None:
    ours, new = three.ours.answers(row), three.new.answers(row)
    old = new if row.is_new else three.old.answers(row)
    alike = all(map(is_served_alike, old, new, ours))
    told = f"4.9.7: {old}\n5.5.0: {new}\nours: {ours}"
    if row.name in STRICTER or row.name in MORE:
        assert not alike, f"no longer different, so take it from the list:\n{told}"
        refused = any(seen.code for seen in ours)
        assert refused == (row.name in STRICTER), told
    else:
        assert alike, told


def test_the_name_server_shows_settings_under_apaches_names(three: Three) -> None:
    old, new, ours = (_shown(each.addresses["namesrv"]) for each in three)
    assert old <= new == ours


def _shown(namesrv: str) -> set[str]:
    with Wire(namesrv) as wire:
        text = wire.request(GET_NAMESRV_CONFIG, {}).body.decode()
    return {line.partition("=")[0] for line in text.splitlines() if "=" in line}


def test_what_is_different_is_a_row_of_the_table() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert STRICTER.keys() | MORE.keys() <= set(names)
