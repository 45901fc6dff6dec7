"""Damage of each kind to the files of a store; each function gives the file."""

from __future__ import annotations

import struct
from pathlib import Path

from store.inspected import COUNT, TOPICS, change, files


def entry_at(folder: Path, number: int) -> tuple[Path, int]:
    """Where the entry of a queue is: 50 in a file."""
    path = files(folder, f"consumequeue/{TOPICS[0]}/1")[number // 50]
    return path, number % 50 * 20


def damage_body(folder: Path) -> Path:
    path = files(folder, "commitlog")[1]
    change(path, 200, b"?")
    return path


def damage_size(folder: Path) -> Path:
    path = files(folder, "commitlog")[0]
    change(path, 0, struct.pack(">i", 77))
    return path


def damage_end(folder: Path) -> Path:
    """The last record: nothing follows it, but its queue entry points to it."""
    path = files(folder, "commitlog")[-1]
    change(path, path.read_bytes().rindex(b"body"), b"BODY")
    return path


def damage_blank(folder: Path) -> Path:
    path = files(folder, "commitlog")[0]
    change(path, path.read_bytes().rindex(b"\xcb\xd4\x31\x94"), bytes(4))
    return path


def damage_entry_offset(folder: Path) -> Path:
    path, position = entry_at(folder, 60)
    offset = struct.unpack_from(">q", path.read_bytes(), position)[0]
    change(path, position, struct.pack(">q", offset + 1))
    return path


def damage_entry_size(folder: Path) -> Path:
    path, position = entry_at(folder, 61)
    change(path, position + 8, struct.pack(">i", 5))
    return path


def damage_entry_code(folder: Path) -> Path:
    path, position = entry_at(folder, 62)
    change(path, position + 12, struct.pack(">q", 5))
    return path


def damage_entry_zero(folder: Path) -> Path:
    path, position = entry_at(folder, 63)
    change(path, position, bytes(20))
    return path


def damage_last_entry(folder: Path) -> Path:
    """One entry too few, as the log shows."""
    path, position = entry_at(folder, COUNT // 4 - 1)
    change(path, position, bytes(20))
    return files(folder, "commitlog")[-1]


def damage_index_offset(folder: Path) -> Path:
    path = files(folder, "index")[-1]
    change(path, 40 + 100 * 4 + 5 * 20 + 4, struct.pack(">q", 1))
    return path


def damage_index_hash(folder: Path) -> Path:
    path = files(folder, "index")[0]
    change(path, 40 + 100 * 4 + 5 * 20, struct.pack(">i", 123))
    return path


def damage_index_chain(folder: Path) -> Path:
    path = files(folder, "index")[0]
    change(path, 40 + 100 * 4 + 300 * 20 + 16, struct.pack(">i", 300))
    return path


def damage_index_slot(folder: Path) -> Path:
    path = files(folder, "index")[0]
    change(path, 40 + 7 * 4, struct.pack(">i", 1))
    return path


def damage_index_time(folder: Path) -> Path:
    path = files(folder, "index")[0]
    change(path, 40 + 100 * 4 + 300 * 20 + 12, struct.pack(">i", 9_999))
    return path


def damage_index_begin(folder: Path) -> Path:
    """A query passes over the file by what its header says."""
    path = files(folder, "index")[0]
    change(path, 0, b"\x7f")
    return path


def damage_index_end(folder: Path) -> Path:
    path = files(folder, "index")[0]
    change(path, 8, b"\x80")
    return path


def damage_index_missing(folder: Path) -> Path:
    files(folder, "index")[1].unlink()
    return folder / "commitlog"


def damage_length(folder: Path) -> Path:
    path = files(folder, "commitlog")[-1]
    with path.open("r+b") as file:
        file.truncate(1000)
    return path


def damage_hole(folder: Path) -> Path:
    gone, after = files(folder, "commitlog")[1:3]
    gone.unlink()
    return after


def damage_queue_length(folder: Path) -> Path:
    """Cut inside an entry: the queue offsets of the next file are as they were."""
    path = files(folder, f"consumequeue/{TOPICS[0]}/1")[1]
    with path.open("r+b") as file:
        file.truncate(333)
    return path


def damage_queue_grown(folder: Path) -> Path:
    path = files(folder, f"consumequeue/{TOPICS[0]}/1")[0]
    with path.open("ab") as file:
        file.write(b"?" * 33)
    return files(folder, f"consumequeue/{TOPICS[0]}/1")[1]


def damage_queue_emptied(folder: Path) -> Path:
    path = files(folder, f"consumequeue/{TOPICS[0]}/1")[1]
    path.write_bytes(b"")
    return path


def damage_queue_hole(folder: Path) -> Path:
    gone, after = files(folder, f"consumequeue/{TOPICS[0]}/1")[1:3]
    gone.unlink()
    return after


def damage_foreign(folder: Path) -> Path:
    path = folder / "consumequeue" / TOPICS[0] / "1" / "notes.txt"
    path.write_text("mine")
    return path


DAMAGES = [value for name, value in globals().items() if name.startswith("damage_")]
