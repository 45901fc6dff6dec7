"""Pulls of what is not in memory, and pulls that fail."""

import asyncio
from typing import Any

import pytest
from peers.in_process import Client, pull_ext
from peers.pulling import bodies, fill, offsets, tagged

from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.handlers.pull.reading import PullReads
from aerobee.broker.store.files import page_cache
from aerobee.broker.store.reading import filter_time
from aerobee.broker.store.results import ReadResult
from aerobee.protocol.wire.codes import ResponseCode

# --- cold reads


async def test_what_is_not_in_memory_is_read_by_a_thread(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client, 30)
    await asyncio.sleep(0.05)  # residency is cached for 20 ms
    cold_reads: list[object] = []
    real = app.broker.store.read_cold
    monkeypatch.setattr(PullReads, "recent_bytes", 0)
    monkeypatch.setattr(page_cache, "is_cached", lambda *_: False)
    monkeypatch.setattr(page_cache, "are_resident", lambda _: False)

    def counted_read(result: Any) -> Any:
        cold_reads.append(result)
        return real(result)

    monkeypatch.setattr(app.broker.store, "read_cold", counted_read)
    answers = await client.ask_all(
        [client.command(11, pull_ext("Orders", offset=n)) for n in range(20)]
    )
    assert [bodies(answer) for answer in answers] == [
        [b"%d" % n for n in range(start, 30)] for start in range(20)
    ]
    assert len(cold_reads) == 20
    monkeypatch.setattr(app.broker.store, "read_cold", _broken_read)
    answer = await client.request(11, pull_ext("Orders"))
    assert answer.code == ResponseCode.SYSTEM_ERROR and "planted" in (answer.remark or "")
    held = {file.holders for file in app.broker.store.commit_log.files.files}
    assert held == {0}


async def test_an_sql_filter_touches_no_record_that_is_not_in_memory(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tagged(client, "abcab" * 10)
    sql: dict[str, Any] = {"expressionType": "SQL92", "subscription": "letter <> 'c'"}
    sought = [b"a", b"b", b"a", b"b"] * 10
    expected = await client.request(11, pull_ext("Orders", **sql) | {"maxMsgNums": "64"})
    assert bodies(expected) == sought
    monkeypatch.setattr(PullReads, "recent_bytes", 0)
    monkeypatch.setattr(page_cache, "is_cached", lambda *_: False)
    monkeypatch.setattr(page_cache, "are_resident", lambda _: False)
    tested_in_log = []
    real = app.broker.store.read_queue

    def watched(*args: Any, matches_record: Any = None, **rest: Any) -> ReadResult:
        tested_in_log.append(matches_record)
        return real(*args, matches_record=matches_record, **rest)

    monkeypatch.setattr(app.broker.store, "read_queue", watched)
    answer = await client.request(11, pull_ext("Orders", **sql) | {"maxMsgNums": "64"})
    assert (answer.body, answer.ext) == (expected.body, expected.ext)
    some: list[bytes] = []
    offset = 0
    while offset < 50:
        answer = await client.request(11, pull_ext("Orders", 0, offset, maxMsgNums="7", **sql))
        some += bodies(answer)
        offset = offsets(answer)[0]
    assert some == sought
    none = await client.request(11, pull_ext("Orders", **sql | {"subscription": "letter = 'z'"}))
    assert none.code == ResponseCode.PULL_RETRY_IMMEDIATELY and offsets(none) == (50, 0, 50)
    assert set(tested_in_log) == {None}
    assert {file.holders for file in app.broker.store.commit_log.files.files} == {0}


@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_filter_that_takes_long_is_applied_to_a_few_records_at_a_time(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch, is_cold: bool
) -> None:
    """Thousands of terms take milliseconds for each record, in which nobody else is served."""
    await tagged(client, "abcab" * 4)
    if is_cold:
        monkeypatch.setattr(PullReads, "recent_bytes", 0)
        monkeypatch.setattr(page_cache, "is_cached", lambda *_: False)
        monkeypatch.setattr(page_cache, "are_resident", lambda _: False)
    monkeypatch.setattr(filter_time, "FILTER_S", -1.0)  # one record, as at least one is tested
    sql: dict[str, Any] = {"expressionType": "SQL92", "subscription": "letter = 'c'"}
    offset, codes = 0, []
    found: list[bytes] = []
    while offset < 20:
        answer = await client.request(11, pull_ext("Orders", 0, offset, **sql))
        assert offsets(answer)[0] > offset
        offset = offsets(answer)[0]
        codes.append(answer.code)
        found += bodies(answer) if answer.code == 0 else []
    assert found == [b"c"] * 4
    assert len(codes) == 20
    assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}
    assert {file.holders for file in app.broker.store.commit_log.files.files} == {0}


def _broken_read(_result: object) -> list[bytes]:
    raise OSError(5, "planted")


async def test_a_pull_that_breaks_fails_alone(
    app: AppBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client, 1)
    with monkeypatch.context() as patch:

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("planted")

        patch.setattr(app.broker.store, "read_plain", broken)
        patch.setattr(app.broker.store, "read_queue", broken)
        for subscription in ("*", "TagA"):
            ext = pull_ext("Orders", subscription=subscription)
            answer = await client.request(11, ext)
            assert answer.code == ResponseCode.SYSTEM_ERROR and "planted" in (answer.remark or "")
    assert (await client.request(11, pull_ext("Orders"))).code == 0
