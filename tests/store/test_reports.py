"""Disk errors are logged: once per cause and minute, with what and why."""

from __future__ import annotations

import errno
import os

import pytest
from structlog.testing import capture_logs

from .conftest import ManualClock, OpenStore, dispatch, message
from .faulty_disk import Fault, FaultyDisk

SITES = [("write", errno.EIO), ("allocate", errno.ENOSPC), ("create", errno.EACCES)]


@pytest.mark.parametrize(("call", "number"), SITES)
def test_a_refused_send_is_logged_once_a_minute(
    open_store: OpenStore, clock: ManualClock, call: str, number: int
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    disk.faults = [Fault(call, "/commitlog/", number)]
    with capture_logs() as lines:
        for _ in range(50):
            assert not store.put([message()])[0].ok
        clock.time_ms += 61_000
        assert not store.put([message()])[0].ok
    assert len(lines) == 2, lines
    assert "commitlog" in lines[0]["path"]
    assert lines[0]["errno"] == errno.errorcode[number]
    assert lines[0]["call"] and lines[0]["then"]
    assert lines[1]["left_out"] == 49
    disk.faults = []
    assert store.put([message()])[0].ok


def test_a_file_that_cannot_be_removed_is_logged_once_a_minute(
    open_store: OpenStore, clock: ManualClock
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    while store.max_physical_offset < 3 * 65536:
        assert store.put([message(body=b"x" * 700)])[0].ok
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    old_s = clock.time_ms / 1000 - 100 * 3600
    for file in store.commit_log.files.files:
        os.utime(file.path, (old_s, old_s))
    store.clean.trigger()
    disk.faults = [Fault("unlink", "/commitlog/", errno.EACCES)]
    with capture_logs() as lines:
        for _ in range(10):
            store.clean.step()
    told = [line for line in lines if line["event"] == "a file could not be removed"]
    assert len(told) == 1, lines
    assert told[0]["errno"] == "EACCES" and told[0]["call"] == "unlink"
    assert "commitlog" in told[0]["path"] and told[0]["then"]


def test_a_stop_that_cannot_remove_the_abort_file_ends_all_the_same(open_store: OpenStore) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    assert store.put([message()])[0].ok
    disk.faults = [Fault("unlink", "/abort", errno.EROFS)]
    with capture_logs() as lines:
        store.close()
    told = [line for line in lines if line["log_level"] == "error"]
    assert [(line["errno"], line["call"]) for line in told] == [("EROFS", "unlink")], lines
    assert told[0]["path"].endswith("abort") and told[0]["then"]
    again = open_store()  # the lock is free
    assert not again.was_stopped
