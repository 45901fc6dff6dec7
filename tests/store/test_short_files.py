"""Files shorter than they were made: what a kill leaves between the two steps of a cut."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from waiting import finish

from aerobee.broker.store.errors import StoreError, WrongFileSize
from aerobee.broker.store.files.real_disk import RealDisk, RealFile
from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.verify import verify
from aerobee.broker.store.message_store import MessageStore
from aerobee.protocol.files.record import decode_records

from .conftest import OpenStore, abandon, dispatch, message, read_all

THROWS_AWAY = ("move ", "delete", "remove", "unlink", " away")
EXT: dict[str, Any] = {
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext": 2000,
}


class Killed(BaseException):
    """The end of the process: no `except Exception` may stop it."""


def fill(store: MessageStore, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        text = f"UNIQ_KEY\x01u{n}\x02TAGS\x01t\x02"
        store.put([message(queue_id=n % 2, body=b"%06d" % n + b"." * 200, properties=text)])
    dispatch(store)


def check(store: MessageStore, count: int) -> None:
    """All messages are there, gapless, and each is found by its key."""
    found = []
    for queue_id in (0, 1):
        messages = read_all(store, "T", queue_id)
        assert [m.queue_offset for m in messages] == list(range(len(messages)))
        found += [int(m.body[:6]) for m in messages]
    assert sorted(found) == list(range(count))
    for n in range(0, count, 7):
        hits = finish(store.search("T", f"u{n}", 32, 0, 2**62))
        assert [int(m.body[:6]) for view in hits.views for m in decode_records(view)] == [n]


def last_file(root: Path, kind: str) -> Path:
    folder = {
        "commitlog": root / "commitlog",
        "consumequeue": root / "consumequeue" / "T" / "0",
        "consumequeue_ext": root / "consumequeue_ext" / "T" / "0",
        "index": root / "index",
    }[kind]
    return max(folder.iterdir())


def data_end(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


@pytest.mark.parametrize("cleanly", [False, True], ids=["killed", "stopped"])
@pytest.mark.parametrize("kind", ["commitlog", "consumequeue", "consumequeue_ext"])
def test_a_short_last_file_is_extended_and_scanned(
    open_store: OpenStore, tmp_path: Path, kind: str, cleanly: bool
) -> None:
    store = open_store(**EXT)
    fill(store, 270)
    if cleanly:
        store.close()
    else:
        abandon(store)
    path = last_file(tmp_path / "store", kind)
    size = path.stat().st_size
    end = data_end(path)
    assert 0 < end < size
    os.truncate(path, end)
    store = open_store(**EXT)
    check(store, 270)
    assert path.stat().st_size == size
    fill(store, 400, 270)
    check(store, 670)
    store.close()
    check(open_store(**EXT), 670)


def test_every_block_of_a_log_file_that_was_short_is_allocated(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """A store through the map into a hole of a full disk would end the process."""
    store = open_store()
    fill(store, 20)
    abandon(store)
    path = last_file(tmp_path / "store", "commitlog")
    os.truncate(path, data_end(path))
    open_store()
    assert path.stat().st_blocks * 512 >= path.stat().st_size


@pytest.mark.parametrize("others", [0, 1], ids=["the newest", "one before it"])
def test_a_short_index_file_is_extended(open_store: OpenStore, tmp_path: Path, others: int) -> None:
    store = open_store(max_index_num=200)
    fill(store, 100)
    store.queue_flush.step(thorough=True)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    fill(store, 20 + 150 * others, 100)
    assert store.index is not None
    store.index.write_pending()
    abandon(store)
    files = sorted((tmp_path / "store" / "index").iterdir())
    assert len(files) == 1 + others
    size = files[0].stat().st_size
    os.truncate(files[0], 40 + 100 * 4 + 101 * 20)  # as a cut to the checkpoint's count does
    store = open_store(max_index_num=200)
    assert files[0].stat().st_size == size
    check(store, 120 + 150 * others)


def test_a_short_index_file_whose_first_entries_a_power_cut_lost_is_extended(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(max_index_num=200)
    fill(store, 100)
    store.close()
    store = open_store(max_index_num=200)
    fill(store, 20, 100)
    abandon(store)
    (path,) = (tmp_path / "store" / "index").iterdir()
    size = path.stat().st_size
    entries_at = 40 + 100 * 4
    for lost in (60, 101):
        with path.open("r+b") as file:
            file.truncate(entries_at + 101 * 20)
            file.seek(entries_at)
            file.write(bytes(lost * 20))
        store = open_store(max_index_num=200)
        assert path.stat().st_size == size
        assert store.put([message()])[0].ok
        abandon(store)


def test_a_start_killed_between_any_two_changes_of_a_length_is_made_up_for(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real calls, in the order in which a recovery makes them, each stopped in its turn."""
    real = os.ftruncate
    for stop_at in itertools.count(1):
        root = tmp_path / str(stop_at)
        store = open_store(root=root, **EXT)
        fill(store, 100)
        store.close()
        store = open_store(root=root, **EXT)
        fill(store, 60, 100)
        abandon(store)
        log_file = last_file(root, "commitlog")
        with log_file.open("r+b") as file:
            file.seek(data_end(log_file))
            file.write(b"torn" * 100)
        calls = itertools.count(1)

        def stopping(descriptor: int, length: int, calls: Any = calls, at: int = stop_at) -> None:
            if next(calls) == at:
                raise Killed
            real(descriptor, length)

        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", stopping)
            killed = _start_and_die(open_store, root)
        assert verify(open_directory(str(root)), lambda _: None).problems == []
        check(open_store(root=root, **EXT), 160)
        if not killed:
            break
    assert stop_at > 8  # the log, two queues, their units were cut, and the index


def _start_and_die(open_store: OpenStore, root: Path) -> bool:
    """Whether the start was killed; its resources are released, as by the kernel."""
    made: list[MessageStore] = []
    real = MessageStore.load

    def load(self: MessageStore, *args: Any) -> None:
        made.append(self)
        real(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MessageStore, "load", load)
        try:
            open_store(root=root, **EXT)
        except Killed:
            return True
        finally:
            abandon(made[0])
    return False


def test_a_last_log_file_shorter_than_the_checkpoint_says_refuses_the_start(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """No kill leaves that: a copy may be whole, and new puts would overwrite its place."""
    store = open_store()
    fill(store, 20)
    store.close()
    path = last_file(tmp_path / "store", "commitlog")
    whole = path.read_bytes()
    os.truncate(path, data_end(path) - 1)
    with pytest.raises(WrongFileSize, match="restore it from a copy"):
        open_store()
    path.write_bytes(whole)
    check(open_store(), 20)


@pytest.mark.parametrize("kind", ["commitlog", "consumequeue", "consumequeue_ext"])
def test_a_short_file_before_the_last_refuses_the_start_and_changes_nothing(
    open_store: OpenStore, tmp_path: Path, kind: str
) -> None:
    store = open_store(**EXT)
    fill(store, 670)
    store.close()
    root = tmp_path / "store"
    first = min(last_file(root, kind).parent.iterdir())
    os.truncate(first, 500)
    short = last_file(root, "consumequeue")  # a continued start would extend it
    os.truncate(short, 300)
    before = {path: path.stat().st_size for path in root.rglob("*") if path.is_file()}
    with pytest.raises(WrongFileSize) as caught:
        open_store(**EXT)
    text = str(caught.value)
    assert str(first) in text and "500" in text and "copy" in text
    assert not any(advice in text for advice in THROWS_AWAY)
    after = {path: path.stat().st_size for path in root.rglob("*") if path.is_file()}
    assert after == before


def test_a_hole_in_the_log_is_refused_without_advice_to_throw_more_away(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, 900)
    store.close()
    (tmp_path / "store" / "commitlog" / f"{65536:020d}").unlink()
    with pytest.raises(StoreError, match="has a hole") as caught:
        open_store()
    assert not any(advice in str(caught.value) for advice in THROWS_AWAY)


def test_files_of_another_setting_are_refused_with_its_value(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, 900)
    store.close()
    with pytest.raises(WrongFileSize, match="set mappedFileSizeCommitLog=65536"):
        open_store(mapped_file_size_commit_log=128 * 1024)
    with pytest.raises(WrongFileSize, match="set mappedFileSizeConsumeQueue=1000"):
        open_store(mapped_file_size_consume_queue=4000)
    with pytest.raises(WrongFileSize, match="maxHashSlotNum"):
        open_store(max_hash_slot_num=200)
    check(open_store(), 900)


def test_an_index_of_other_slots_is_not_taken_for_a_short_one(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    fill(store, 90)
    store.close()
    # Each moves the entries by a whole number of them; behind the last there are only empty ones.
    for slots in (105, 110, 150, 200, 600, 700):
        with pytest.raises(WrongFileSize, match="maxHashSlotNum"):
            open_store(max_hash_slot_num=slots)
    check(open_store(), 90)


def test_the_two_steps_of_a_cut_are_two_operations_of_the_disk(tmp_path: Path) -> None:
    file: RealFile = RealDisk().create(str(tmp_path / "file"), 8192)
    file.write(0, b"x" * 8192)
    file.truncate(100)
    assert os.path.getsize(file.path) == 100
    file.extend(8192)
    assert bytes(file.view()) == b"x" * 100 + bytes(8092)
    file.close()
    short = RealDisk().open(file.path)
    short.truncate(50)
    short.extend(8192)
    assert bytes(short.view()) == b"x" * 50 + bytes(8142)
    short.close()
