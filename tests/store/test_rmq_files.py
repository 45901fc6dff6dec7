"""Bugs that RocketMQ once had in queues, index, disk and config files: none happens here.

See test_rmq_log for how they are replayed and planted.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from waiting import finish

from aerobee.broker.services.config_files import json_file
from aerobee.broker.store.files.disk import make_folder
from aerobee.broker.store.index.index_file import IndexFile
from aerobee.broker.store.results import ReadStatus
from aerobee.protocol.files.index_layout import INDEX_ENTRY
from aerobee.protocol.files.java_hash import index_hash, java_hash
from store.rmq_bugs import FAILURES, FILE_BUGS, story_of
from store.rmq_lab import Lab, bodies, checkpoint, dispatch, found, message, numbered, put, settle


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_rmq_7355_later_entries_on_disk_without_the_earlier_ones_are_rebuilt(lab: Lab) -> None:
    """After a host crash later entries of a queue are on disk and earlier ones are not."""
    store = lab.open()
    put(store, *numbered(0, 1))
    settle(store)
    checkpoint(store)
    put(store, *numbered(1, 60))
    settle(store)
    lab.write_back("consumequeue", 512)
    lab.cut_power()
    store = lab.open()
    assert bodies(store) == numbered(0, 60)
    assert put(store, b"next")[0].queue_offset == 60


def test_rmq_9728_an_empty_last_queue_file_does_not_stop_the_start(
    lab: Lab,
) -> None:
    """A queue whose last file has no entry yet, or no length, does not stop the start."""
    store = lab.open()
    put(store, *numbered(0, 64))  # the file is full
    settle(store)
    store.close()
    folder = "/store/consumequeue/T/0"
    lab.disk.create(f"{folder}/00000000000000001280", 1280)
    lab.disk.syncdir(folder)
    make_folder(lab.disk, "/store/consumequeue/U/0")
    lab.disk.create("/store/consumequeue/U/0/00000000000000000000", 0)
    lab.disk.syncdir("/store/consumequeue/U/0")
    lab.cut_power(keep=True)
    store = lab.open()
    assert bodies(store) == numbered(0, 64)
    assert put(store, b"next")[0].queue_offset == 64
    assert (store.min_offset("U", 0), store.max_offset("U", 0)) == (0, 0)


def expire(lab: Lab, store: Any) -> None:
    """Every log file but the last goes."""
    store.flush.step()
    lab.clock.ms += 80 * 3_600_000
    while len(store.commit_log.files.files) > 1:
        before = len(store.commit_log.files.files)
        store.clean_expired()
        assert len(store.commit_log.files.files) < before


def test_rmq_10417_a_queue_that_is_cut_empty_does_not_begin_behind_its_end(lab: Lab) -> None:
    """A queue loses all its entries to a cut of the log: it does not begin behind its end."""
    store = lab.open()
    put(store, *numbered(0, 80, 300))
    settle(store)
    checkpoint(store)
    expire(lab, store)
    queue = store.queue_table.table["T", 0]
    assert queue.min_offset > 10
    queue.cut(10)
    assert queue.min_offset <= queue.max_offset == 10
    assert store.min_offset("T", 0) <= store.max_offset("T", 0)


def test_rmq_8753_a_topic_of_which_the_log_has_nothing_left_has_an_empty_queue(lab: Lab) -> None:
    """The log has nothing of a topic any more: its queue is empty, whatever files it has left."""
    store = lab.open()
    put(store, *numbered(0, 20, 300))
    put(store, *numbered(0, 60, 300), topic="Later")
    settle(store)
    checkpoint(store)
    expire(lab, store)
    assert store.min_offset("T", 0) == store.max_offset("T", 0) == 20
    result = store.read_queue("T", 0, 5, 32, max_bytes=1 << 20)
    assert (result.status, result.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, 20)


def test_rmq_8007_an_index_file_newer_than_the_checkpoint_keeps_its_older_keys(lab: Lab) -> None:
    """An index file is newer than the checkpoint: its keys from before are not lost with it."""
    store = lab.open()
    put(store, *numbered(0, 20))
    settle(store)
    checkpoint(store)
    lab.clock.ms += 5000
    put(store, *numbered(20, 30))
    settle(store)
    assert found(store, "00000029")
    lab.kill()
    store = lab.open()
    for number in range(30):
        (hit,) = found(store, f"{number:08d}")
        assert hit.queue_offset == number


def test_rmq_3868_without_new_messages_the_last_index_file_is_kept(
    lab: Lab,
) -> None:
    """Not one message since the checkpoint: the last index file is kept as it is."""
    store = lab.open()
    put(store, *numbered(0, 20))
    settle(store)
    checkpoint(store)
    assert store.index is not None
    names = [file.path for file in store.index.files]
    lab.cut_power()
    store = lab.open()
    assert store.index is not None and [file.path for file in store.index.files] == names
    assert [len(found(store, f"{number:08d}")) for number in range(20)] == [1] * 20


def test_rmq_8018_an_index_chain_that_leads_back_to_itself_is_left(lab: Lab) -> None:
    """A damaged chain that leads back to itself is left, not followed for ever."""
    store = lab.open()
    put(store, *numbered(0, 5))
    settle(store)
    (hit,) = found(store, "00000002")
    assert store.index is not None
    file = store.index.files[0]
    start = file.entries_at + 3 * 20
    key_hash, offset, seconds, _ = INDEX_ENTRY.unpack_from(file.file.view, start)
    assert offset == hit.physical_offset and key_hash == index_hash("T", "00000002")
    INDEX_ENTRY.pack_into(file.file.view, start, key_hash, offset, seconds, 3)
    followed = list(islice(store.index.find("T", "00000002", 0, 2**62), 1000))
    assert followed == [offset]


def test_rmq_3613_a_query_finds_its_own_key_among_those_of_one_hash(lab: Lab) -> None:
    """Two keys with one hash: a query finds its own message and not the other's."""
    assert java_hash("T#Aa") == java_hash("T#BB")
    store = lab.open()
    store.put([message(b"one", key="Aa"), message(b"two", key="BB")])
    settle(store)
    assert [bytes(hit.body) for hit in found(store, "Aa")] == [b"one"]
    assert [bytes(hit.body) for hit in found(store, "BB")] == [b"two"]


def test_rmq_4463_a_clean_stop_has_the_index_on_disk(lab: Lab) -> None:
    """A clean stop has the index on disk: the power may go right after it."""
    store = lab.open()
    put(store, *numbered(0, 20))
    store.close()
    lab.cut_power()
    store = lab.open()
    assert [len(found(store, f"{number:08d}")) for number in range(20)] == [1] * 20


def test_rmq_3511_no_byte_is_stored_through_a_map_where_the_file_has_no_block(lab: Lab) -> None:
    """No byte is stored through a map where the file has no block: on a full disk that kills."""
    store = lab.open()
    put(store, *numbered(0, 80, 300))  # several files of log and queue
    settle(store)
    checkpoint(store)
    put(store, *numbered(80, 90, 300))
    lab.cut_power()
    store = lab.open()  # what was cut off is allocated again
    put(store, *numbered(80, 150, 300))
    settle(store)
    checkpoint(store)  # the simulated disk complains at the sync
    assert len(bodies(store)) == 150
    lab.disk.free_space = 0
    results = store.put([message(b"x" * 300) for _ in range(40)])
    assert not results[-1].ok and "No space left on device" in results[-1].reason


def test_rmq_2141_a_power_cut_while_files_are_removed_leaves_no_hole(lab: Lab) -> None:
    """The power fails while files behind the log's end are removed: never a hole in the middle."""
    store = lab.open()
    put(store, *numbered(0, 5, 1000))
    settle(store)
    checkpoint(store)
    put(store, *numbered(5, 30, 1000))
    assert len(store.commit_log.files.files) == 5
    lab.cut_power()  # the files have their names, and nothing in them
    for after in lab.each_cut(lambda other: other.open()):
        assert bodies(after.open()) == numbered(0, 5, 1000)


def test_rmq_9705_a_power_cut_while_offsets_are_saved_leaves_the_old_or_the_new(lab: Lab) -> None:
    """The power fails while offsets are saved: the old ones or the new ones are there."""
    make_folder(lab.disk, "/store/config")
    path = "/store/config/consumerOffset.json"
    json_file.save_json(path, {"offset": 1}, disk=lab.disk)
    lab.cut_power()

    def work(other: Lab) -> None:
        json_file.save_json(path, {"offset": 2, "more": "x" * 700}, disk=other.disk)

    seen = []
    for after in lab.each_cut(work):
        table = json_file.load_json(path, disk=after.disk)
        assert table is not None, "both the file and its .bak are gone"
        seen.append(table["offset"])
    assert seen[0] == 1 and seen[-1] == 2


def test_rmq_9328_a_shorter_text_replaces_a_longer_one_whole(lab: Lab, tmp_path: Path) -> None:
    """A shorter text replaces a longer one whole, even where a crash left a longer draft."""
    path = tmp_path / "config" / "topics.json"
    json_file.save_json(str(path), {"topics": ["a" * 500]})
    path.with_suffix(".json.tmp").write_bytes(b'{"left": "' + b"b" * 900)
    json_file.save_json(str(path), {"topics": []})
    assert json_file.load_json(str(path)) == {"topics": []}


def test_rmq_3401_the_bak_of_an_unreadable_file_serves(lab: Lab, tmp_path: Path) -> None:
    """A config file that cannot be read: its .bak serves; without one the start continues."""
    path = tmp_path / "topics.json"
    json_file.save_json(str(path), {"number": 1})
    json_file.save_json(str(path), {"number": 2})
    path.write_bytes(b'{"number": 3')
    assert json_file.load_json(str(path)) == {"number": 1}
    path.with_suffix(".json.bak").write_bytes(bytes(40))
    assert json_file.load_json(str(path)) is None
    store = lab.open()
    dispatch(store)
    assert put(store, b"taken")[0].ok


def test_rmq_7539_an_index_file_that_cannot_be_made_leaves_none_behind(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every try to make an index file fails half-way: they do not fill the disk up."""
    store = lab.open()
    with monkeypatch.context() as patch:

        def refused(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(IndexFile, "prepare", refused)
        for number in range(5):
            put(store, b"%08d" % number)
            with suppress(OSError):
                settle(store)
                store.queue_flush.step(thorough=True)
            lab.clock.ms += 1000
        assert lab.disk.listdir("/store/index") == []
    settle(store)
    assert [bytes(each.body) for each in found(store, "00000003")] == [b"00000003"]


def test_rmq_7283_a_log_file_that_cannot_be_removed_keeps_its_place(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To remove the oldest file fails: the log still begins there, and all of it is read."""
    store = lab.open()
    put(store, *numbered(0, 30, 1000))
    settle(store)
    checkpoint(store)
    lab.clock.ms += 80 * 3_600_000
    real = lab.disk.unlink

    def refused(path: str) -> None:
        if "commitlog" in path:
            raise OSError(5, "Input/output error", path)
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(lab.disk, "unlink", refused)
        for _ in range(3):
            store.clean_expired()
    assert store.min_physical_offset == 0 == store.min_offset("T", 0)
    files = store.commit_log.files.files
    assert [file.start for file in files] == [8192 * number for number in range(len(files))]
    expire(lab, store)
    assert store.min_physical_offset == store.commit_log.files.files[0].start > 0


def test_rmq_5174_a_search_by_time_finds_what_was_stored_within_a_second(lab: Lab) -> None:
    """The index knows seconds: a range of one millisecond still finds its message, and no other."""
    store = lab.open()
    lab.clock.ms -= lab.clock.ms % 1000
    put(store, b"first")
    lab.clock.ms += 1999
    at_ms = put(store, b"second")[0].store_timestamp
    settle(store)
    for begin_ms, end_ms, count in ((0, 0, 1), (-1, 0, 1), (0, 1, 1), (1, 5000, 0), (-900, -1, 0)):
        search = store.search("T", "second", 32, at_ms + begin_ms, at_ms + end_ms)
        assert len(finish(search).views) == count


def test_rmq_358_a_clean_start_trims_entries_of_records_that_the_log_does_not_have(
    lab: Lab,
) -> None:
    """alibaba/RocketMQ#358: after a clean stop the log lost its end; the queue ends there."""
    store = lab.open()
    last = put(store, *numbered(0, 10))[-1]
    settle(store)
    checkpoint(store)
    store.close()
    inode = lab.disk.names[f"/store/commitlog/{0:020d}"]
    for content in (inode.current, inode.durable):
        content[last.physical_offset : last.physical_offset + last.size] = bytes(last.size)
    store = lab.open()
    assert bodies(store) == numbered(0, 9)
    assert put(store, b"next")[0].queue_offset == 9


WITH_PATCH = (7539, 7283)
WITH_FOLDER = (9328, 3401)


@pytest.mark.parametrize("number", FILE_BUGS)
def test_its_own_bug_breaks_it(
    number: int, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FILE_BUGS[number](monkeypatch)
    story = story_of(number, globals())
    with pytest.raises(FAILURES):
        if number in WITH_PATCH:
            story(lab, monkeypatch)
        else:
            story(lab, tmp_path) if number in WITH_FOLDER else story(lab)
