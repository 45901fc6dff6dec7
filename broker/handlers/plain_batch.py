"""Batches whose messages are all plain, cut and encoded in C if the compiled part is installed.

Unusual ones are left to `handlers.send_batch`, which has all the rules: nothing is refused here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from aerobee.broker.compiled import compiled, hot
from aerobee.broker.handlers.send_rules import UNUSUAL_SYS_FLAGS
from aerobee.broker.store.message_store import MessageStore
from aerobee.protocol.files import properties
from aerobee.protocol.files.properties import NAME_END, PAIR_END_BYTES
from aerobee.protocol.files.record import StoredMessage

if TYPE_CHECKING:
    from aerobee.broker.compiled import _hot

# Parts of the names of delays; a copy's old checksum.
UNUSUAL_PARTS: Final = ("DELAY", "TIMER_", properties.CRC32)


@cache
def batch_rules() -> _hot.Rules:
    make: type[_hot.Rules] = compiled().Rules
    names = tuple(name.encode() for name in UNUSUAL_PARTS)
    unique = f"{properties.UNIQ_KEY}{NAME_END}".encode()
    no_wait = f"{properties.WAIT}{NAME_END}false".encode()
    return make(unique, no_wait, names, UNUSUAL_SYS_FLAGS, PAIR_END_BYTES)


def plain_batch(
    body: bytes, queue: Any, numbers: tuple[int, int, int], hosts: tuple[bytes, bytes]
) -> _hot.Run | None:
    """The messages in a batch's body, to be answered together; None: the general path has to check
    them. `numbers`: sys flag, born timestamp, reconsume times."""
    if hot is None:
        return None
    run: _hot.Run | None = hot.batch(body, queue, batch_rules(), *numbers, *hosts)
    return run


def put_plain_rows(
    store: MessageStore, topic: str, queue_id: int, rows: StoredMessage
) -> tuple[int, int] | None:
    """Publishes the rows in a prepared record's body as they are; returns their number and bytes.
    None: nothing was put, and the general path has to do it."""
    queue = store.queue_table.get(topic, queue_id)
    if queue is None or not queue.topic_field:
        return None
    hosts = (rows.born_host, rows.store_host)
    run = plain_batch(bytes(rows.body), queue, (0, rows.born_timestamp, 0), hosts)
    put = None if run is None else store.put_plain_batch(run, topic)
    return None if run is None or put is None else (len(run), put.size)
