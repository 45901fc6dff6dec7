"""Messages of transactions that stand on bad sectors: they hold up neither a start nor the checks.

A half message is read again in each round of checks, and the progress waits for it: a start finds
it again. Without an op message the transactions that it ends look open, and their producers are
asked.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.transactions.ops import QUEUE_ID
from aerobee.protocol.files.record import StoredMessage
from aerobee.protocol.names import TRANSACTION_HALF_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore


def half_message(store: "MessageStore", queue_offset: int) -> StoredMessage | None:
    """A message of the half topic; None when it is gone or damaged. OSError on a bad sector."""
    entry = store.queue_entry(TRANSACTION_HALF_TOPIC, QUEUE_ID, queue_offset)
    return put_again.message_at(store, entry[0], entry[1]) if entry else None


class Unread:
    """The queue offsets of half messages that could not be read."""

    def __init__(self, store: "MessageStore") -> None:
        self._store = store
        self.offsets: set[int] = set()

    def warn(self, _queue_offset: int, error: OSError) -> None:
        self._store.reports.disk_error(
            "a message of a transaction cannot be read",
            error,
            call="read",
            then="the other transactions continue; retried with the next round of checks",
        )

    def note(self, queue_offset: int, error: OSError) -> None:
        self.offsets.add(queue_offset)
        self.warn(queue_offset, error)

    def read_again(self) -> Iterator[StoredMessage]:
        """Those that can be read now."""
        for queue_offset in sorted(self.offsets):
            try:
                half = half_message(self._store, queue_offset)
            except OSError as error:
                self.warn(queue_offset, error)
                continue
            self.offsets.discard(queue_offset)
            if half is not None:
                yield half

    def has_before(self, queue_offset: int) -> bool:
        return any(offset < queue_offset for offset in self.offsets)
