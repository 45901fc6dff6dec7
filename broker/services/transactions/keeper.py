"""Open transactions outlive the files that hold their half messages: they are stored again."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.transactions.ops import QUEUE_ID
from aerobee.broker.services.transactions.service import Transactions
from aerobee.broker.store.retention.keepers import Standing
from aerobee.protocol.files.record import StoredMessage
from aerobee.protocol.names import TRANSACTION_HALF_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

_AT_ONCE: Final = 64


class TransactionKeeper:
    """Copies half messages as a check does, without asking a producer. A kill between the copy and
    its op leaves two copies of one root: the newer one counts."""

    kind = "half"

    def __init__(self, store: "MessageStore", transactions: Transactions) -> None:
        self._store = store
        self._transactions = transactions
        self.carried = self.carried_bytes = 0
        self.problem = ""

    def carry(self, end: int, may_put: bool) -> Standing:
        transactions = self._transactions
        if not transactions.prepare():
            return Standing.BUSY
        transactions.read_halves()
        stop = self._first_after(end)
        if transactions.unread.has_before(stop):
            self.problem = "a half message cannot be read from disk"
            return Standing.STUCK
        found = transactions.open_before(stop, _AT_ONCE)
        if not found:
            return Standing.CLEAR
        if not may_put:
            self.problem = "half messages fill most of the file: too little would be freed"
            return Standing.STUCK
        size = 0
        for root, queue_offset in found:
            half = transactions.half_at(root, queue_offset)
            if half is None:
                continue
            copied = transactions.carry(root, half)
            if copied is None:
                self.problem = "a half message could not be stored again"
                return Standing.STUCK
            self.carried += 1
            self.carried_bytes += copied.size
            size += copied.size
            if size >= put_again.BATCH_BYTES_MAX:
                break
        return Standing.BUSY

    def waiting(self, end: int) -> Iterator[StoredMessage]:
        transactions = self._transactions
        if not transactions.prepare():
            return
        for root, queue_offset in transactions.open_halves():
            if queue_offset >= self._first_after(end):
                return
            half = transactions.half_at(root, queue_offset)
            if half is not None:
                yield half

    def _first_after(self, end: int) -> int:
        return put_again.first_at_or_after(self._store, TRANSACTION_HALF_TOPIC, QUEUE_ID, end)
