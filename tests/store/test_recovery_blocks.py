"""Recovery in blocks: whatever the messages look like, queues and index come out as they do record
by record."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from effort import examples

from aerobee.broker.store.log import scan_block
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.recovery import log_scan
from aerobee.protocol.files.java_hash import java_hash
from aerobee.protocol.files.properties_columns import read_properties
from aerobee.protocol.files.record import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, Message
from aerobee.protocol.files.record_layout import BORN_HOST_V6

from .conftest import OpenStore, abandon, dispatch, message

SIZES = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 300,
    "max_hash_slot_num": 1000,
    "max_index_num": 900,
}
V6 = bytes(15) + b"\x01" + b"\0\0\x2a\x9f"


def any_message(rng: random.Random) -> Message:
    """One of many kinds, the plain ones most often."""
    number = rng.randrange(10**6)
    properties = rng.choice(
        (
            f"UNIQ_KEY\x01{number:032X}\x02KEYS\x01order-{number}\x02TAGS\x01TagA\x02",
            f"KEYS\x01a{number} b{number}\x02UNIQ_KEY\x01{number:032X}\x02TAGS\x01T{number % 7}",
            f"TAGS\x01\x02KEYS\x01  two  {number % 9} \x02",
            f"NOKEYS\x01{number}\x02XTAGS\x01no\x02TAGS\x01Tag{number % 3}\x02",
            f"KEYS\x01schlüssel-{number % 50}\x02TAGS\x01größe\x02",
            f"NOTE\x01x KEYS y {number}\x02KEYS\x01late{number}",
            f"KEYS\x01😀{number % 5}\x02",
            "KEYS\x01\x02UNIQ_KEY\x01\x02",
            "",
        )
    )
    kind = rng.random()
    fields: dict[str, object] = {}
    if kind < 0.01:
        fields = {"sys_flag": BORN_HOST_V6, "born_host": V6}
    elif kind < 0.02:
        fields = {"sys_flag": TRANSACTION_PREPARED}
    elif kind < 0.03:
        fields = {"sys_flag": TRANSACTION_ROLLBACK}
    topic = rng.choice(("T", "Orders", "Orders2", "t" * 130 if kind > 0.995 else "Tö"))
    return message(
        topic, rng.randrange(3), rng.randbytes(rng.choice((0, 5, 200))), properties=properties,
        **fields,
    )  # fmt: skip


def no_block(*_args: object, **_options: object) -> scan_block.Block:
    nothing = np.empty(0, np.int64)
    return scan_block.Block(*[nothing] * 10)


def recover_all(store: MessageStore) -> None:
    """A store just opened: its last keys still wait to be written."""
    assert store.index is not None
    store.index.write_pending()
    for file in store.index.files:
        file.write_slots()
    abandon(store)


def derived_files(root: Path) -> dict[str, bytes]:
    """Queues by path; the index by order, its names are times."""
    queues = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted((root / "consumequeue").rglob("*"))
        if path.is_file()
    }
    index = sorted((root / "index").iterdir())
    return queues | {f"index {n}": path.read_bytes() for n, path in enumerate(index)}


@pytest.mark.parametrize("seed", range(examples(6, share=3)))
@pytest.mark.parametrize("append_crc", (True, False))
def test_a_log_without_queues_gives_the_same_ones_in_blocks_and_record_by_record(
    seed: int,
    append_crc: bool,
    open_store: OpenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(seed)
    settings = SIZES | {"enabled_append_prop_crc": append_crc}
    store = open_store(**settings)
    few_kinds = [any_message(rng) for _ in range(4)]
    for _ in range(40):
        one_kind = rng.random() < 0.5
        store.put([rng.choice(few_kinds) if one_kind else any_message(rng) for _ in range(64)])
        dispatch(store)
    store.close()
    live = derived_files(tmp_path / "store")
    (tmp_path / "store" / "abort").touch()
    (tmp_path / "store" / "checkpoint").unlink()
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / "store" / name)
    shutil.copytree(tmp_path / "store", tmp_path / "other")
    monkeypatch.setattr(log_scan, "BLOCK_RECORDS", rng.choice((7, 100, 8192)))
    recover_all(open_store(**settings))
    in_blocks = derived_files(tmp_path / "store")
    monkeypatch.setattr(log_scan, "read_block", no_block)
    recover_all(open_store(**settings, root=tmp_path / "other"))
    assert in_blocks == derived_files(tmp_path / "other")
    assert in_blocks == live


@pytest.mark.parametrize("append_crc", (True, False))
def test_no_flipped_byte_passes_in_a_block(append_crc: bool, open_store: OpenStore) -> None:
    """Each byte that a checksum covers, or that decides where something is."""
    store = open_store(enabled_append_prop_crc=append_crc)
    store.put([message(body=b"abcdefgh", properties="KEYS\x01k\x02TAGS\x01t\x02")] * 3)
    file = store.commit_log.files.files[0]
    end = file.wrote
    data = bytearray(file.view[:end])
    view = memoryview(data)
    whole = scan_block.read_block(view, 0, 0, end, 10, check_crc=True)
    assert len(whole) == 3
    second, third = int(whole.start[1]), int(whole.start[2])
    unprotected = set() if append_crc else {*range(12, 28), *range(36, 84)}
    if not append_crc:  # texts have no checksum of their own
        unprotected |= set(range(88 + 8 + 1, third - second))
    for position in range(third - second):
        data[second + position] ^= 0x04
        found = scan_block.read_block(view, 0, 0, end, 10, check_crc=True)
        assert len(found) == 1 or position in unprotected, position
        data[second + position] ^= 0x04


def test_properties_of_one_layout_share_a_parse_and_others_do_not_disturb_them() -> None:
    texts = [f"KEYS\x01k{n:03} w{n % 10}\x02TAGS\x01t{n % 4}" for n in range(50)]
    texts[7] = "TAGS\x01t7x\x02KEYS\x01other"  # as long as the others
    texts[9] = "KEYS\x01k0 09 w9\x02TAGS\x01t"
    texts[11] = "KEYS\x01k\u00e911 w\x02TAGS\x01t"
    parts = [text.encode() for text in texts]
    sizes = np.array([len(part) for part in parts])
    at = np.cumsum(sizes) - sizes
    codes, keys = read_properties(memoryview(b"".join(parts)), at, sizes)
    expected_tags = [
        java_hash(next(p[5:] for p in text.split("\x02") if p.startswith("TAGS\x01")))
        for text in texts
    ]
    assert codes.tolist() == expected_tags
    records, hashes, _ = keys.in_order()
    expected = [
        (number, java_hash(word) & 0xFFFFFFFF)
        for number, text in enumerate(texts)
        for pair in text.split("\x02")
        if pair.startswith("KEYS\x01")
        for word in pair[5:].split(" ")
    ]
    assert list(zip(records.tolist(), hashes.tolist(), strict=True)) == expected
