"""Finding records by key through the index.

A search is a generator: millions of records may share a key or its hash, so it pauses now and then
and whoever runs it decides when it goes on. What it returns at its end is the result.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import structlog

from aerobee.broker.store.commitlog import CommitLog
from aerobee.broker.store.index_service import IndexService
from aerobee.broker.store.results import QueryResult
from aerobee.broker.store.scan import read_record
from aerobee.protocol import properties as message_properties
from aerobee.protocol.record import CorruptRecord

log = structlog.get_logger("aerobee.store")

CANDIDATES: Final = 64  # looked at between two pauses

Search = Generator[None, None, QueryResult]


def search_key(
    commit_log: CommitLog,
    index: IndexService | None,
    topic: str,
    key: str,
    max_count: int,
    begin_ms: int,
    end_ms: int,
    unique: bool,
) -> Search:
    """The records that have the key, newest first; each is checked, so that two keys with one
    hash are told apart."""
    result = QueryResult([])
    if index is None:
        return result
    try:
        index.write_pending()
    except OSError as error:
        log.warning("a query may miss the newest keys", reason=str(error))
    if index.files:
        last = index.files[-1]
        result.index_last_update_timestamp = last.end_timestamp
        result.index_last_update_physical_offset = last.end_offset
    previous = None  # both keys of a record may have one hash: its entries follow each other
    for number, offset in enumerate(index.find(topic, key, begin_ms, end_ms), 1):
        if offset is None or number % CANDIDATES == 0:
            yield
        if offset is None or offset == previous:
            continue
        previous = offset
        view = _with_key(commit_log, offset, topic, key, begin_ms, end_ms, unique)
        if view is not None:
            result.views.append(view)
            if len(result.views) >= max_count:
                break
    return result


def _with_key(
    commit_log: CommitLog,
    offset: int,
    topic: str,
    key: str,
    begin_ms: int,
    end_ms: int,
    unique: bool,
) -> memoryview | None:
    file = commit_log.find_readable(offset)
    if file is None:
        return None
    try:
        record, view = read_record(file, offset)
    except CorruptRecord:
        return None
    if record.topic != topic.encode() or not begin_ms <= record.store_timestamp <= end_ms:
        return None
    text = str(view[record.properties_position :], "utf-8", "replace")
    if message_properties.get(text, message_properties.UNIQ_KEY) != key and (
        unique
        or key not in (message_properties.get(text, message_properties.KEYS) or "").split(" ")
    ):
        return None
    return view
