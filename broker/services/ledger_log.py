"""The ledger of committed batches as records of the log, so that a replica has it with the rows.

A batch's `begun` is written before its rows, its `committed` after them. So a log that ends
anywhere in between shows a new master what is left to do: nothing of the batch is there, it has to
be finished, or it is complete. Records are messages of a system topic, queue 0, without
subscribers.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.redelivery import put_again
from aerobee.broker.store.message_store import MessageStore
from aerobee.protocol.files.record import Message
from aerobee.protocol.json import fastjson
from aerobee.protocol.names import SYSTEM_TOPIC_PREFIX
from aerobee.protocol.wire.codes import ResponseCode

LEDGER_TOPIC: Final = SYSTEM_TOPIC_PREFIX + "SPARK_LEDGER"
BEGUN: Final = "begun"
COMMITTED: Final = "committed"
FORGOTTEN: Final = "forgotten"
HOME: Final = "home"  # which broker commits the query's batches


class Noted(NamedTuple):
    number: int  # in the topic's queue
    physical_offset: int
    content: dict[str, Any]


def note(store: MessageStore, content: dict[str, Any]) -> None:
    """Append it to the log; Refused when the store takes nothing."""
    result = store.put_batch([Message(LEDGER_TOPIC, 0, fastjson.dumps(content), "")], accepted=True)
    if not result.ok:
        raise Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"the ledger record of {content['query']} was not stored: {result.reason}; try again",
        )


def end_of(store: MessageStore) -> int:
    """The number that the next record gets."""
    return store.queue_end(LEDGER_TOPIC, 0)


def noted_from(store: MessageStore, first: int) -> Iterator[Noted]:
    """The records from this number on that still exist."""
    for number in range(max(first, store.min_offset(LEDGER_TOPIC, 0)), end_of(store)):
        entry = store.queue_entry(LEDGER_TOPIC, 0, number)
        record = put_again.message_at(store, entry[0]) if entry is not None else None
        content = fastjson.loads(record.body) if record is not None else None
        if entry is not None and isinstance(content, dict):
            yield Noted(number, entry[0], content)


def noted_after(store: MessageStore, physical_offset: int) -> Iterator[Noted]:
    """The records at or after this offset of the log."""
    first = end_of(store)
    low = store.min_offset(LEDGER_TOPIC, 0)
    while first > low:
        entry = store.queue_entry(LEDGER_TOPIC, 0, first - 1)
        if entry is not None and entry[0] < physical_offset:
            break
        first -= 1
    return noted_from(store, first)
