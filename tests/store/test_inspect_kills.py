"""`verify` takes for sound what a kill may leave."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.index import slots_of
from aerobee.broker.store.inspect.verify import verify
from aerobee.protocol.files.checkpoint import decode_checkpoint
from aerobee.protocol.files.index_columns import INDEX_ENTRY_TYPE
from store.conftest import OpenStore, dispatch, message
from store.inspected import COUNT, TOPICS, change, files, kill, problems, run


def test_after_a_kill_the_newest_records_may_lack_entries(
    tmp_path: Path, open_store: OpenStore
) -> None:
    store = open_store()
    store.put([message(body=b"dispatched")])
    dispatch(store)
    store.put([message(body=b"not yet")])
    store.flush.step()
    found = verify(open_directory(str(tmp_path / "store")), lambda _: None)
    assert found.problems == []
    assert found.records == 2 and found.queue_entries == 1
    assert not found.stopped_cleanly and "not clean" in found.notes[0]


def test_after_a_kill_the_file_made_ahead_may_be_empty(folder: Path) -> None:
    last = max((folder / "commitlog").iterdir())
    (last.parent / f"{int(last.name) + last.stat().st_size:020d}").touch()
    assert problems(folder) == []
    last.write_bytes(b"")  # but not one before it
    assert any("0 bytes long" in each for each in problems(folder))


@pytest.mark.parametrize(
    ("part", "missing"), [("commitlog", 0), (f"consumequeue/{TOPICS[0]}/1", 7)]
)
def test_after_a_kill_during_a_recovery_the_last_file_may_be_short(
    folder: Path, part: str, missing: int
) -> None:
    kill(folder)
    last = files(folder, part)[-1]
    os.truncate(last, len(last.read_bytes().rstrip(b"\0")) - missing * 20)
    found = verify(open_directory(str(folder)), lambda _: None)
    assert found.problems == []
    assert found.records == COUNT and found.queue_entries == COUNT - missing
    assert any(str(last) in note and "the next start extends it" in note for note in found.notes)
    run("stat", str(folder))
    run("dump", str(folder), "--json")
    first = files(folder, part)[0]
    os.truncate(first, 500)
    assert any(str(first) in each for each in problems(folder))


@pytest.mark.parametrize("single", [False, True])
def test_after_a_kill_during_a_recovery_an_index_file_may_be_short(
    folder: Path, single: bool
) -> None:
    *others, last = files(folder, "index")
    kill(folder)
    if single:
        for path in others:
            path.unlink()
    kept = 20
    slots, entries = 100, np.fromfile(last, INDEX_ENTRY_TYPE, kept, offset=40 + 100 * 4)
    table = np.zeros(slots, ">i4")
    for number in range(1, kept):
        table[int(entries["hash"][number]) % slots] = number
    change(last, 40, table.tobytes())  # the header is written after the cut
    os.truncate(last, 40 + slots * 4 + kept * 20)
    store = open_directory(str(folder))
    assert slots_of(store)[last.stat().st_size] == slots
    assert problems(folder) == []
    run("stat", str(folder))


@pytest.mark.parametrize("written", [0, 60])
def test_after_a_kill_the_slots_may_be_behind_the_entries(folder: Path, written: int) -> None:
    last = files(folder, "index")[-1]
    change(last, 40 + written * 4, bytes((100 - written) * 4))
    assert problems(folder) != []
    kill(folder)
    assert slots_of(open_directory(str(folder)))[last.stat().st_size] == 100
    assert problems(folder) == []


def test_after_a_killed_start_entries_rewritten_may_lack_their_slots(folder: Path) -> None:
    """It had dropped those that the checkpoint's offset does not cover, so that the file has
    fewer than the checkpoint counts."""
    page = folder / "checkpoint"
    checkpoint = decode_checkpoint(page.read_bytes())
    last = files(folder, "index")[-1]
    change(last, 40 + 30 * 4, bytes(70 * 4))
    (folder / "abort").touch()
    assert problems(folder) != []  # the checkpoint covers all of it
    checkpoint.dispatched_offset = struct.unpack_from(">q", last.read_bytes(), 24)[0]
    page.write_bytes(checkpoint.encode())
    assert problems(folder) == []


def test_after_a_killed_start_entries_rewritten_to_an_older_file_may_lack_their_slots(
    folder: Path,
) -> None:
    """It had removed the newer files, one of which the checkpoint names."""
    page = folder / "checkpoint"
    checkpoint = decode_checkpoint(page.read_bytes())
    *_, older, last = files(folder, "index")
    change(older, 40 + 30 * 4, bytes(70 * 4))
    (folder / "abort").touch()
    assert problems(folder) != []
    checkpoint.dispatched_offset = struct.unpack_from(">q", older.read_bytes(), 24)[0]
    checkpoint.index_file = int(last.name) + 1
    page.write_bytes(checkpoint.encode())
    assert problems(folder) == []


def test_after_a_kill_the_index_may_be_ahead_of_its_header(folder: Path) -> None:
    path = files(folder, "index")[-1]
    count = struct.unpack_from(">i", path.read_bytes(), 36)[0]
    change(path, 36, struct.pack(">i", count - 5))
    assert problems(folder) != []
    kill(folder)
    assert problems(folder) == []
