"""Every byte that is stored through a map has a block on disk first: on a full disk a store to a
page without one ends the process. The simulated disk complains of such a store at the next sync."""

from __future__ import annotations

import pytest

from aerobee.broker.store.queues import consume_queue
from store.rmq_lab import Lab, bodies, checkpoint, found, numbered, put, settle


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_a_queue_that_was_closed_in_order_gets_blocks_before_it_grows(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_queue, "ALLOCATION_CHUNK", 4096)
    big = {"mapped_file_size_consume_queue": 20 * 1024}
    store = lab.open(**big)
    put(store, *numbered(0, 100))
    settle(store)
    store.close()
    store = lab.open(**big)
    put(store, *numbered(100, 300))  # beyond the first 4096 bytes of the queue's file
    settle(store)
    checkpoint(store)
    assert len(bodies(store)) == 300


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_an_index_file_with_holes_gets_blocks_before_it_is_written(lab: Lab, how: str) -> None:
    """RocketMQ writes its index into a file without blocks, and a copy may leave zeros out."""
    slots = {"max_hash_slot_num": 64 * 1024}
    store = lab.open(**slots)
    put(store, *numbered(0, 20))
    settle(store)
    checkpoint(store)
    if how == "closed":
        store.close()
    else:
        lab.kill()
    for path, inode in lab.disk.names.items():
        if "/index/" in path:
            pages = range(0, len(inode.current), 4096)
            used = [at for at in pages if any(inode.current[at : at + 4096])]
            assert len(used) < len(pages) / 2
            inode.allocated = [(at, at + 4096) for at in used]
    store = lab.open(**slots)
    put(store, b"elsewhere in the table of slots")
    settle(store)
    checkpoint(store)
    assert [len(found(store, key)) for key in ("00000000", "00000019", "elsewher")] == [1, 1, 1]
