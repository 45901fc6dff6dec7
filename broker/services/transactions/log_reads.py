"""What a start reads: the two queues of transactions, and the end of the log."""

from bisect import bisect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.transactions.ops import QUEUE_ID
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    StoredMessage,
    decode_records,
)
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.names import TRANSACTION_HALF_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

_READ_COUNT: Final = 512
_READ_BYTES: Final = 4 << 20


def queue_messages(
    store: "MessageStore",
    topic: str,
    queue_offset: int,
    unreadable: Callable[[int, OSError], None],
) -> Iterator[StoredMessage]:
    """The messages of a queue from here to its end, without those on bad sectors, whose queue
    offsets are passed to `unreadable`."""
    while True:
        found = store.read_queue(topic, QUEUE_ID, queue_offset, _READ_COUNT, max_bytes=_READ_BYTES)
        try:
            yield from decode_records(store.read_cold(found))
        except (CorruptRecord, OSError):
            for number in range(queue_offset, found.next_offset):
                try:
                    one = range(number, number + 1)
                    yield from put_again.sound_messages(store, topic, QUEUE_ID, one)
                except OSError as error:
                    unreadable(number, error)
        finally:
            found.release()
        if found.next_offset <= queue_offset:
            return
        queue_offset = found.next_offset


def half_of_last_commit(store: "MessageStore", log_end: int) -> StoredMessage | None:
    """The half message of the last record in the log at the start, which ended at `log_end`, if
    that is a committed message; else None. The padding of a full file may follow it."""
    entries = (
        _last_entry(store, topic, queue_id, log_end)
        for topic, queue_ids in store.queues().items()
        for queue_id in queue_ids
    )
    last = max((entry for entry in entries if entry is not None), default=None)
    message = put_again.message_at(store, last[0], last[1]) if last is not None else None
    return _half_of(store, message) if message is not None else None


def _last_entry(
    store: "MessageStore", topic: str, queue_id: int, log_end: int
) -> tuple[int, int, int] | None:
    """The last of a queue that was there at the start."""
    offsets = range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))

    def is_newer(queue_offset: int) -> bool:
        entry = store.queue_entry(topic, queue_id, queue_offset)
        return entry is not None and entry[0] >= log_end

    last = offsets.start + bisect(offsets, False, key=is_newer) - 1
    return store.queue_entry(topic, queue_id, last)


def _half_of(store: "MessageStore", message: StoredMessage) -> StoredMessage | None:
    """The half message that this one delivers."""
    if message.sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
        return None
    half = put_again.message_at(store, message.prepared_transaction_offset)
    if half is None or half.topic != TRANSACTION_HALF_TOPIC or half.body != message.body:
        return None
    is_same = half.property(props.UNIQ_KEY) == message.property(props.UNIQ_KEY)
    return half if is_same else None
