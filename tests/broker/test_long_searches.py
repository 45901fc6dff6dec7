"""A key shared by very many records: only the client that searches for it waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from effort import examples
from peers.in_process import Client, running_broker
from waiting import until

from aerobee.broker.services.searches import Searches
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.store.index.key_search import Search
from aerobee.broker.store.results import QueryResult
from aerobee.protocol.files.record import Message

QUERY, MAX_OFFSET = 12, 30
COUNT = examples(100_000, 50_000)
UNIQUE: dict[str, str] = {
    "topic": "T",
    "key": "k",
    "_UNIQUE_KEY_QUERY": "true",
    "maxNum": "32",
    "beginTimestamp": "0",
    "endTimestamp": str(2**62),
}
LARGE: dict[str, Any] = {"max_index_num": 2 * COUNT, "mapped_file_size_commit_log": 64 << 20}


async def test_others_are_served_while_a_long_search_is_running(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **LARGE) as app:
        store = app.broker.store
        app.broker.topics.put(TopicConfig("T", 1, 1))
        many = [Message("T", 0, b"", "KEYS\x01k\x02") for _ in range(1000)]
        for _ in range(COUNT // len(many)):
            assert store.put(many)[-1].ok
        store.reput.catch_up()
        searcher, leaver, other = [await Client.connect(app) for _ in range(3)]
        searches = [asyncio.create_task(searcher.request(QUERY, UNIQUE)) for _ in range(2)]
        left = asyncio.create_task(leaver.request(QUERY, UNIQUE))
        asked = 0
        while not all(task.done() for task in searches):
            answer = await other.request(MAX_OFFSET, {"topic": "T", "queueId": "0"})
            assert answer.ext["offset"] == str(COUNT)
            asked += 1
            if asked == 10:
                left.cancel()
                await leaver.close()
        assert [(await task).code for task in searches] == [22, 22], "no record has it as its own"
        assert asked > 50, "the searches kept the others waiting"
        await until(lambda: not app.broker.searches)
        await searcher.close()
        await other.close()


async def test_a_short_search_does_not_wait_for_the_end_of_a_long_one() -> None:
    """A user could keep others from finding anything, by keys with the same hash."""

    def endless() -> Search:
        while True:
            yield

    def short() -> Search:
        for _ in range(3):
            yield
        return QueryResult([])

    searches, is_wanted = Searches(), [True]
    found: list[QueryResult | Exception] = []
    searches.start(endless(), found.append, lambda: is_wanted[0])
    searches.start(endless(), found.append, lambda: is_wanted[0])
    searches.start(short(), found.append, lambda: True)
    await until(lambda: found, 10)
    assert len(searches) == 2
    is_wanted[0] = False
    await until(lambda: not len(searches))
