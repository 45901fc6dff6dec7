"""Members that are expected back after a clean stop, and the file that names them."""

import errno
from pathlib import Path

import pytest

from aerobee.broker.services.clients.returning import Returning
from aerobee.broker.store.files.real_disk import RealDisk


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "config" / "consumerMembers.json")


def saved(path: str) -> Returning:
    members = {"billing": {"a": "PYTHON", "b": "JAVA"}, "shipping": {"a": "PYTHON"}}
    Returning(path).save(members)
    loaded = Returning(path)
    loaded.load()
    return loaded


def test_a_client_that_was_there_at_the_stop_is_expected_until_it_returns(path: str) -> None:
    returning = saved(path)
    assert set(returning.of("billing")) == {"a", "b"}
    for client_id in ("a", "b", "a"):
        returning.came("billing", client_id)
    assert not returning.of("billing")
    assert returning.give_up(sdk_only=False) == ["shipping"] and not returning


def test_members_that_are_not_the_sdk_s_are_expected_for_longer(path: str) -> None:
    returning = saved(path)
    assert returning.give_up(sdk_only=True) == ["billing", "shipping"]
    assert list(returning.of("billing")) == ["b"]
    assert returning.give_up(sdk_only=False) == ["billing"] and not returning


def test_a_client_that_was_restarted_too_stands_for_one_that_is_expected(path: str) -> None:
    ids = {"10.0.0.1@11#1": "JAVA", "10.0.0.2@12#1": "JAVA", "10.0.0.3@13": "PYTHON"}
    Returning(path).save({"billing": ids})
    returning = Returning(path)
    returning.load()
    for _ in range(2):  # reconnecting: it keeps its place
        returning.came("billing", "10.0.0.2@14#9")
        assert set(returning.of("billing")) == {"10.0.0.1@11#1", "10.0.0.3@13"}
    returning.came("billing", "10.0.0.9@15#9")
    returning.came("billing", "10.0.0.9@16#9")
    assert list(returning.of("billing")) == ["10.0.0.3@13"]  # an SDK reconnects at once, or never


def test_the_list_is_good_for_one_start(path: str) -> None:
    saved(path)
    crashed = Returning(path)
    crashed.load()
    assert not crashed


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"groups": 5}', b'{"groups": {"g": ["a"]}}'])
def test_a_file_that_cannot_be_used_expects_nobody(path: str, text: bytes) -> None:
    saved(path)
    RealDisk().write_small(path, text)
    returning = Returning(path)
    returning.load()
    assert not returning


def test_a_disk_that_refuses_does_not_keep_the_broker_from_starting(path: str) -> None:
    Returning(path).save({"billing": {"a": "PYTHON"}})

    class Refusing(RealDisk):
        def read_small(self, path: str) -> bytes:
            raise OSError(errno.EIO, "Input/output error", path)

    returning = Returning(path, Refusing())
    returning.load()
    assert not returning
