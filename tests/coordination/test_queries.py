"""Finding messages by key, id and time; how far queues reach."""

from typing import Any

import pytest

from aerobee.broker.services.topics.config import TopicConfig
from aerobee.protocol.files import properties
from aerobee.protocol.files.record import decode_record, decode_records
from coordination.serving import Peer, Serving

QUERY, VIEW, SEARCH, MAX, MIN, EARLIEST = 12, 33, 29, 30, 31, 32
RANGE = {"maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}


@pytest.fixture(autouse=True)
def topic(serving: Serving) -> None:
    serving.broker.topics.put(TopicConfig("T", 2, 2))


def keyed(keys: str, unique: str = "") -> str:
    pairs = {properties.KEYS: keys} | ({properties.UNIQ_KEY: unique} if unique else {})
    return properties.encode(pairs)


async def test_messages_are_found_by_any_of_their_keys(serving: Serving, peer: Peer) -> None:
    await serving.store("T", 0, b"one", properties=keyed("a b"))
    await serving.store("T", 1, b"two", properties=keyed("b"))
    await serving.store("T", 1, b"three", properties=keyed("c"))
    answer = await peer.ask(QUERY, {"topic": "T", "key": "b"} | RANGE)
    assert answer.code == 0
    assert sorted(bytes(record.body) for record in decode_records(answer.body)) == [b"one", b"two"]
    assert int(answer.ext["indexLastUpdateTimestamp"]) > 0
    assert int(answer.ext["indexLastUpdatePhyoffset"]) >= 0


@pytest.mark.parametrize("flag", [{"_UNIQUE_KEY_QUERY": "true"}, {"indexType": "U"}])
async def test_a_unique_key_finds_its_message_whatever_the_count(
    serving: Serving, peer: Peer, flag: dict[str, str]
) -> None:
    await serving.store("T", 0, b"one", properties=keyed("k", "0A1B2C"))
    ext: dict[str, Any] = {"topic": "T", "key": "0A1B2C"} | RANGE | {"maxNum": 0} | flag
    answer = await peer.ask(QUERY, ext)
    assert [record.body for record in decode_records(answer.body)] == [b"one"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"key": "unknown"}, 22),
        ({"beginTimestamp": 2**61}, 22),
        ({"topic": "nope"}, 22),
        ({"topic": "../nope"}, 22),
        ({"maxNum": 0}, 22),
        ({"maxNum": -3}, 22),
        ({"maxNum": 2**40}, 29),
        ({"beginTimestamp": "yesterday"}, 29),
    ],
)
async def test_a_query_that_finds_nothing_says_why(
    serving: Serving, peer: Peer, changes: dict[str, Any], code: int
) -> None:
    await serving.store("T", 0, b"one", properties=keyed("k"))
    answer = await peer.ask(QUERY, {"topic": "T", "key": "k"} | RANGE | changes)
    assert answer.code == code
    assert answer.remark


async def test_a_query_for_many_brings_no_more_than_the_limit(serving: Serving, peer: Peer) -> None:
    for _ in range(70):
        await serving.store("T", 0, b"x", properties=keyed("k"))
    answer = await peer.ask(QUERY, {"topic": "T", "key": "k"} | RANGE | {"maxNum": 1000000})
    assert len(decode_records(answer.body)) == 64


async def test_a_message_is_found_by_the_offset_in_its_id(serving: Serving, peer: Peer) -> None:
    await serving.store("T", 0, b"one")
    stored = await serving.store("T", 0, b"two")
    answer = await peer.ask(VIEW, {"offset": stored.physical_offset})
    record = decode_record(answer.body)
    assert (record.body, record.physical_offset) == (b"two", stored.physical_offset)


@pytest.mark.parametrize("offset", [-1, 1, 50, 2**40, 2**62])
async def test_an_offset_where_no_message_begins_finds_none(
    serving: Serving, peer: Peer, offset: int
) -> None:
    await serving.store("T", 0, b"one")
    answer = await peer.ask(VIEW, {"offset": offset})
    assert answer.code == 1
    assert str(offset) in str(answer.remark)


async def test_offsets_by_time_have_both_boundaries(serving: Serving, peer: Peer) -> None:
    times = []
    for _ in range(3):
        times.append((await serving.store("T", 0, b"x")).store_timestamp)
        await serving.clock.advance(1)
    ext = {"topic": "T", "queueId": 0}

    async def found(moment: int, boundary: str = "") -> int:
        more = {"timestamp": moment} | ({"boundaryType": boundary} if boundary else {})
        return int((await peer.ask(SEARCH, ext | more)).ext["offset"])

    assert await found(times[1]) == 1
    assert await found(times[0] + 1, "LOWER") == 1
    assert await found(times[1] + 1, "upper") == 1
    assert await found(times[2] + 1, "lower") == 3
    assert await found(0, "UPPER") == 0
    assert await found(times[1], "whatever") == 1


async def test_a_queues_bounds_and_its_earliest_time(serving: Serving, peer: Peer) -> None:
    stored = await serving.store("T", 1, b"x")
    ext = {"topic": "T", "queueId": 1}
    assert (await peer.ask(MAX, ext)).ext == {"offset": "1"}
    assert (await peer.ask(MIN, ext)).ext == {"offset": "0"}
    assert (await peer.ask(EARLIEST, ext)).ext == {"timestamp": str(stored.store_timestamp)}
    empty = {"topic": "T", "queueId": 0}
    assert (await peer.ask(MAX, empty)).ext == {"offset": "0"}
    assert (await peer.ask(EARLIEST, empty)).ext == {"timestamp": "-1"}


@pytest.mark.parametrize("code", [SEARCH, MAX, MIN, EARLIEST])
async def test_queues_that_are_not_there_are_empty_and_not_made(
    serving: Serving, peer: Peer, code: int
) -> None:
    ext = {"topic": "T", "queueId": 77, "timestamp": 5}
    empty = {"timestamp": "-1"} if code == EARLIEST else {"offset": "0"}
    for changes in ({}, {"queueId": -1}, {"topic": "nope"}, {"topic": "../x"}, {"topic": ""}):
        answer = await peer.ask(code, ext | changes)
        assert (answer.code, answer.ext) == (0, empty)
    assert (await peer.ask(code, {"topic": "T"})).code == 29
    assert not serving.broker.store.queues()
