"""The rules of the usual pull, every message of a range that is in memory, for both paths.

The Python path calls `limits`, reads, and then calls `takes` for the records found. The compiled
path calls `bounds`, finds the records, calls `takes` and builds the answer itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

from aerobee.broker.base.refused import Refused
from aerobee.broker.base.turns import MESSAGES_S
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.pull.checks import selection_of
from aerobee.broker.handlers.pull.cold import OldEntries
from aerobee.broker.handlers.pull.one_pull import Deferred
from aerobee.broker.handlers.pull.reading import PullReads
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.outbox import JOIN_MAX
from aerobee.broker.services.filters.selection import ALL
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.protocol.wire.codes import RequestCode
from aerobee.protocol.wire.headers import PULL_COMMIT_OFFSET, PullRequest

if TYPE_CHECKING:
    from aerobee.broker.store.files.residence import Records

RECENT_ENTRIES: Final = 50_000  # of a queue: taken to be in memory, without a check
MANY: Final = JOIN_MAX // 1024  # messages: with more, the answer is taken to be large
LITE_PULL: Final = int(RequestCode.LITE_PULL_MESSAGE)


class PlainPulls:
    """What all pulls of a broker share."""

    def __init__(self, broker: Broker, reads: PullReads, old_entries: OldEntries) -> None:
        self._broker = broker
        self._reads = reads
        self._residence = reads.residence
        self._old_entries = old_entries
        self._reports = broker.store.reports

    def limits(self, fields: PullRequest) -> tuple[int, int]:
        """How many messages and bytes the pull may have."""
        settings = self._broker.settings
        count = fields.max_msg_nums
        if count > settings.max_transfer_count_on_message_in_memory:
            count = settings.max_transfer_count_on_message_in_memory
        bytes_max = settings.max_transfer_bytes_on_message_in_memory
        limit = fields.max_msg_bytes
        if limit is not None and 0 < limit < bytes_max:
            bytes_max = limit
        return count, bytes_max

    def takes(
        self,
        connection: Connection,
        fields: PullRequest,
        files: Sequence[MappedFile],
        begin: int,
        end: int,
        records: Records,
        size: int,
        count: int,
        behind: int,
        first: bool = True,
        may_wait: bool = True,
    ) -> bool:
        """Whether the loop can send these records, from `begin` in the first of `files` to `end` in
        the last, `behind` bytes before the log's end; if so, they are counted. False: they have to
        be read from disk first. Raises Deferred only if it `may_wait`."""
        broker, reads, residence = self._broker, self._reads, self._residence
        if self._reports.device_failed or not (
            (
                behind < reads.recent_bytes
                and (monotonic() < residence.recent_until or reads.holds_recent())
            )
            or residence.holds_records(files, begin, end, records)
        ):
            return False
        if size > JOIN_MAX:
            if may_wait and broker.turns.is_over(MESSAGES_S):
                raise Deferred
            for file in files:
                file.hold()
                connection.outbox.release_when_sent(file.release)
        group, topic, queue_id = fields.consumer_group, fields.topic, fields.queue_id
        offset = fields.queue_offset
        if first and fields.sys_flag & PULL_COMMIT_OFFSET:
            broker.offsets.commit(group, topic, queue_id, fields.commit_offset)
        broker.stats.add_get(topic, group, count, size)
        broker.offsets.commit_pull(
            group, topic, queue_id, offset + count, offset, connection.client_id
        )
        return True

    def bounds(
        self, fields: PullRequest, queue: ConsumeQueue, queue_offset: int, commit_offset: int
    ) -> tuple[int, int] | None:
        """For the compiled path: how many messages and bytes a pull within the queue may have.
        None: it has to be refused, deferred or filtered, or is unusual in another way."""
        fields.queue_offset, fields.commit_offset = queue_offset, commit_offset
        broker = self._broker
        try:
            if selection_of(broker, fields, is_lite=False) is not ALL:
                return None
        except Refused:
            return None
        if (
            broker.offsets.resets_wait
            or broker.settings.slave_read_enable
            or broker.store.reader.check_records
            or queue_offset < queue.min_offset
        ):
            return None
        left = queue.max_offset - queue_offset
        if left >= RECENT_ENTRIES and self._old_entries.to_read(fields, queue) is not None:
            return None
        count, bytes_max = self.limits(fields)
        if count < 1 or (count > MANY and left > MANY and broker.turns.is_over(MESSAGES_S)):
            return None
        return count, bytes_max
