"""Transactions: half messages, their end, and which are still open.

All state is in two queues and two offsets of group CID_RMQ_SYS_TRANS, as in every RocketMQ:
RMQ_SYS_TRANS_HALF_TOPIC holds the half messages, RMQ_SYS_TRANS_OP_HALF_TOPIC the queue offsets of
those that are done. A check appends the half message again (with one more check counted) and marks
the old copy as done; every copy names the first one's queue offset, the transaction's root. So a
transaction is open as long as its root is in `_open`, whichever copy a producer ends, and a second
end finds it closed: it is delivered once.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

import structlog

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.offsets import Offsets
from aerobee.broker.services.put_hooks import PutHooks
from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.topics.table import Topics
from aerobee.broker.services.transactions.counts import EndCounts
from aerobee.broker.services.transactions.log_reads import half_of_last_commit, queue_messages
from aerobee.broker.services.transactions.ops import QUEUE_ID, op_message, op_offsets, root_of
from aerobee.broker.services.transactions.unread import Unread, half_message
from aerobee.broker.store.results import PutResult
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    Message,
    StoredMessage,
)
from aerobee.protocol.names import (
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)
from aerobee.protocol.wire.codes import ResponseCode

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.transactions")

Put = Callable[[Sequence[Message]], list[PutResult]]


class EndRequest(NamedTuple):
    """A producer's commit or rollback of a half message."""

    group: str
    queue_offset: int
    physical_offset: int
    commit: bool
    transaction_id: str = ""  # the message's unique key, if the producer says it


class _Progress(NamedTuple):
    log_end: int  # valid once the log is on disk up to here
    half: int
    op: int


class Transactions:
    """Half messages, and which of them are open."""

    def __init__(
        self,
        store: "MessageStore",
        topics: Topics,
        offsets: Offsets,
        hooks: PutHooks,
        count_put: put_again.CountPut = put_again.not_counted,
    ) -> None:
        self._store = store
        self._count_put = count_put
        self._topics = topics
        self._offsets = offsets
        self._hooks = hooks
        self._open: dict[int, int] = {}  # root -> queue offset of its newest copy
        self._left: dict[int, int] = {}  # queue offset of a copy whose file has gone -> root
        self._read = -1  # half messages before this queue offset are known; -1: none yet
        self._done: set[int] = set()  # not yet read, but ended already
        self.unread = Unread(store)
        self._ops: deque[tuple[int, int]] = deque()  # op queue offset, half queue offset
        self._op_due: list[int] = []  # half messages whose op could not be written
        self._prepared_at = 0
        self._progress: deque[_Progress] = deque()
        self.counts = EndCounts()

    def load(self) -> None:
        """The store is loaded; its queues may still be catching up with its log."""
        self._prepared_at = self._store.max_physical_offset
        if not self._store.was_stopped:
            self.prepare()  # a commit that lacks its op gets it before anything else is stored

    def is_open(self, half: StoredMessage) -> bool | None:
        """Whether this half message's transaction is still open; None: not known yet."""
        if not self.prepare():
            return None
        if half.queue_offset >= self._read:
            return half.queue_offset not in self._done
        return root_of(half) in self._open

    @property
    def open_count(self) -> int:
        return len(self._open)

    def carried_topic(self, physical_offset: int, queue_offset: int) -> str | None:
        """The topic of the half message that `end` takes if none can be at this physical offset
        any more; None: one can, or there is none."""
        if physical_offset >= self._store.readable_from or not self.prepare():
            return None
        request = EndRequest("", queue_offset, physical_offset, commit=False)
        half = self._carried_half(request)
        return None if half is None else half.property(props.REAL_TOPIC)

    # --- the end of a transaction

    def end(self, request: EndRequest) -> PutResult:
        """Deliver or drop a half message; Refused when it is not an open one of this group."""
        if not self.prepare():
            raise Refused(ResponseCode.SYSTEM_BUSY, "the broker is starting; it will ask again")
        half = self._half(request)
        if half.queue_offset in self.unread.offsets:  # it could not be read, and can now
            self.read_halves()
        root = root_of(half)
        newest = self._open.get(root)
        if newest is None:
            if half.queue_offset < self._read or half.queue_offset in self._done:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the transaction of half message {half.message_id} is not open any more: it "
                    "was committed, rolled back or given up",
                )
            newest = half.queue_offset  # sent a moment ago, not read yet
        op = op_message(newest, half)
        if request.commit:
            message = self._committed(half)
            first, noted = self._put_both(message, op)
            if first.ok:
                self._count_put(message.topic, 1, first.size)
        else:
            first = noted = self._store.put([op])[0]
        if not first.ok:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the end of a transaction was not stored, it stays open: {first.reason}",
            )
        self._close(root, newest, noted)
        topic = half.property(props.REAL_TOPIC) or ""
        waited_ms = first.store_timestamp - half.born_timestamp
        self.counts.add(topic, request.commit, waited_ms / 1000)
        return noted if noted.ok else first

    def _put_both(
        self, message: Message, op: Message, put: Put | None = None
    ) -> tuple[PutResult, PutResult]:
        """Put a message, then the op that ends its half; no op if the message was not stored."""
        put = put or self._store.put_accepted
        first = put([message])[0]
        return first, put([op])[0] if first.ok else first

    def _half(self, request: EndRequest) -> StoredMessage:
        commit = self._store.commit
        if commit is not None and request.physical_offset >= self._store.committed_offset:
            commit.step()  # sent a moment ago, it is still in the transient store pool
        half = put_again.message_at(self._store, request.physical_offset)
        wanted_offset = request.queue_offset
        if half is None and request.physical_offset < self._store.readable_from:
            half = self._carried_half(request)
            wanted_offset = half.queue_offset if half is not None else 0
        if half is None or half.topic != TRANSACTION_HALF_TOPIC:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "Find prepared transaction message failed: no half message begins at "
                f"{request.physical_offset}",
            )
        if half.property(props.PGROUP) != request.group:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != wanted_offset:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        return half

    def _carried_half(self, request: EndRequest) -> StoredMessage | None:
        """The newest copy of a half message whose offset, as the producer knows it, is gone."""
        root = self._left.get(request.queue_offset, request.queue_offset)
        newest = self._open.get(root)
        half = None if newest is None else self.half_at(root, newest)
        unique_key = half.property(props.UNIQ_KEY) if half is not None else None
        return half if request.transaction_id in ("", unique_key) else None

    def _committed(self, half: StoredMessage) -> Message:
        place = put_again.real_place(half)
        if place is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"half message {half.message_id} does not say which topic it is for",
            )
        message = put_again.copy_for(half, *place, put_again.own_properties(half))
        message.sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
        message.prepared_transaction_offset = half.physical_offset
        return self._hooks.schedule(message)

    def _close(self, root: int, newest: int, op: PutResult) -> None:
        self._open.pop(root, None)
        if newest >= self._read:
            self._done.add(newest)
        if op.ok:
            self._ops.append((op.queue_offset, newest))
        else:
            self._op_due.append(newest)
            self._warn("a transaction's end is not noted yet", op)

    def report_failed_round(self, error: Exception) -> None:
        then = "retried after transactionCheckInterval"
        self._store.reports.failed("checking transactions failed", error, then=then)

    def _warn(self, event: str, result: PutResult) -> None:
        then = "retried by the next round of checks"
        self._store.reports.log(
            event, result.status, level="warning", reason=result.reason, then=then
        )

    # --- what the checks need

    def prepare(self) -> bool:
        """Learn, once, what is open from the queues; False while they are still catching up."""
        if self._read >= 0:
            return True
        if self._store.dispatched_offset < self._prepared_at:
            return False
        start = self._start_offset(TRANSACTION_HALF_TOPIC)
        op_start = self._start_offset(TRANSACTION_OP_TOPIC)
        done: set[int] = set()
        ops: deque[tuple[int, int]] = deque()
        for op in queue_messages(self._store, TRANSACTION_OP_TOPIC, op_start, self.unread.warn):
            ended = [offset for offset in op_offsets(op.body) if offset >= start]
            done.update(ended)
            ops.append((op.queue_offset, max(ended, default=-1)))
        self._read, self._done, self._ops = start, done, ops  # all are known, or none
        self.read_halves()
        self._write_missing_op()
        if self._open:
            log.info("open transactions were found", count=len(self._open))
        return True

    def _write_missing_op(self) -> None:
        """If a crash came between a committed message and its op, write the op now."""
        try:
            half = half_of_last_commit(self._store, self._prepared_at)
        except OSError as error:
            self.unread.warn(-1, error)
            return
        newest = self._open.get(root_of(half)) if half is not None else None
        if half is not None and newest is not None:
            self._close(root_of(half), newest, self._store.put([op_message(newest, half)])[0])

    def _start_offset(self, topic: str) -> int:
        least = self._store.min_offset(topic, QUEUE_ID)
        most = max(self._store.max_offset(topic, QUEUE_ID), least)
        return min(max(self._offsets.query(TRANSACTION_GROUP, topic, QUEUE_ID), least), most)

    def read_halves(self) -> None:
        """Read the half messages that were stored since the last time, and those that could not be
        read before."""
        for half in self.unread.read_again():
            self._note_read(half)
        for half in queue_messages(
            self._store, TRANSACTION_HALF_TOPIC, self._read, self._note_unread
        ):
            self._read = half.queue_offset + 1
            self._note_read(half)

    def _note_read(self, half: StoredMessage) -> None:
        root = root_of(half)
        older = self._open.get(root, half.queue_offset)
        if older < half.queue_offset:  # a crash came between this copy and the older one's op
            del self._open[root]
            self._op_due.append(older)
        if half.queue_offset in self._done:
            self._done.discard(half.queue_offset)
        elif root not in self._open:
            self._open[root] = half.queue_offset

    def _note_unread(self, queue_offset: int, error: OSError) -> None:
        self._read = queue_offset + 1
        if queue_offset in self._done:
            self._done.discard(queue_offset)
        else:
            self.unread.note(queue_offset, error)

    def open_halves(self) -> list[tuple[int, int]]:
        """Root and newest copy of each open transaction, the oldest first."""
        return sorted(self._open.items(), key=lambda pair: pair[1])

    def ended_after(self, half: StoredMessage) -> int:
        """How many half messages came after this one and have ended, at least."""
        return self._read - half.queue_offset - len(self._open)

    def half_at(self, root: int, queue_offset: int) -> StoredMessage | None:
        """The newest copy; None when the transaction has been closed, or its message removed."""
        if self._open.get(root) != queue_offset:
            return None
        half = half_message(self._store, queue_offset)
        if half is None and queue_offset < self._read:
            del self._open[root]
            log.error(
                "an open transaction's message was removed by age before anyone ended it",
                queue_offset=queue_offset,
            )
        return half

    def open_before(self, queue_offset: int, count: int) -> list[tuple[int, int]]:
        """Root and newest copy of open transactions whose newest copy is before this one."""
        self._left = {at: root for at, root in self._left.items() if root in self._open}
        found = [pair for pair in self._open.items() if pair[1] < queue_offset]
        return nsmallest(count, found, key=lambda pair: pair[1])

    def carry(self, root: int, half: StoredMessage) -> PutResult | None:
        """Append the half message again because its file expires; None when that failed."""
        checks = half.property(props.TRANSACTION_CHECK_TIMES) or "0"
        copied = self.copy(root, half, checks, self._store.put_again)
        if copied is not None:
            self._left[half.queue_offset] = root
        return copied

    def copy(
        self, root: int, half: StoredMessage, checks: int | str, put: Put | None = None
    ) -> PutResult | None:
        """Append the half message again, with its count of checks; None when that failed."""
        text = props.put(put_again.own_properties(half), props.TRANSACTION_CHECK_TIMES, str(checks))
        text = props.put(text, props.TRAN_PREPARED_QUEUE_OFFSET, str(root))
        message = put_again.copy_for(half, TRANSACTION_HALF_TOPIC, QUEUE_ID, text)
        copied, op = self._put_both(message, op_message(half.queue_offset, half), put)
        if not copied.ok:
            self._warn("a half message cannot be stored again now", copied)
            return None
        self._close(root, half.queue_offset, op)
        self._open[root] = copied.queue_offset
        return copied

    def give_up(self, root: int, half: StoredMessage) -> None:
        """Move a half message to the topic of those that were never ended."""
        topic = self._topics.create_system(TRANSACTION_GIVEN_UP_TOPIC, 1)
        message = put_again.copy_for(half, topic.name, 0, put_again.own_properties(half))
        moved, op = self._put_both(message, op_message(half.queue_offset, half))
        if not moved.ok:
            self._warn("a half message cannot be given up now", moved)
            return
        self._close(root, half.queue_offset, op)
        log.error(
            "a transaction was given up: nobody ended it",
            topic=half.property(props.REAL_TOPIC),
            producer_group=half.property(props.PGROUP),
            message_id=half.message_id,
            kept_in=topic.name,
        )

    def resume(self, physical_offset: int) -> PutResult:
        """Check a transaction that was given up from the start again; Refused says why not."""
        half = put_again.message_at(self._store, physical_offset)
        if half is None or half.topic != TRANSACTION_GIVEN_UP_TOPIC:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"no transaction that was given up is stored at {physical_offset}; its message is "
                f"in topic {TRANSACTION_GIVEN_UP_TOPIC}",
            )
        text = props.put(put_again.own_properties(half), props.TRANSACTION_CHECK_TIMES, "0")
        text = props.remove(text, props.TRAN_PREPARED_QUEUE_OFFSET)
        message = put_again.copy_for(half, TRANSACTION_HALF_TOPIC, QUEUE_ID, text)
        return self._store.put_accepted([message])[0]

    # --- progress

    def write_due_ops(self) -> None:
        """Write the ops that could not be written before."""
        due, self._op_due = self._op_due, []
        for queue_offset in due:
            try:
                half = half_message(self._store, queue_offset)
            except OSError as error:
                self.unread.warn(queue_offset, error)
                self._op_due.append(queue_offset)
                continue
            if half is None:
                continue
            result = self._store.put([op_message(queue_offset, half)])[0]
            if result.ok:
                self._ops.append((result.queue_offset, queue_offset))
            else:
                self._op_due.append(queue_offset)

    def commit_progress(self) -> None:
        """Commit the offsets that the log has on disk; note those of now for a later call."""
        flushed = self._store.flushed_offset
        while self._progress and self._progress[0].log_end <= flushed:
            _, half, op = self._progress.popleft()
            self._offsets.commit(TRANSACTION_GROUP, TRANSACTION_HALF_TOPIC, QUEUE_ID, half)
            self._offsets.commit(TRANSACTION_GROUP, TRANSACTION_OP_TOPIC, QUEUE_ID, op)
        half_offset = min([self._read, *self._open.values(), *self._op_due, *self.unread.offsets])
        while self._ops and self._ops[0][1] < half_offset:
            self._ops.popleft()
        op_end = self._store.max_offset(TRANSACTION_OP_TOPIC, QUEUE_ID)
        op_offset = self._ops[0][0] if self._ops else op_end
        now = _Progress(self._store.max_physical_offset, half_offset, op_offset)
        if not self._progress or self._progress[-1][1:] != now[1:]:
            self._progress.append(now)
