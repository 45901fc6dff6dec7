"""What a slave makes of its master's records, in C and in Python: the same queues and keys, also of
records that are odd or damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aerobee.broker.base.clock import Clock
from aerobee.broker.compiled import hot
from aerobee.broker.ha import receiver
from aerobee.broker.ha.wire import HEAD, StreamError
from aerobee.broker.store.log.scan_block import read_block
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files.record import Message, encode_record
from aerobee.protocol.files.record_columns import record_bounds

pytestmark = pytest.mark.skipif(hot is None, reason="this installation is pure Python")

FILE = 64 << 10
TEXTS = [
    "UNIQ_KEY\x01{0}\x02TAGS\x01a\x02",
    "KEYS\x01k{0} k\x02UNIQ_KEY\x01u{0}\x02",
    "TAGS\x01\x02",
    "",
    "KEYS\x01ü{0}\x02",
    "a\x01" + "v" * 300,
]
FLAGS = [0] * 8 + [0x1, 0x4, 0x8, 0xC]  # compressed, prepared, committed, rolled back
V6 = bytes(15) + b"\x01" + bytes(4)


def opened(folder: Path) -> MessageStore:
    settings = StoreSettings(
        store_path_root_dir=str(folder),
        mapped_file_size_commit_log=FILE,
        mapped_file_size_consume_queue=20 * 1000,  # all are compared whole
        max_hash_slot_num=1000,
        max_index_num=4000,
        disk_guard_enable=False,
    )
    store = MessageStore(settings, clock=Clock(), ahead=False)
    store.load()
    return store


def log_of(folder: Path, draw: random.Random, odd: float) -> list[tuple[int, bytes]]:
    """Records one by one, as a master may have written them, with the ends of files."""
    store = opened(folder)
    for number in range(600):
        is_odd = draw.random() < odd
        host = V6 if is_odd and draw.random() < 0.3 else bytes(8)
        store.put(
            [
                Message(
                    draw.choice(["orders", "bills", "überall"[is_odd ^ 1 :]]),
                    draw.randrange(3),
                    draw.randbytes(draw.choice([0, 10, 300, 2000])),
                    draw.choice(TEXTS if is_odd else TEXTS[:2]).format(number),
                    sys_flag=draw.choice(FLAGS) if is_odd else 0,
                    born_host=host,
                )
            ]
        )
    pieces: list[tuple[int, bytes]] = []
    offset, end = 0, store.max_physical_offset
    while offset < end:
        size = int.from_bytes(store.read_log(offset, 4), "big")
        pieces.append((offset, store.read_log(offset, size)))
        offset += size
    store.close()
    return pieces


def derived_files(folder: Path) -> dict[str, bytes]:
    """Queues and index; an index's head has the time of its making in it nowhere."""
    files = [*folder.glob("consumequeue/*/*/*"), *folder.glob("index/*")]
    return {
        str(file.relative_to(folder)) if "index" not in file.parts else "index": file.read_bytes()
        for file in files
    }


@pytest.mark.parametrize("odd", [0.0, 0.05, 0.6])
def test_a_slave_dispatches_alike_in_any_lots(tmp_path: Path, odd: float) -> None:
    draw = random.Random(int(odd * 100))
    pieces = log_of(tmp_path / "master", draw, odd)
    stores = {name: opened(tmp_path / name) for name in ("c", "python")}
    stores["python"].reput.dispatcher.read_facts = None
    while pieces:
        count = draw.choice([1, 2, 30, 300])
        for store in stores.values():
            for offset, record in pieces[:count]:
                store.append_copy(offset, memoryview(record))
            while store.reput.step():
                pass
        pieces = pieces[count:]
        one, other = stores.values()
        assert one.dispatched_offset == other.dispatched_offset == one.max_physical_offset
        assert one.queues() == other.queues()
    for store in stores.values():
        store.close()
    found = derived_files(tmp_path / "c")
    assert found == derived_files(tmp_path / "python") and len(found) > 6


def test_damaged_records_are_left_to_python() -> None:
    """C reads what columns read, and stops where they stop."""
    assert hot is not None
    draw = random.Random(7)
    whole = plain_records()
    queue = object()
    stopped = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(draw.choice([0, 1, 1, 3])):
            data[draw.randrange(len(data))] = draw.choice([0, 1, 0x7F, 0xFF, draw.randrange(256)])
        end = draw.choice([len(data), len(data), draw.randrange(len(data))])
        view = memoryview(bytes(data))
        block = read_block(view, FILE, 0, end, 50, check_crc=False)
        facts = hot.read_facts(view, FILE, 0, end, 50, lambda _topic, _id: queue)
        assert facts.offsets() == [int(start) + FILE for start in block.start]
        stopped += len(facts) < 20
    assert stopped > 500


def test_a_slave_takes_the_same_stream_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is damaged and however it is cut: the same lots, the same error."""
    draw = random.Random(11)
    whole = plain_records()
    damaged = 0
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(draw.choice([0, 0, 1])):
            data[draw.randrange(len(data))] = draw.choice([0, 1, 0x7F, 0xFF, draw.randrange(256)])
        stream = memoryview(HEAD.pack(FILE, len(data)) + bytes(data))
        cuts = sorted(draw.randrange(len(stream)) for _ in range(draw.choice([0, 1, 5])))
        reads = [stream[at:to] for at, to in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
        one = taken(reads)
        with monkeypatch.context() as patch:
            patch.setattr(receiver, "hot", None)
            assert taken(reads) == one
        damaged += one[-1] != FILE + len(whole)
    assert damaged > 50


def taken(reads: list[memoryview]) -> list[object]:
    """What of the reads goes to the log, and how it ends."""
    slave = receiver.Receiver(FILE, FILE)
    found: list[object] = []
    try:
        for read in reads:
            found += [(offset, bytes(lot)) for offset, lot in slave.feed(read)]
    except StreamError as error:
        return [*found, str(error)]
    return [*found, slave.whole]


def plain_records() -> bytes:
    data = b""
    for number in range(20):
        message = Message("orders", number % 4, b"x" * 37, TEXTS[0].format(number))
        data += encode_record(message, number, FILE + len(data), 1_700_000_000_000)
    assert len(record_bounds(memoryview(data), 0, len(data), 50)) == 21
    return data


def test_a_record_of_no_topic_of_ours_ends_the_reading() -> None:
    assert hot is not None
    data = memoryview(plain_records())
    assert len(hot.read_facts(data, FILE, 0, len(data), 50, lambda _topic, _id: None)) == 0
    assert len(hot.read_facts(data, FILE, 0, len(data), 7, lambda _topic, _id: data)) == 7
    assert len(hot.read_facts(data, FILE, len(data), len(data), 7, lambda _topic, _id: data)) == 0
    assert len(hot.read_facts(data, 0, 0, len(data), 7, lambda _topic, _id: data)) == 0
