"""Dispatch of a block of records read from the log: queue entries and keys, in whole columns.

A block that is not plain (a gap in a queue's offsets, deliver times, extension units, a queue with
listeners, an invalid topic) is left to the fallback path, which goes record by record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerobee.broker.compiled import hot
from aerobee.broker.store.dispatch.entries import MANY_QUEUES
from aerobee.broker.store.index.index_service import IndexService
from aerobee.broker.store.log.scan_block import Block
from aerobee.broker.store.queues.consume_queue import KEPT_MAX, ConsumeQueue
from aerobee.broker.store.queues.queue_table import QueueTable
from aerobee.protocol.files.java_hash_columns import fold_hashes
from aerobee.protocol.files.properties_columns import Keys, read_properties
from aerobee.protocol.files.queue_entry_columns import ENTRY_TYPE
from aerobee.protocol.files.record import NOT_IN_QUEUE, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from aerobee.protocol.files.record_columns import groups, rows

Column = NDArray[Any]
Lane = tuple[ConsumeQueue, Column, Column]  # its records in the block: all, those without entry
# Entries by queue; hashes, physical offsets and store times of keys, 64 bits each.
Derived = tuple[list[tuple[ConsumeQueue, bytes]], tuple[bytes, bytes, bytes]]


def dispatch_block(
    queues: QueueTable,
    index: IndexService | None,
    view: memoryview,
    base: int,
    block: Block,
    opened_max: int | None = None,
) -> bool:
    """Write the block's queue entries and keys. False, with nothing written, if the block is not
    plain or more than `opened_max` queues would need their first file. OSError on a disk error."""
    lanes = []
    for topic, queue_id, which in _by_queue(view, block):
        queue = queues.of_record(topic, queue_id)
        lane = _lane(queue, base, block, which) if queue is not None else None
        if lane is None:
            return False
        lanes.append(lane)
    if opened_max is not None and sum(lane[0].writing is None for lane in lanes) > opened_max:
        return False
    codes, keys = read_properties(view, block.props_at, block.end - block.props_at)
    entries = np.empty(len(block), ENTRY_TYPE)
    entries["offset"] = block.start + base
    entries["size"] = block.end - block.start
    entries["code"] = codes
    _put_runs([(queue, entries[lacking].tobytes()) for queue, _, lacking in lanes])
    if index is not None:
        _add_keys(index, keys, lanes, base, block)
    return True


def dispatch_derived(
    index: IndexService | None, derived: Derived, opened_max: int | None = None
) -> bool:
    """The same for records whose entries and keys the compiled code has derived already."""
    lanes, keys = derived
    if opened_max is not None:
        opened = sum(queue.writing is None for queue, entries in lanes if entries)
        if opened > opened_max:
            return False
    _put_runs(lanes)
    if index is not None:
        index.write_pending()
        hashes, offsets, times = (np.frombuffer(column, np.int64) for column in keys)
        wanted = int(np.searchsorted(offsets, index.indexed_offset, "right"))
        if wanted < len(offsets):
            index.add_hashed(hashes[wanted:], offsets[wanted:], times[wanted:])
    return True


def _put_runs(lanes: list[tuple[ConsumeQueue, bytes]]) -> None:
    are_many = len(lanes) > MANY_QUEUES
    if are_many and hot is not None:
        hot.keep_entries(lanes, KEPT_MAX)
        return
    for queue, entries in lanes:
        if entries:
            if are_many:
                queue.keep(entries)
            else:
                queue.put_run(entries)
        # Also of those that an earlier try has added before the disk refused them.
        if queue.assigned < queue.max_offset:
            queue.assigned = queue.max_offset


def number_block(queues: QueueTable, view: memoryview, block: Block) -> None:
    """Advance each queue's assigned offset past the block's records; writes no entry."""
    for topic, queue_id, which in _by_queue(view, block):
        queue = queues.of_record(topic, queue_id)
        taken = block.queue_offset[which[block.sys_flag[which] & NOT_IN_QUEUE == 0]]
        if queue is not None and taken.size:
            queue.assigned = int(taken[-1]) + 1


def _by_queue(view: memoryview, block: Block) -> Iterator[tuple[bytes, int, Column]]:
    """The records of each (topic, queue id)."""
    for size, which in groups(block.topic_size):
        at = block.body_end[which] + 1
        names = rows(view, at, size)
        while which.size:
            same = (names == names[0]).all(1)
            topic, members = names[0].tobytes(), which[same]
            for queue_id, found in groups(block.queue_id[members]):
                yield topic, queue_id, members[found]
            which, names = which[~same], names[~same]


def _lane(queue: ConsumeQueue, base: int, block: Block, which: Column) -> Lane | None:
    """The queue's records that have no entry yet; None if they do not continue its end."""
    if queue.listened or not queue.plain_tags:
        return None
    lacking = which[
        (block.sys_flag[which] & NOT_IN_QUEUE == 0)
        & (block.end[which] + base > queue.max_physical_offset)
    ]
    expected = np.arange(queue.max_offset, queue.max_offset + lacking.size)
    if (block.queue_offset[lacking] != expected).any():
        return None
    return queue, which, lacking


def _add_keys(index: IndexService, keys: Keys, lanes: list[Lane], base: int, block: Block) -> None:
    index.write_pending()
    prefixes = np.empty(len(block), np.uint32)
    for queue, which, _ in lanes:
        prefixes[which] = queue.key_hash
    records, hashes, powers = keys.in_order()
    offsets = block.start[records] + base
    wanted = (block.sys_flag[records] & TRANSACTION_MASK != TRANSACTION_ROLLBACK) & (
        offsets > index.indexed_offset
    )
    if wanted.any():
        values = fold_hashes(prefixes[records[wanted]] * powers[wanted] + hashes[wanted])
        index.add_hashed(values, offsets[wanted], block.time[records[wanted]])
