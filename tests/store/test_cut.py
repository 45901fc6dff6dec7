"""A log that is cut at a record's end: all that is derived from it goes back with it."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest
from crash.sim_disk import PowerLoss, SimDisk
from effort import examples

from aerobee.broker.base.clock import VirtualClock
from aerobee.broker.store.files.disk import make_folder
from aerobee.broker.store.files.real_disk import RealDisk
from aerobee.broker.store.inspect.files import open_directory
from aerobee.broker.store.inspect.verify import verify
from aerobee.broker.store.message_store import MessageStore
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files.record import Message

TOPICS = ("Orders", "Payments")


def settings_of(root: str) -> StoreSettings:
    return StoreSettings(
        store_path_root_dir=root,
        mapped_file_size_commit_log=8192,
        mapped_file_size_consume_queue=20 * 16,
        max_hash_slot_num=10,
        max_index_num=20,
        disk_guard_enable=False,
    )


def opened(
    settings: StoreSettings, disk: SimDisk | RealDisk, cut_to: int | None = None
) -> MessageStore:
    store = MessageStore(settings, clock=VirtualClock(), disk=disk, ahead=False)
    store.load(cut_to=cut_to)
    return store


def fill(store: MessageStore, messages: int, seed: int) -> list[tuple[int, int, Message, int]]:
    """(start, end, message, queue offset) of each."""
    rng = random.Random(seed)
    stored = []
    for number in range(messages):
        message = Message(
            rng.choice(TOPICS),
            rng.randrange(2),
            bytes(rng.randrange(500)),
            f"KEYS\x01k{number}\x02",
        )
        (result,) = store.put([message])
        assert result.ok
        stored.append((result.physical_offset, result.end_offset, message, result.queue_offset))
    return stored


def check(store: MessageStore, kept: list[tuple[int, int, Message, int]], keys: int) -> None:
    """These messages are there, at their places, and no others."""
    queues: dict[tuple[str, int], int] = {}
    for start, end, message, queue_offset in kept:
        where = message.topic, message.queue_id
        queues[where] = max(queues.get(where, 0), queue_offset + 1)
        assert store.queue_entry(*where, queue_offset)[:2] == (start, end - start)  # type: ignore[index]
    for topic in TOPICS:
        for queue_id in range(2):
            assert store.max_offset(topic, queue_id) == queues.get((topic, queue_id), 0)
            assert store.queue_end(topic, queue_id) == queues.get((topic, queue_id), 0)
    assert store.index is not None
    for number in range(keys):
        places = [start for start, _, _, _ in kept[number : number + 1]]
        found = [
            offset
            for topic in TOPICS
            for offset in store.index.find(topic, f"k{number}", 0, 1 << 62)
        ]
        assert found == places, f"key {number}"


@pytest.mark.parametrize("seed", range(examples(3, share=2)))
def test_a_cut_at_every_record_leaves_what_was_before_it(tmp_path: Path, seed: int) -> None:
    first = opened(settings_of(f"{tmp_path}/0"), RealDisk())
    stored = fill(first, 70, seed)
    first.close()
    disk, settings = RealDisk(), settings_of(f"{tmp_path}/0")
    for kept in range(len(stored) - 1, -1, -7):
        end = stored[kept - 1][1] if kept else 0
        store = opened(settings, disk, cut_to=end)
        assert store.max_physical_offset == store.flushed_offset == end
        check(store, stored[:kept], 70)
        store.close()
        assert not verify(open_directory(settings.store_path_root_dir), lambda *_: None).problems
        store = opened(settings, disk)
        check(store, stored[:kept], 70)
        store.close()


def test_what_is_put_after_a_cut_follows_what_was_kept(tmp_path: Path) -> None:
    disk, settings = RealDisk(), settings_of(f"{tmp_path}/0")
    store = opened(settings, disk)
    stored = fill(store, 60, 1)
    store.close()
    store = opened(settings, disk, cut_to=stored[19][1])
    again = fill(store, 30, 2)
    assert again[0][0] >= stored[19][1]
    for where in {(message.topic, message.queue_id) for _, _, message, _ in again}:
        all_of = [*stored[:20], *again]
        numbers = [at for _, _, m, at in all_of if (m.topic, m.queue_id) == where]
        assert numbers == list(range(len(numbers)))
    store.close()


@pytest.mark.parametrize("seed", range(examples(4, share=2)))
def test_cut_tail_is_gone_after_a_power_cut(seed: int) -> None:
    """The power goes at each call to the disk: what is left is the old log or a part of it, in
    order; the same cut then comes to its end, and stays."""
    rng = random.Random(seed)
    origin = SimDisk()
    make_folder(origin, "/store/config")
    settings = settings_of("/store")
    store = opened(settings, origin)
    stored = fill(store, 60, seed)
    store.close()
    kept = rng.randrange(60)
    end = stored[kept - 1][1] if kept else 0
    for calls in count():
        disk = origin.copy()
        disk.power_left = calls
        try:
            opened(settings, disk, cut_to=end).abandon()
            disk.power_left = None
            ended = True
        except PowerLoss:
            ended = False
        disk = disk.lose_power(rng)
        if not ended:
            store = opened(settings, disk)
            found = sum(
                1 for _, record_end, _, _ in stored if record_end <= store.max_physical_offset
            )
            assert found >= kept
            check(store, stored[:found], 60)
            store.close()
            opened(settings, disk, cut_to=end).abandon()
            disk = disk.lose_power(rng)
        store = opened(settings, disk)
        assert store.max_physical_offset == end, "nothing of the tail is back"
        check(store, stored[:kept], 60)
        store.close()
        if ended:
            break
