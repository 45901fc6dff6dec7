"""Members that are expected back after a clean stop, and the file that names them."""

import errno

import pytest

from aerobee.broker.services.clients.returning import Returning
from aerobee.broker.store.files.disk import RealDisk


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "config" / "consumerMembers.json")


def saved(path):
    Returning(path).save({"billing": ["a", "b"], "shipping": ["a"]})
    loaded = Returning(path)
    loaded.load()
    return loaded


def test_who_was_there_at_the_stop_is_expected_until_it_comes(path):
    returning = saved(path)
    assert returning.of("billing") == {"a", "b"}
    for client_id in ("a", "b"):
        returning.came("billing", client_id)
    assert returning.of("billing") == set()
    assert returning.give_up() == ["shipping"] and not returning


def test_the_list_is_good_for_one_start(path):
    saved(path)
    crashed = Returning(path)
    crashed.load()
    assert not crashed


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"groups": 5}', b'{"groups": {"g": 5}}'])
def test_a_file_that_cannot_be_used_expects_nobody(path, text):
    saved(path)
    RealDisk().write_small(path, text)
    returning = Returning(path)
    returning.load()
    assert not returning


def test_a_disk_that_refuses_does_not_keep_the_broker_from_starting(path):
    Returning(path).save({"billing": ["a"]})

    class Refusing(RealDisk):
        def read_small(self, path):
            raise OSError(errno.EIO, "Input/output error", path)

    returning = Returning(path, Refusing())
    returning.load()
    assert not returning
