"""PULL_MESSAGE and LITE_PULL_MESSAGE: checks, filter, reading, long polling.

The stored bytes are sent as they are, as views into the mapped log. A pull that finds nothing and
may wait is held by `long_polling` and run again when it is woken.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog

from aerobee.broker.auth.verdicts import Principal
from aerobee.broker.base.refused import Refused
from aerobee.broker.base.turns import MESSAGES_S
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.pull.answers import (
    CODES,
    EMPTY,
    SEEN,
    refusal,
    with_messages,
    without_messages,
)
from aerobee.broker.handlers.pull.checks import selection_of
from aerobee.broker.handlers.pull.cold import OldEntries, in_thread
from aerobee.broker.handlers.pull.one_pull import Deferred, Pull
from aerobee.broker.handlers.pull.plain import LITE_PULL, MANY, RECENT_ENTRIES, PlainPulls
from aerobee.broker.handlers.pull.reading import PullReads
from aerobee.broker.net.answers import found_head
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.outbox import JOIN_MAX, Part
from aerobee.broker.net.requests import CLIENT_ANSWERED, ERROR_TEXT_MAX, Handler, Request
from aerobee.broker.services.filters.selection import ALL
from aerobee.broker.services.long_polling import Hold, LongPolling
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.reading.filter_time import FilterTime
from aerobee.broker.store.reading.plain_read import PlainRead, answer
from aerobee.broker.store.results import ReadResult, ReadStatus
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import ONEWAY_FLAG, Command
from aerobee.protocol.wire.headers import (
    PULL_COMMIT_OFFSET,
    PULL_SUSPEND,
    PullRequest,
    decode_ext,
)

log = structlog.get_logger("aerobee.pull")

SUSPEND_MAX_S: Final = 600.0
SMALL: Final = 4096  # bytes; answers up to this size are joined into one write
TOGETHER: Final = 64  # answers in one write
SCATTERED: Final = 256  # pieces of the log; with more, a thread puts the answer together

ReadKey = tuple[ConsumeQueue, int, int, int]  # a queue, from where, how many, bytes at most


class Pulls:
    """What all pulls of a broker share."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._watched: set[Connection] = set()  # whose holds are dropped when they close
        self._long_polling: LongPolling = broker.long_polling
        self._long_polling.rerun = self._rerun
        self._reads = PullReads(broker)
        self._old_entries = OldEntries(broker)
        self.plain = PlainPulls(broker, self._reads, self._old_entries)
        self._reports = broker.store.reports
        self._queues = broker.store.queue_table.table
        # Reads shared by pulls that are woken together: many groups wait for the same messages.
        self._read_together: dict[ReadKey, PlainRead | None] | None = None

    def handle(self, request: Request) -> Command | None:
        """A pull that was decoded by the general path."""
        command = request.command
        fields = decode_ext(command.ext, PullRequest)
        parts = self.pull(
            request.connection,
            command.codec,
            command.opaque,
            command.flag,
            command.code,
            fields,
            principal=request.principal,
        )
        if parts:
            request.connection.write(parts)
        return None

    def pull(
        self,
        connection: Connection,
        codec: int,
        opaque: int,
        flag: int,
        code: int,
        fields: PullRequest,
        may_wait: bool = False,
        principal: Principal | None = None,
    ) -> Sequence[Part]:
        """The answer in pieces; empty if it comes later. Raises Deferred only if it `may_wait`."""
        pull = Pull(
            connection,
            codec,
            opaque,
            flag,
            code,
            fields,
            fields.topic,
            fields.queue_id,
            fields.queue_offset,
            may_wait,
            principal,
        )
        return self._run(pull, True)

    def _rerun(self, holds: list[Hold]) -> None:
        """Small answers to one connection are written together: a write costs more than the answer
        itself."""
        self._read_together = {}
        small: dict[Connection, list[Part]] = {}
        time = FilterTime()
        try:
            for number, pull in enumerate(holds):
                assert isinstance(pull, Pull)
                if number and pull.selection.matches_record is not None and time.is_over:
                    self.broker.turns.later(partial(self._rerun, holds[number:]))
                    break
                connection = pull.connection
                if connection.is_closed:
                    continue
                full = connection.is_full
                parts = self._ask_again(pull) if full else self._run(pull, False)
                if len(parts) != 1 or len(parts[0]) > SMALL:
                    if parts:
                        connection.write(parts)
                    continue
                together = small.get(connection)
                if together is None:
                    together = small[connection] = []
                together.append(parts[0])
                if len(together) == TOGETHER:
                    connection.write((b"".join(together),))
                    together.clear()
        finally:
            self._read_together = None
            for connection, together in small.items():
                if together:
                    connection.write(together if len(together) == 1 else (b"".join(together),))

    def _ask_again(self, pull: Pull) -> Sequence[Part]:
        """An answer without messages, for a client that has not received the previous ones yet: it
        may have thousands of pulls waiting. It pulls again later."""
        store = self.broker.store
        low = store.min_offset(pull.topic, pull.queue_id)
        high = store.max_offset(pull.topic, pull.queue_id)
        remark = "take the answers before, then pull again"
        code = ResponseCode.PULL_NOT_FOUND
        return without_messages(pull, code, remark, pull.queue_offset, low, high)

    def _run(self, pull: Pull, first: bool) -> Sequence[Part]:
        broker = self.broker
        try:
            if pull.principal is not None:  # permissions may have changed while the pull waited
                group = pull.fields.consumer_group
                broker.guard.check_again(pull.principal, pull.topic, group)
            selection = selection_of(broker, pull.fields, pull.code == LITE_PULL)
            if broker.offsets.resets_wait and (moved := self._reset(pull)):
                return moved
            queue = self._queues.get((pull.topic, pull.queue_id))
            if queue is not None:
                left = queue.max_offset - pull.queue_offset
                if left >= RECENT_ENTRIES and self._read_entries(pull, queue, first):
                    return ()
                if selection is ALL and (parts := self._answer_plain(pull, queue, left, first)):
                    return parts
            pull.selection = selection
            result = self._reads.read(pull)
            if len(result.spans) > SCATTERED or not self._reads.in_memory(result):
                self._read_cold(pull, result, first)
                return ()
            if result.size > JOIN_MAX and self._has_to_wait(pull):
                result.release()
                raise Deferred
            return self._answer(pull, result, result.views, first)
        except Refused as refused:
            return refusal(pull, refused.code, refused.remark)
        except Deferred:
            raise
        except OSError as error:
            return self._disk_failed(pull, error)
        except Exception as error:  # one pull's failure must not affect others
            log.exception("pull failed", topic=pull.topic, peer=pull.connection.name)
            text = f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
            return refusal(pull, ResponseCode.SYSTEM_ERROR, text)

    def _answer_plain(
        self, pull: Pull, queue: ConsumeQueue, left: int, first: bool
    ) -> Sequence[Part]:
        """The usual pull, whose records are all in memory; empty if it is not one. `left`: messages
        from its offset on. Consumers get most of their messages here, so there are few calls and
        few objects."""
        broker, fields, plain = self.broker, pull.fields, self.plain
        store, queue_offset = broker.store, pull.queue_offset
        count, bytes_max = plain.limits(fields)
        if count > MANY and left > MANY and self._has_to_wait(pull):
            raise Deferred
        if self._read_together is None:
            found = store.read_plain(queue, queue_offset, count, bytes_max)
        else:
            found = self._read_once(queue, queue_offset, count, bytes_max)
        if found is None or pull.flag & ONEWAY_FLAG:
            return ()
        file, position, end, records, size, count, behind = found
        if not plain.takes(
            pull.connection,
            fields,
            (file,),
            position,
            end,
            records,
            size,
            count,
            behind,
            first,
            pull.may_wait,
        ):
            return ()
        next_broker = 0
        if broker.settings.slave_read_enable:
            next_broker = self._next_broker(pull, behind > store.hot_bytes)
        head = found_head(
            pull.codec,
            pull.opaque,
            queue_offset + count,
            queue.min_offset,
            store.visible_end(queue),
            size,
            next_broker,
        )
        if size > JOIN_MAX and isinstance(records, list):
            return (head, *records)
        return (answer(head, records),)

    def _read_once(
        self, queue: ConsumeQueue, queue_offset: int, count: int, bytes_max: int
    ) -> PlainRead | None:
        """Read once for all pulls that were woken together and ask for the same."""
        together = self._read_together
        assert together is not None
        key = (queue, queue_offset, count, bytes_max)
        if key not in together:
            together[key] = self.broker.store.read_plain(*key)
        return together[key]

    def _has_to_wait(self, pull: Pull) -> bool:
        """Whether a large answer has to wait for a later turn of the loop."""
        return pull.may_wait and self.broker.turns.is_over(MESSAGES_S)

    # --- reading

    def _read_entries(self, pull: Pull, queue: ConsumeQueue, first: bool) -> bool:
        """Have a thread read old entries of the queue into memory; False: they are there."""
        old = None if pull.entries_read else self._old_entries.to_read(pull.fields, queue)
        if old is None:
            return False
        pull.entries_read, pull.may_wait = True, False
        work = partial(self._old_entries.bring_in, *old)
        failed = partial(self._failed, pull)
        in_thread(pull.connection, 0, work, lambda _: self._run(pull, first), failed)
        return True

    def _read_cold(self, pull: Pull, result: ReadResult, first: bool) -> None:
        """Have a thread read what is not in memory, or lies in many places: the loop must not wait
        for the disk, nor handle thousands of pieces."""

        def failed(error: Exception) -> Sequence[Part]:
            result.release()
            return self._failed(pull, error)

        def answer(read: memoryview) -> Sequence[Part]:
            return self._answer(pull, result, (read,), first)

        work = partial(self.broker.store.read_cold, result)
        in_thread(pull.connection, result.size, work, answer, failed)

    def _failed(self, pull: Pull, error: Exception) -> Sequence[Part]:
        """A read in a thread failed: this client gets an error, the others are served."""
        if isinstance(error, OSError):
            return self._disk_failed(pull, error)
        log.error("a pull failed", topic=pull.topic, queue_id=pull.queue_id, exc_info=error)
        return refusal(pull, ResponseCode.SYSTEM_ERROR, f"reading failed: {error}")

    def _disk_failed(self, pull: Pull, error: OSError) -> Sequence[Part]:
        self._reports.disk_error(
            "a pull could not be read from disk", error, call="read", then=CLIENT_ANSWERED
        )
        return refusal(pull, ResponseCode.SYSTEM_ERROR, f"reading from disk failed: {error}")

    def _reset(self, pull: Pull) -> Sequence[Part]:
        """The answer that moves a reader to the offset of a pending reset; empty without one."""
        broker, fields = self.broker, pull.fields
        offset = broker.offsets.take_reset(
            fields.consumer_group, pull.topic, pull.queue_id, pull.queue_offset
        )
        if offset is None:
            return ()
        low = broker.store.min_offset(pull.topic, pull.queue_id)
        high = broker.store.max_offset(pull.topic, pull.queue_id)
        return without_messages(
            pull, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", offset, low, high
        )

    # --- answering

    def _answer(
        self, pull: Pull, result: ReadResult, views: Sequence[Part], first: bool
    ) -> Sequence[Part]:
        broker, fields = self.broker, pull.fields
        if pull.filters_later and result.status is ReadStatus.FOUND:
            views = self._reads.select(pull, result, views)
        status = result.status
        if first and fields.sys_flag & PULL_COMMIT_OFFSET:
            broker.offsets.commit(
                fields.consumer_group, pull.topic, pull.queue_id, fields.commit_offset
            )
        if status is ReadStatus.FOUND:
            broker.stats.add_get(pull.topic, fields.consumer_group, result.count, result.size)
            self._note_pulled(pull, result.next_offset)
            return with_messages(pull, result, views, self._next_broker(pull, result.cold))
        if status in EMPTY:
            empty = fields.queue_offset == 0
            code = ResponseCode.PULL_NOT_FOUND if empty else ResponseCode.PULL_OFFSET_MOVED
        else:
            code = CODES[status]
        next_offset = result.next_offset
        if code == ResponseCode.PULL_OFFSET_MOVED and broker.settings.is_slave:
            code, next_offset = self._not_moved(status), pull.queue_offset
        if status in SEEN and code != ResponseCode.PULL_OFFSET_MOVED:
            self._note_pulled(pull, max(pull.queue_offset, result.next_offset))
        broker.stats.add_miss()
        may_wait = first and fields.sys_flag & PULL_SUSPEND
        if may_wait and code == ResponseCode.PULL_NOT_FOUND and self._hold(pull):
            return ()
        return without_messages(
            pull,
            code,
            status.name,
            next_offset,
            result.min_offset,
            result.max_offset,
            self._next_broker(pull, result.cold),
        )

    def _not_moved(self, status: ReadStatus) -> ResponseCode:
        """The code on a slave, which never moves a reader: the slave may be behind its master, or
        have removed more. A reader past our end waits; one before our start asks the master."""
        is_followed = bool(self.broker.replication.master().get("masterAddr"))
        if status is ReadStatus.OFFSET_TOO_SMALL and is_followed:
            return ResponseCode.PULL_RETRY_IMMEDIATELY
        return ResponseCode.PULL_NOT_FOUND

    def _note_pulled(self, pull: Pull, next_offset: int) -> None:
        """Record how far the group has read, also if none of the messages matched."""
        self.broker.offsets.commit_pull(
            pull.fields.consumer_group,
            pull.topic,
            pull.queue_id,
            next_offset,
            pull.queue_offset,
            pull.connection.client_id,
        )

    def _next_broker(self, pull: Pull, is_cold: bool) -> int:
        """The broker to pull from next: with slaveReadEnable a reader that is far behind goes to a
        slave, so that the master's disk does not have to read as well."""
        if not self.broker.settings.slave_read_enable:
            return 0
        config = self.broker.groups.find(pull.fields.consumer_group)
        if config is None:
            return 0
        return config.which_broker_when_consume_slowly if is_cold else config.broker_id

    def _hold(self, pull: Pull) -> bool:
        settings, connection = self.broker.settings, pull.connection
        if connection.is_closed:
            return True  # nobody to answer
        if settings.long_polling_enable:
            seconds = min(pull.fields.suspend_timeout_millis / 1000, SUSPEND_MAX_S)
        else:
            seconds = settings.short_polling_time_mills / 1000
        if seconds <= 0 or not self._long_polling.hold(pull, seconds):
            return False
        if connection not in self._watched:
            self._watched.add(connection)
            connection.on_close.append(self._closed)
        return True

    def _closed(self, connection: Connection) -> None:
        self._watched.discard(connection)
        self._long_polling.drop(connection)


def handlers(pulls: Pulls) -> dict[int, Handler]:
    return {
        RequestCode.PULL_MESSAGE: pulls.handle,
        RequestCode.LITE_PULL_MESSAGE: pulls.handle,
    }
