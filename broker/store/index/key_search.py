"""Finding records by key through the index.

A search is a generator: millions of records may share a key or its hash, so it yields now and then
and its caller decides when to resume. Its return value is the result.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from aerobee.broker.base.reports import Reports
from aerobee.broker.store.index.index_service import IndexService
from aerobee.broker.store.log.commitlog import CommitLog
from aerobee.broker.store.log.read_records import read_record
from aerobee.broker.store.results import QueryResult
from aerobee.protocol.files import properties
from aerobee.protocol.files.record_layout import CorruptRecord

CANDIDATES: Final = 64  # checked between two yields

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
    reports: Reports,
) -> Search:
    """The records that have the key, newest first; each is checked, because two keys may have the
    same hash."""
    result = QueryResult([])
    if index is None:
        return result
    try:
        index.write_pending()
    except OSError as error:
        then = "the query is answered from the keys that are written"
        reports.disk_error("a query may miss the newest keys", error, call="write", then=then)
    if index.files:
        last = index.files[-1]
        result.index_last_update_timestamp = last.end_timestamp
        result.index_last_update_physical_offset = last.end_offset
    previous = None  # two keys of a record may have the same hash: its entries are then adjacent
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
    found = properties.get(text, properties.UNIQ_KEY) == key
    return view if found or (not unique and key in properties.keys_of(text)) else None
