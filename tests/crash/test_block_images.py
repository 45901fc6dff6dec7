"""Images of a disk at any write: a share of `make powercut-blocks`, and that it finds a bug."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.block_log import (
    ENTRY,
    SOME_SECTORS,
    SOME_WRITES,
    WHOLE,
    BlockLog,
    Images,
    logged_disk,
)
from crash.fuse_file import TESTS
from crash.powercut.disk import LoopDisk
from crash.powercut.images import run
from crash.powercut.load import SETTINGS
from peers.aerobee_broker import AerobeeBroker
from peers.tools import need_tools

needs_root = [
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a disk image"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no FUSE here"),
]
FIRST = 4096  # the block before is never torn
OLD, NEW, LATER = (letter * 1024 for letter in (b"o", b"n", b"l"))


@pytest.fixture
def log(tmp_path: Path) -> BlockLog:
    """A write, a flush, two writes."""
    entries = [(1.0, FIRST, OLD), (2.0, 0, b""), (3.0, FIRST, NEW), (4.0, FIRST + 1024, LATER)]
    path = tmp_path / "log"
    path.write_bytes(b"".join(ENTRY.pack(t, at, len(data)) + data for t, at, data in entries))
    return BlockLog(path)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base"
    path.write_bytes(bytes(FIRST + 2048))
    return path


def images(base: Path, log: BlockLog, count: int, kind: str) -> Iterator[bytes]:
    maker = Images(base, log)
    target = base.with_name("image")
    for seed in range(60):
        maker.make(count, kind, random.Random(seed), target)
        yield target.read_bytes()[FIRST:]


def test_an_image_of_all_writes_is_the_device_after_each(base: Path, log: BlockLog) -> None:
    assert [next(images(base, log, count, WHOLE)) for count in range(5)] == [
        bytes(2048),
        OLD + bytes(1024),
        OLD + bytes(1024),
        NEW + bytes(1024),
        NEW + LATER,
    ]


def test_only_what_was_not_flushed_can_be_missing(base: Path, log: BlockLog) -> None:
    tails = (bytes(1024), LATER)
    whole = {first + last for first in (OLD, NEW) for last in tails}
    assert set(images(base, log, 4, SOME_WRITES)) == whole
    halves = [(OLD[:512], NEW[:512])] * 2 + [(bytes(512), LATER[:512])] * 2
    torn = {
        a + b + c + d for a in halves[0] for b in halves[1] for c in halves[2] for d in halves[3]
    }
    found = set(images(base, log, 4, SOME_SECTORS))
    assert found <= torn and found - whole
    assert set(images(base, log, 2, SOME_SECTORS)) == {OLD + bytes(1024)}


def test_an_answer_relies_on_what_was_written_before_it(log: BlockLog) -> None:
    assert [log.end_of(count) for count in range(5)] == [1.0, 2.0, 3.0, 4.0, float("inf")]
    assert [log.first_after(moment) for moment in (0.5, 1.0, 2.5, 9.0)] == [0, 1, 2, 4]


class TestOnADisk:
    pytestmark = needs_root

    @pytest.fixture(autouse=True)
    def tools(self) -> None:
        need_tools("mkfs.ext4")

    def test_every_write_and_flush_is_logged(self, tmp_path: Path) -> None:
        disk = LoopDisk(tmp_path, "ext4", 64 << 20)
        disk.make()
        disk.unmount()
        base, path = tmp_path / "base", tmp_path / "blocks"
        base.write_bytes(disk.image.read_bytes())
        with logged_disk(tmp_path, disk.image, path) as place, (place / "file").open("wb") as file:
            file.write(b"what was said" * 1000)
            file.flush()
            before = len(BlockLog(path).entries)
            os.fdatasync(file.fileno())
            synced = BlockLog(path).entries[before:]
            assert synced[-1] is None
            assert any(entry and b"what was said" in entry.data for entry in synced)
        log = BlockLog(path)
        Images(base, log).make(len(log), WHOLE, random.Random(1), tmp_path / "last")
        assert (tmp_path / "last").read_bytes() == disk.image.read_bytes()

    def test_a_broker_recovers_from_a_disk_that_stopped_at_any_write(self, tmp_path: Path) -> None:
        sums = run(tmp_path, "ext4", 8, 1)
        assert not sums.checked.violations
        assert sums.checked.acked > 100 and len(sums.images) == 3

    def test_a_broker_that_does_not_sync_is_found(self, tmp_path: Path) -> None:
        settings = SETTINGS | {"flushDiskType": "SYNC_FLUSH"}
        hasty = WithoutSync(tmp_path / "hasty", **settings)
        sums = run(tmp_path, "ext4", 8, 1, hasty)
        assert sums.checked.violations["lost"]


class WithoutSync(AerobeeBroker):
    def launch(self, *command: str) -> None:
        assert not command
        super().launch(sys.executable, str(TESTS / "crash" / "without_sync.py"))
