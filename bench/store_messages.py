"""The messages of the store benchmarks, put by the broker's own code path."""

from __future__ import annotations

from typing import NamedTuple

from aerobee.broker.store.log.rows import Row
from aerobee.broker.store.message_store import MessageStore
from aerobee.protocol.files.record import Message

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
BORN_MS = 1_700_000_000_000
LIST = 32  # messages in one put


class Batch(NamedTuple):
    """Messages that come out of one read of the sockets: as rows, and the same as objects."""

    rows: list[Row]
    messages: list[Message]


def messages(size: int, count: int, start: int = 0) -> list[Message]:
    """As a client sends them: a unique key, a key, a tag."""
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    return [
        Message(
            "BenchTopic",
            n % 8,
            body,
            f"UNIQ_KEY\x017F0000010A5B18B4AAC2{n:012X}\x02KEYS\x01order-{n}\x02TAGS\x01TagA\x02",
            born_timestamp=BORN_MS,
            born_host=HOST,
            store_host=HOST,
        )
        for n in range(start, start + count)
    ]


def batch_of(store: MessageStore, size: int, count: int, start: int = 0) -> Batch:
    made = messages(size, count, start)
    queues = store.queue_table.get_or_create
    return Batch(
        [
            (queues(m.topic, m.queue_id), m.body, m.properties, 0, 0, BORN_MS, HOST, HOST, 0, 0)
            for m in made
        ],
        made,
    )


def append(store: MessageStore, batch: Batch) -> int:
    """Put them as the broker does: as rows, or as objects where rows are not possible (at the end
    of a file). Returns the end offset of the last one."""
    facts = store.put_rows(batch.rows)
    if len(facts) == len(batch.rows):
        last = facts[-1]
        return last[2] + last[3]
    return append_objects(store, Batch([], batch.messages[len(facts) :]))


def append_objects(store: MessageStore, batch: Batch) -> int:
    """Put them as schedules, timers, retries and transactions do."""
    result = store.put(batch.messages)[-1]
    assert result.ok, result
    return result.end_offset
