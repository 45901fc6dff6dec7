"""What stands in for Linux's system calls elsewhere."""

import os
from pathlib import Path

from aerobee.broker.store.files.system_calls import PAGE, touch_blocks


def test_touching_gives_every_block_and_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"kept" + bytes(100))
    os.truncate(path, 64 * PAGE)
    descriptor = os.open(path, os.O_RDWR)
    touch_blocks(descriptor, 0, 64 * PAGE)
    os.fsync(descriptor)
    blocks = os.fstat(descriptor).st_blocks
    os.close(descriptor)
    assert blocks * 512 >= 64 * PAGE
    assert path.read_bytes() == b"kept" + bytes(64 * PAGE - 4)
