"""A store whose broker was killed while a start cut a file: its last file of a kind is short."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aerobee.broker.base.clock import Clock
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from aerobee.pipeline.jobs.store_audit import audit_parts, check_part
from aerobee.pipeline.source.queue_files import QueueReader
from aerobee.pipeline.source.store_files import Split, StoreFiles, map_file, walk
from aerobee.protocol.files.record import Message

SLOTS = 100
ENTRIES = 400
COUNT = 570


@pytest.fixture
def root(tmp_path: Path) -> Path:
    settings = StoreSettings(
        store_path_root_dir=str(tmp_path),
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=20 * 50,
        max_hash_slot_num=SLOTS,
        max_index_num=ENTRIES,
        disk_guard_enable=False,
    )
    store = MessageStore(settings, clock=Clock(), ahead=False)
    store.load()
    for n in range(COUNT):
        text = f"UNIQ_KEY\x01u{n}\x02TAGS\x01t\x02"
        store.put([Message("T", n % 2, b"%06d" % n + b"." * 200, text)])
    store.close()
    return tmp_path


def data_end(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


@pytest.mark.parametrize("kind", ["commitlog", "consumequeue/T/0", "index"])
def test_a_short_last_file_is_read_and_not_called_damaged(root: Path, kind: str) -> None:
    path = max((root / kind).iterdir())
    before = path.stat().st_size
    ends = {"commitlog": data_end(path), "index": 40 + SLOTS * 4 + (COUNT - ENTRIES + 2) * 20}
    os.truncate(path, ends.get(kind, -(-data_end(path) // 20) * 20))
    assert path.stat().st_size < before
    (root / "abort").touch()
    splits = StoreFiles(str(root)).splits(wanted=lambda _: True)
    assert sum(records(split) for split in splits) == COUNT
    for part in audit_parts(str(root)):
        report = check_part(part)
        assert report.findings == [], report
        assert report.checked > 0 or report.kind == "folder", report


def records(split: Split) -> int:
    """How many the split has, by the queues or by a walk."""
    if split.queues is None:
        base = split.segment.start
        return len(walk(map_file(split.segment), split.start - base, base, last_file=split.last))
    readers = [QueueReader(queue.folder) for queue in split.queues]
    return sum(len(reader.between(split.start, split.end)[0]) for reader in readers)
