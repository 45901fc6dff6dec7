"""The bytes that docs/store.md shows are those that the store writes."""

from __future__ import annotations

import re
from pathlib import Path

from aerobee.protocol.files.config_journal import read_journal
from aerobee.protocol.files.ids import encode_host

from .conftest import ManualClock, OpenStore, dispatch, message

DOCS = Path(__file__).parents[2] / "docs" / "store.md"


def test_the_worked_bytes_of_the_documentation_are_true(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(clock=ManualClock(1700000000001), max_hash_slot_num=10, max_index_num=20)
    one = message(
        queue_id=1,
        body=b"hi",
        properties="TAGS\x01TagA\x02KEYS\x01k1\x02",
        born_timestamp=1700000000000,
        born_host=encode_host("10.0.0.1", 5000),
        store_host=encode_host("10.0.0.2", 10911),
    )
    size = store.put([one] * 6)[0].size
    dispatch(store)
    store.flush.step()
    store.queue_flush.step(thorough=True)
    root = tmp_path / "store"
    text = DOCS.read_text()
    shown = "".join(
        part
        for row in re.findall(r"^\| \d+ \| (`[0-9a-f` ]+`) \|", text, re.MULTILINE)
        for part in re.findall("[0-9a-f]+", row)
    )
    assert bytes.fromhex(shown) == (root / "commitlog" / ("0" * 20)).read_bytes()[:size]
    words = re.sub(r"\s", "", text)
    entries = (root / "consumequeue" / "T" / "1" / ("0" * 20)).read_bytes()
    assert entries[:20].hex() in words and entries[20:40].hex() in words
    (index,) = (root / "index").iterdir()
    data = index.read_bytes()
    assert data[:40].hex() in words
    assert data[100:120].hex() in words and data[120:140].hex() in words
    page = (root / "checkpoint").read_bytes()
    for at in (0, 8, 16, 24, 32, 40, 256, 264, 280, 296, 304):
        assert f"{at}{page[at : at + 8].hex()}" in words


def test_the_lines_of_a_journal_in_the_documentation_are_true() -> None:
    shown = "".join(re.findall(r"^[0-9a-f]{8} [{\[].*\n", DOCS.read_text(), re.MULTILINE))
    journal = read_journal(shown.encode())
    assert journal is not None and journal.end == len(shown.encode())
    assert journal.changes == [
        (("topicConfigTable", "orders"), {"perm": 6}),
        (("topicConfigTable", "gone"), None),
    ]
    assert len(journal.bases) == 2
