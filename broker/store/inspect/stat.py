"""A summary of a store directory: topics, queues, ranges, times, sizes; reads little of the log."""

from __future__ import annotations

import os
from typing import Any

from aerobee.broker.store.inspect.files import (
    QueueKey,
    RestFile,
    RestStore,
    log_end,
    record_at,
)
from aerobee.broker.store.inspect.index import header_of, slots_of
from aerobee.broker.store.inspect.queue import RestQueue


def stat(store: RestStore) -> dict[str, Any]:
    """The whole directory, as JSON has it; times are milliseconds since 1970."""
    begin = store.log_begin
    end = log_end(store)
    point = store.checkpoint
    queues = [_queue(store, key) for key in sorted(store.queues)]
    # The newest of the queues' last records: near enough, and no file has to be scanned.
    newest = max((row["last_stored"] for row in queues if row["last_stored"]), default=None)
    return {
        "directory": store.root,
        "stopped_cleanly": store.stopped_cleanly,
        "commitlog": {
            **_files(store.log),
            "begin_offset": begin,
            "end_offset": end,
            "first_stored": _time(store, begin),
            "last_stored": newest,
        },
        "queues": queues,
        "consumequeue": _files([file for files in store.queues.values() for file in files]),
        "index": _files(store.index) | {"index_files": _index(store)},
        "checkpoint": {
            "physic_msg_timestamp": point.physic_msg_timestamp,
            "logics_msg_timestamp": point.logics_msg_timestamp,
            "index_msg_timestamp": point.index_msg_timestamp,
            "dispatched_offset": point.dispatched_offset if point.dispatched_offset >= 0 else None,
        },
        "problems": [str(problem) for problem in store.problems],
    }


def _files(files: list[RestFile]) -> dict[str, int]:
    return {
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "bytes_on_disk": sum(file.allocated for file in files),
    }


def _queue(store: RestStore, key: QueueKey) -> dict[str, Any]:
    queue = RestQueue(store, key)
    places, entries = queue.places[queue.live], queue.entries[queue.live]
    offsets = entries["offset"]
    return {
        "topic": key[0],
        "queue_id": key[1],
        "min_offset": int(places[0]) if places.size else queue.max_offset,
        "max_offset": queue.max_offset,
        "messages": len(entries),
        "message_bytes": int(entries["size"].sum()),
        "first_stored": _time(store, int(offsets[0])) if offsets.size else None,
        "last_stored": _time(store, int(offsets[-1])) if offsets.size else None,
    }


def _time(store: RestStore, offset: int) -> int | None:
    found = record_at(store, offset)
    return found[1].store_timestamp if found else None


def _index(store: RestStore) -> list[dict[str, Any]]:
    slots_by_size = slots_of(store)
    rows = []
    for file in store.index:
        header = header_of(file)
        rows.append(
            {
                "name": os.path.basename(file.path),
                "slots": slots_by_size[file.size] or None,
                "used_slots": header.used_slots,
                "entries": header.next_number - 1,
                "begin_offset": header.begin_offset,
                "end_offset": header.end_offset,
                "first_stored": header.begin_timestamp or None,
                "last_stored": header.end_timestamp or None,
            }
        )
    return rows
