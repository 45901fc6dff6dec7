"""What a pull reads from the store: which records, how many, and whether they are in memory.

Settings limit the answer, separately for records in memory and on disk. A filter by properties
needs the records themselves: if they may not be in memory, they are read first and filtered later.
"""

from collections.abc import Sequence

from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.pull import filtering
from aerobee.broker.handlers.pull.one_pull import Pull
from aerobee.broker.net.outbox import Part
from aerobee.broker.store.files.residence import Residence
from aerobee.broker.store.results import ReadResult
from aerobee.protocol.files.queue_entry import ENTRY_SIZE
from aerobee.protocol.wire.headers import PullRequest


class PullReads:
    """The reads of all pulls of a broker."""

    recent_bytes = 32 << 20  # of the log's end that is filtered record by record, in place

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reports = broker.store.reports
        self.residence = Residence()

    def read(self, pull: Pull) -> ReadResult:
        settings = self._broker.settings
        pull.filters_later = self._may_be_cold_to_filter(pull)
        if pull.filters_later:
            result: ReadResult = self._broker.store.read_queue(
                pull.topic,
                pull.queue_id,
                pull.queue_offset,
                settings.max_filter_message_size // ENTRY_SIZE,
                max_bytes=settings.max_transfer_bytes_on_message_in_memory,
            )
            return result
        result = self._read_queue(
            pull,
            settings.max_transfer_count_on_message_in_memory,
            settings.max_transfer_bytes_on_message_in_memory,
        )
        if result.cold:
            count = settings.max_transfer_count_on_message_in_disk
            size = settings.max_transfer_bytes_on_message_in_disk
            if result.count > count or (result.count > 1 and result.size > size):
                result.release()
                result = self._read_queue(pull, count, size)
        return result

    def _may_be_cold_to_filter(self, pull: Pull) -> bool:
        """Whether the pull filters by content, and the records may not be in memory."""
        if pull.selection.matches_record is None:
            return False
        store = self._broker.store
        entry = store.queue_entry(pull.topic, pull.queue_id, pull.queue_offset)
        if entry is None:
            return False
        behind = store.max_physical_offset - entry[0]
        return behind >= self.recent_bytes or self._reports.device_failed or not self.holds_recent()

    def holds_recent(self) -> bool:
        """Whether the newest records are in memory. They nearly always are, but a page fault on a
        disk that is gone would kill the process."""
        end = self._broker.store.max_physical_offset
        files = self._broker.store.commit_log.files
        return self.residence.holds_recent(files, max(end - self.recent_bytes, 0), end)

    def _read_queue(self, pull: Pull, count_max: int, bytes_max: int) -> ReadResult:
        fields, selection = pull.fields, pull.selection
        result: ReadResult = self._broker.store.read_queue(
            pull.topic,
            pull.queue_id,
            pull.queue_offset,
            max(1, min(fields.max_msg_nums, count_max)),  # Go's Poll asks for 0 and expects one
            max_bytes=_bytes_max(fields, bytes_max),
            matches=selection.matches,
            matches_record=selection.matches_record,
        )
        return result

    def select(self, pull: Pull, result: ReadResult, views: Sequence[Part]) -> Sequence[Part]:
        """The records that the pull selects, as many as `read` would return."""
        settings, fields = self._broker.settings, pull.fields
        count = settings.max_transfer_count_on_message_in_memory
        size = settings.max_transfer_bytes_on_message_in_memory
        if result.cold:
            count = settings.max_transfer_count_on_message_in_disk
            size = settings.max_transfer_bytes_on_message_in_disk
        matches = pull.selection.matches_record
        assert matches is not None
        count = min(fields.max_msg_nums, count)
        return filtering.select(result, views, matches, count, _bytes_max(fields, size))

    def in_memory(self, result: ReadResult) -> bool:
        """Whether the loop can send the records without waiting for the disk."""
        spans = result.spans
        if not spans:
            return True
        return not self._reports.device_failed and self.residence.holds(spans, result.size)


def _bytes_max(fields: PullRequest, most: int) -> int:
    """The client's limit, or `most` if that is less."""
    wanted = fields.max_msg_bytes
    return wanted if wanted is not None and 0 < wanted < most else most
