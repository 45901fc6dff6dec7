"""What the disk refuses is in the log: once per cause and minute, with what and why."""

from __future__ import annotations

import errno

import pytest
from structlog.testing import capture_logs

from .conftest import ManualClock, OpenStore, message
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
