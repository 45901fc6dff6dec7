"""Recovery of a log whose records are torn or damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store.recovered import crashed_image, damage, fill, log_path, numbers

from .conftest import OpenStore, abandon, dispatch, message, read_all


@pytest.mark.parametrize("unclean", [True, False])
def test_the_last_record_cut_at_any_byte_is_dropped_and_the_rest_kept(
    open_store: OpenStore, tmp_path: Path, unclean: bool
) -> None:
    image, starts = crashed_image(open_store, tmp_path, 8)
    begin, end = starts[-2:]
    if not unclean:
        (image / "abort").unlink()
    for cut in range(begin, end, 7):
        root = tmp_path / "store"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(image, root)
        with log_path(tmp_path).open("r+b") as file:
            file.seek(cut)
            file.write(bytes(end - cut))
        store = open_store()
        assert numbers(store) == list(range(7))
        assert store.max_physical_offset == begin
        fill(store, 1, 7, body=100)
        dispatch(store)
        assert numbers(store) == list(range(8))
        abandon(store)


def test_any_flipped_byte_of_the_last_record_ends_the_log_before_it(
    open_store: OpenStore, tmp_path: Path
) -> None:
    image, starts = crashed_image(open_store, tmp_path, 4)
    begin, end = starts[-2:]
    for at in range(begin, end, 5):
        root = tmp_path / "store"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(image, root)
        with log_path(tmp_path).open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 0x10]))
        store = open_store()
        assert numbers(store) == list(range(3)), f"byte {at - begin} of the record"
        abandon(store)


@pytest.mark.parametrize("byte", [0xFF, ord("/")], ids=["not UTF-8", "not a folder"])
def test_a_damaged_topic_ends_the_log_where_no_checksum_tells(
    open_store: OpenStore, tmp_path: Path, byte: int
) -> None:
    store = open_store(enabled_append_prop_crc=False)
    results = store.put([message("orders", body=b"%d" % n) for n in range(5)])
    dispatch(store)
    path = store.commit_log.files.files[0].path
    abandon(store)
    with open(path, "r+b") as file:
        topic_at = results[3].physical_offset + file.read().find(b"orders")
        file.seek(topic_at)
        file.write(bytes([byte]))
    store = open_store(enabled_append_prop_crc=False)
    assert [each.body for each in read_all(store, "orders")] == [b"0", b"1", b"2"]
    assert store.max_physical_offset == results[3].physical_offset
    assert store.put([message("orders", body=b"next")])[0].queue_offset == 3


def test_rmq_10666_a_cut_tail_is_zeros_that_no_later_scan_can_take_for_records(
    open_store: OpenStore, tmp_path: Path
) -> None:
    image, starts = crashed_image(open_store, tmp_path, 20)
    shutil.copytree(image, tmp_path / "store")
    with log_path(tmp_path).open("r+b") as file:
        file.seek(starts[10] + 100)
        file.write(b"\xff")
    store = open_store()
    assert numbers(store) == list(range(10))
    assert not any(log_path(tmp_path).read_bytes()[starts[10] :])
    # The same size as the lost one: behind it the old life's records would fit exactly.
    fill(store, 1, 10)
    abandon(store)
    store = open_store()
    assert numbers(store) == list(range(11))


def test_rmq_10017_a_record_of_an_earlier_life_is_known_by_its_offset(
    open_store: OpenStore, tmp_path: Path
) -> None:
    image, starts = crashed_image(open_store, tmp_path, 6)
    shutil.copytree(image, tmp_path / "store")
    data = log_path(tmp_path).read_bytes()
    with log_path(tmp_path).open("r+b") as file:
        file.seek(starts[6])
        file.write(data[starts[2] : starts[3]])  # sound in itself, in the wrong place
    store = open_store()
    assert numbers(store) == list(range(6))


def test_the_tail_of_the_log_is_allocated_again_after_the_cut(
    open_store: OpenStore, tmp_path: Path
) -> None:
    image, _ = crashed_image(open_store, tmp_path, 4)
    shutil.copytree(image, tmp_path / "store")
    open_store()
    status = log_path(tmp_path).stat()
    assert status.st_size == 65536
    assert status.st_blocks * 512 >= 65536


@pytest.mark.parametrize(("at", "data"), [(-88, bytes(8)), (50, b"\xff"), (-60, b"\xff" * 8)])
@pytest.mark.parametrize("unclean", [True, False])
def test_one_damaged_record_does_not_take_those_after_it_along(
    open_store: OpenStore, tmp_path: Path, at: int, data: bytes, unclean: bool
) -> None:
    store = open_store()
    fill(store, 20)
    dispatch(store)
    if unclean:
        store.flush.step()
        store.queue_flush.step(thorough=True)
        fill(store, 4, 20)
        abandon(store)
    else:
        fill(store, 4, 20)
        store.close()
    damage(tmp_path, 10, at, data)
    store = open_store()
    found = [int(m.body[:6]) for queue_id in (0, 1) for m in read_all(store, "T", queue_id)]
    assert sorted(found) == [n for n in range(24) if n != 10]
    fill(store, 2, 24)
    dispatch(store)
    assert store.max_offset("T", 0) == store.max_offset("T", 1) == 13


def test_rmq_7437_torn_properties_do_not_pass(open_store: OpenStore, tmp_path: Path) -> None:
    for crc in (True, False):
        root = tmp_path / f"crc{crc}"
        store = open_store(root=root, enabled_append_prop_crc=crc)
        store.put([message(body=b"whole", properties="A\x01b\x02")])
        text = "K\x01" + "v" * 900 + "\x02"
        last = store.put([message(body=b"torn", properties=text)])[0]
        abandon(store)
        with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
            file.seek(512)
            file.write(bytes(last.end_offset - 512))  # the second sector never came to the disk
        store = open_store(root=root, enabled_append_prop_crc=crc)
        assert [m.body for m in read_all(store)] == [b"whole"]


def test_rmq_9121_a_crc_of_zero_is_a_value_like_any_other(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(enabled_append_prop_crc=False)
    store.put([message(body=b"first"), message(body=b"second")])
    abandon(store)
    with log_path(tmp_path).open("r+b") as file:
        second = log_path(tmp_path).read_bytes().index(b"second") - 88
        file.seek(second + 8)
        file.write(bytes(4))
    store = open_store(enabled_append_prop_crc=False)
    assert [m.body for m in read_all(store)] == [b"first"]


def test_queues_built_again_have_what_follows_a_damaged_record(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """An operator removes consumequeue to have it rebuilt, and the log has a bad spot."""
    store = open_store()
    results = store.put([message(body=b"%d" % n * 50) for n in range(2000)])
    dispatch(store)
    store.close()
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    for number in (0, 700, 701, 1999):
        offset = results[number].physical_offset
        path = tmp_path / "store" / "commitlog" / f"{offset // 65536 * 65536:020d}"
        data = bytearray(path.read_bytes())
        data[offset % 65536 + 4] ^= 1
        path.write_bytes(data)
    store = open_store()
    expected = [b"%d" % n * 50 for n in range(2000) if n not in (0, 700, 701, 1999)]
    assert [each.body for each in read_all(store)] == expected
    assert store.put([message()])[0].ok


@pytest.mark.parametrize("text", ["A\x01b\0", "A\x01" + "\0" * 20 + "\x02", "\0"])
def test_zeros_in_properties_are_not_taken_for_a_torn_write(
    open_store: OpenStore, text: str
) -> None:
    """Without checksums of records, which RocketMQ has off, zeros in a text tell of a torn one."""
    store = open_store(enabled_append_prop_crc=False)
    for properties in ("", text, "B\x01c\x02"):
        assert store.put([message(properties=properties)])[0].ok
    store.flush.step()
    end = store.max_physical_offset
    abandon(store)
    store = open_store(enabled_append_prop_crc=False)
    assert store.max_physical_offset == end
