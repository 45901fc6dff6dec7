"""`aerobee store`: what a directory holds, damage of every kind, messages by every handle."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.broker.store.inspect import verify as verify_module
from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.index import slots_of
from aerobee.broker.store.inspect.verify import parts_of, verify, verify_part
from store.conftest import ManualClock, OpenStore, dispatch, message
from store.damages import DAMAGES, damage_body, damage_end, damage_index_offset, damage_queue_hole
from store.inspected import COUNT, TOPICS, change, content, dump, dumped, files, problems, run


def test_verify_finds_a_store_with_several_files_of_each_kind_sound(folder: Path) -> None:
    assert len(files(folder, "commitlog")) > 2
    assert len(files(folder, "consumequeue")) > 8
    assert len(files(folder, "index")) > 2
    before = content(folder)
    status, text = run("verify", str(folder), "--json")
    found = json.loads(text)
    assert status == 0 and found["sound"] and not found["problems"] and not found["notes"]
    assert (found["records"], found["queue_entries"], found["index_entries"]) == (
        COUNT,
        COUNT,
        COUNT * 3,
    )
    run("stat", str(folder))
    run("dump", str(folder), "--json")
    assert content(folder) == before


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_verify_names_the_first_bad_place(folder: Path, damage: Callable[[Path], Path]) -> None:
    assert problems(folder) == []
    path = damage(folder)
    status, text = run("verify", str(folder))
    assert status == 1
    assert "NOT SOUND" in text
    assert str(path) in text.partition("\n")[0], text


@pytest.mark.parametrize("damage", [None, *DAMAGES], ids=lambda each: getattr(each, "__name__", ""))
def test_the_parts_of_a_store_tell_together_what_verify_tells(
    folder: Path, damage: Callable[[Path], Path] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "PIECE", 70)
    if damage is not None:
        damage(folder)
    store = open_directory(str(folder))
    whole = verify(store, lambda _: None)
    reports = [verify_part(store, part) for part in parts_of(store)]
    assert sum(report.records for report in reports) == whole.records
    assert sum(report.queue_entries for report in reports) == whole.queue_entries
    assert sum(report.index_entries for report in reports) == whole.index_entries
    found = {problem for report in reports for problem in report.problems}
    if damage not in (damage_body, damage_end):  # the parts tell only once of a damaged body
        assert {each[:2] for each in found} >= {each[:2] for each in whole.problems}
    assert bool(found) is bool(whole.problems) is (damage is not None)


def test_verify_finds_an_index_entry_that_points_nowhere_where_messages_have_no_tags(
    tmp_path: Path, open_store: OpenStore
) -> None:
    store = open_store()
    store.put([message(properties=f"KEYS\x01k{number}\x02") for number in range(50)])
    dispatch(store)
    store.close()
    path = damage_index_offset(tmp_path / "store")
    assert any(
        each.startswith(f"{path} at byte 540: index entry 5: no record")
        for each in problems(tmp_path / "store")
    )


def test_a_queue_that_is_gone_is_a_problem_if_the_broker_has_its_topic(folder: Path) -> None:
    shutil.rmtree(folder / "consumequeue" / TOPICS[1])
    assert problems(folder) == []  # deleted, for all that the files tell
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / "topics.json").write_text(
        json.dumps({"topicConfigTable": {TOPICS[1]: {}}})
    )
    found = problems(folder)
    assert [each.partition("the record")[2] for each in found] == [
        f" has no entry 0 in queue {TOPICS[1]}/{number}" for number in (0, 1)
    ]


def test_entries_behind_a_lost_queue_file_keep_their_numbers(folder: Path) -> None:
    after = damage_queue_hole(folder)
    found = problems(folder)
    assert len(found) == 2
    assert found[0].startswith(f"{after}: a hole in the stream")
    assert found[1].endswith(f"the record has no entry 50 in queue {TOPICS[0]}/1")
    assert str(folder / "commitlog") in found[1]
    queue = next(
        row
        for row in json.loads(run("stat", str(folder), "--json")[1])["queues"]
        if (row["topic"], row["queue_id"]) == (TOPICS[0], 1)
    )
    assert (queue["min_offset"], queue["max_offset"], queue["messages"]) == (0, 150, 100)
    part = dumped(folder, "-t", TOPICS[0], "-q", "1", "--offset", "40", "--to-offset", "110")
    assert [row["queue_offset"] for row in part] == [*range(40, 50), *range(100, 110)]


def test_stat_takes_any_time_that_a_damaged_record_tells_and_dump_leaves_it_out(
    folder: Path,
) -> None:
    change(files(folder, "commitlog")[0], 56, struct.pack(">q", 2**62))
    assert str(2**62) in run("stat", str(folder))[1]
    result = dump(folder)
    assert len(result.stdout.splitlines()) == COUNT - 1 and "checksum" in result.stderr


def test_dump_tells_what_damage_keeps_from_it(folder: Path) -> None:
    """It continues with the next file, and does not end as if that had been all."""
    whole = len(dumped(folder))
    change(files(folder, "commitlog")[1], 4, b"?")
    result = dump(folder)
    assert 0 < len(result.stdout.splitlines()) < whole
    assert result.return_value == 1
    assert f"{files(folder, 'commitlog')[1]} at byte 0" in result.stderr
    assert "left out" in result.stderr


def test_dump_tells_of_a_record_whose_text_is_damaged(folder: Path) -> None:
    path = files(folder, "commitlog")[0]
    change(path, path.read_bytes().index(b"k8 all"), b"\xff")
    for words in ([], ["-t", TOPICS[0], "-q", "0"], ["-t", TOPICS[0], "-k", "all"]):
        result = dump(folder, *words)
        assert result.return_value == 1, words
        assert "it is left out" in result.stderr
        assert len(result.stdout.splitlines()) in (COUNT - 1, COUNT // 4 - 1, COUNT // 2 - 1)


def test_verify_continues_after_a_damaged_record(folder: Path) -> None:
    damage_body(folder)
    found = verify(open_directory(str(folder)), lambda _: None)
    assert found.records == COUNT - 1
    assert found.problems[0].text == "record: the record does not match its checksum"


def test_a_topic_deleted_and_recreated_is_sound(tmp_path: Path, open_store: OpenStore) -> None:
    store = open_store()
    store.put([message(body=b"%d" % number) for number in range(10)])
    dispatch(store)
    store.delete_topic("T")
    store.put([message(body=b"%d" % number) for number in range(3)])
    store.put([message("Gone")])
    dispatch(store)
    store.delete_topic("Gone")
    store.close()
    found = verify(open_directory(str(tmp_path / "store")), lambda _: None)
    assert found.problems == []
    assert found.records == 14 and found.queue_entries == 3
    assert "Gone" in found.notes[0]


@pytest.mark.parametrize("text", ["UNIQ_KEY\x01\x02", "KEYS\x01old\x02KEYS\x01\x02TAGS\x01\x02"])
def test_an_empty_key_or_tag_is_none_however_the_record_was_dispatched(
    tmp_path: Path, open_store: OpenStore, text: str
) -> None:
    store = open_store()
    store.put([message(properties=f"{text}A\x01{number}\x02") for number in range(100)])
    dispatch(store)
    store.close()
    assert problems(tmp_path / "store") == []
    for part in ("index", "consumequeue"):
        for path in files(tmp_path / "store", part):
            path.unlink()
    (tmp_path / "store" / "checkpoint").unlink()
    (tmp_path / "store" / "abort").touch()
    open_store().close()  # rebuilds them, in blocks
    assert problems(tmp_path / "store") == []


def test_verify_of_a_store_in_use_is_refused(tmp_path: Path, open_store: OpenStore) -> None:
    open_store().put([message()])
    status, text = run("verify", str(tmp_path / "store"))
    assert status == 1 and "in use by a broker" in text


def test_verify_sees_the_lock_of_another_process(folder: Path) -> None:
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+b');"
        "fcntl.lockf(f, fcntl.LOCK_EX, 1, 0); print('held', flush=True); sys.stdin.read()"
    )

    command = [sys.executable, "-c", code, str(folder / "lock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        other.stdout.readline()
        status, text = run("verify", str(folder))
        other.kill()
    assert status == 1 and "in use by a broker" in text


def test_stat_says_ranges_times_and_sizes(folder: Path, clock: ManualClock) -> None:
    status, text = run("stat", str(folder), "--json")
    found = json.loads(text)
    assert status == 0 and found["stopped_cleanly"]
    queue = next(
        row for row in found["queues"] if (row["topic"], row["queue_id"]) == (TOPICS[0], 1)
    )
    assert (queue["min_offset"], queue["max_offset"], queue["messages"]) == (0, 150, 150)
    assert queue["last_stored"] == clock.time_ms - 250
    assert found["commitlog"]["last_stored"] == clock.time_ms
    assert found["commitlog"]["files"] == len(files(folder, "commitlog"))
    assert found["commitlog"]["end_offset"] == found["checkpoint"]["dispatched_offset"]
    assert [row["slots"] for row in found["index"]["index_files"]] == [100] * 5
    plain = run("stat", str(folder))[1]
    assert "Größe" in plain and "stopped cleanly" in plain


def test_dump_finds_messages_by_every_handle(folder: Path, clock: ManualClock) -> None:
    rows = dumped(folder)
    assert len(rows) == COUNT and rows[8]["body"] == "body 8 " + "x" * 200
    assert rows[7]["body_base64"] == "/wA="
    assert rows[8]["properties"] == {"KEYS": "k8 all", "UNIQ_KEY": "U00000008", "TAGS": "t2"}
    assert [row["physical_offset"] for row in dumped(folder, "-t", "Orders", "-k", "k8")] == [
        rows[8]["physical_offset"]
    ]
    assert dumped(folder, "-k", "U00000008") == dumped(folder, "-t", "Orders", "-k", "U00000008")
    assert len(dumped(folder, "-t", "Orders", "-k", "all")) == COUNT // 2
    assert dumped(folder, "-t", "Größe", "-k", "k8") == []
    part = dumped(folder, "-t", "Größe", "-q", "1", "--offset", "40", "--to-offset", "60")
    assert [row["queue_offset"] for row in part] == list(range(40, 60))
    since = str((clock.time_ms - 1000) / 1000)
    assert [row["born"] for row in dumped(folder, "--since", since)] == list(range(595, 600))
    assert len(dumped(folder, "--until", since)) == COUNT - 5
    assert len(dumped(folder, "-n", "3")) == 3
    text = run("dump", str(folder), "-t", "Orders", "-q", "0", "-n", "1")[1]
    assert "Orders/0" in text and "keys=k0 all" in text and "body 0 xxx" in text


@pytest.mark.parametrize("slots", [5, 100, 3000, 70_000])
def test_the_number_of_slots_follows_from_the_file(
    tmp_path: Path, open_store: OpenStore, slots: int
) -> None:
    store = open_store(max_hash_slot_num=slots, max_index_num=9000)
    store.put([message(properties=f"KEYS\x01k{number}\x02") for number in range(500)])
    dispatch(store)
    store.close()
    found = open_directory(str(tmp_path / "store"))
    assert list(slots_of(found).values()) == [slots]
    assert problems(tmp_path / "store") == []
    assert len(dumped(tmp_path / "store", "-t", "T", "-k", "k77")) == 1


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    status, text = run("stat", str(tmp_path))
    assert status == 1 and "is not a store directory" in text
