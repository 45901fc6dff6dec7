"""PULL_MESSAGE and LITE_PULL_MESSAGE: checks, filter, reading, long polling.

The stored bytes are sent as they are, as views into the mapped log. A pull that finds nothing and
may wait is held by `long_polling` and run once more when it is woken.
"""

from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Final

import structlog

from aerobee.broker.answers import found_head
from aerobee.broker.broker import Broker
from aerobee.broker.connection import JOIN_MAX, Connection, Part
from aerobee.broker.dispatch import (
    CLIENT_TOLD,
    ERROR_TEXT_MAX,
    Handler,
    Request,
    say_refused,
)
from aerobee.broker.handlers.pull_checks import selection_of
from aerobee.broker.handlers.pull_cold import OldEntries, in_thread
from aerobee.broker.handlers.pull_filter import select
from aerobee.broker.services.long_polling import Hold, LongPolling
from aerobee.broker.services.refused import Refused
from aerobee.broker.services.subscription import ALL
from aerobee.broker.store.consume_queue import ENTRY_SIZE
from aerobee.broker.store.page_cache import Residence
from aerobee.broker.store.results import Arrival, ReadResult, ReadStatus
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.command import JSON, ONEWAY_FLAG, RESPONSE_FLAG, Command
from aerobee.protocol.frame import encode_frame, encode_frame_head
from aerobee.protocol.headers import (
    PULL_COMMIT_OFFSET,
    PULL_SUSPEND,
    PullRequest,
    decode_ext,
)

log = structlog.get_logger("aerobee.pull")

SUSPEND_MAX_S: Final = 600.0
RECENT_BYTES: Final = 32 << 20  # so much of the log's end may be looked at record by record
LITE_PULL: Final = int(RequestCode.LITE_PULL_MESSAGE)

CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
# Nothing was ever there: right for a reader at the start, wrong for one that is farther on.
EMPTY: Final = frozenset({ReadStatus.NO_MESSAGE_IN_QUEUE, ReadStatus.NO_MATCHED_LOGIC_QUEUE})


class PutOff(Exception):
    """The answer is large, and the loop has others to serve first: ask again in a later turn."""


class Pull:
    """One pull under way; also the hold that waits in long polling."""

    __slots__ = (
        "codec",
        "connection",
        "entries_read",
        "fields",
        "filters_later",
        "flag",
        "is_lite",
        "may_wait",
        "opaque",
        "owner",
        "queue_id",
        "queue_offset",
        "selection",
        "tick",
        "topic",
    )

    def __init__(
        self, connection: Connection, codec: int, opaque: int, flag: int, fields: PullRequest
    ) -> None:
        self.connection = connection
        self.owner = connection
        self.codec = codec
        self.opaque = opaque
        self.flag = flag
        self.fields = fields
        self.topic = fields.topic
        self.queue_id = fields.queue_id
        self.queue_offset = fields.queue_offset
        self.selection = ALL
        self.is_lite = False
        self.entries_read = False  # its queue's entries were brought into memory already
        self.may_wait = False  # whether its caller takes a PutOff
        self.filters_later = False  # what was read still has to be selected from
        self.tick = 0

    def wants(self, arrival: Arrival) -> bool:
        return self.selection.wants(arrival)


class Pulls:
    """What all pulls of a broker share."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._watched: set[Connection] = set()  # whose end must drop their holds
        self._long_polling: LongPolling = broker.long_polling
        self._long_polling.rerun = self._rerun
        self._residence = Residence()
        self._old_entries = OldEntries(broker)
        self._reports = broker.store.reports

    def handle(self, request: Request) -> Command | None:
        """A pull in a header that is decoded the general way."""
        command = request.command
        fields = decode_ext(command.ext, PullRequest)
        parts = self.pull(
            request.connection, command.codec, command.opaque, command.flag, command.code, fields
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
        *,
        may_wait: bool = False,
    ) -> Sequence[Part]:
        """The answer in pieces; nothing when it comes later. PutOff only if it `may_wait`."""
        pull = Pull(connection, codec, opaque, flag, fields)
        pull.may_wait = may_wait
        pull.is_lite = code == LITE_PULL
        return self._run(pull, first=True)

    def _rerun(self, holds: list[Hold]) -> None:
        for pull in holds:
            assert isinstance(pull, Pull)
            if not pull.connection.is_closed:
                full = pull.connection.is_full
                parts = self._ask_again(pull) if full else self._run(pull, first=False)
                if parts:
                    pull.connection.write(parts)

    def _ask_again(self, pull: Pull) -> Sequence[Part]:
        """An answer without messages, for a client that has not taken those before: it may have
        thousands of pulls waiting. The next ones are read once it has."""
        store = self.broker.store
        low = store.min_offset(pull.topic, pull.queue_id)
        high = store.max_offset(pull.topic, pull.queue_id)
        remark = "take the answers before, then pull again"
        code = ResponseCode.PULL_NOT_FOUND
        return _without_messages(pull, code, remark, pull.queue_offset, low, high)

    def _run(self, pull: Pull, *, first: bool) -> Sequence[Part]:
        try:
            pull.selection = selection_of(self.broker, pull.fields, is_lite=pull.is_lite)
            if self.broker.offsets.resets_wait and (moved := self._reset(pull)):
                return moved
            if not pull.entries_read and (old := self._old_entries.to_read(pull)):
                pull.entries_read, pull.may_wait = True, False
                work = partial(self._old_entries.bring_in, *old)
                in_thread(pull, 0, work, lambda _: self._run(pull, first=first), self._failed)
                return ()
            if pull.selection is ALL and (parts := self._answer_plain(pull, first)):
                return parts
            result = self._read(pull)
            if not self._in_memory(result):
                self._read_cold(pull, result, first)
                return ()
            if result.size > JOIN_MAX and pull.may_wait and self.broker.turns.is_over():
                result.release()
                raise PutOff
            return self._answer(pull, result, result.views, first)
        except Refused as refused:
            return _refusal(pull, refused.code, refused.remark)
        except PutOff:
            raise
        except OSError as error:
            return self._disk_failed(pull, error)
        except Exception as error:  # one pull's failure is its own: say it, log it, go on
            log.exception("pull failed", topic=pull.topic, peer=pull.connection.name)
            text = f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
            return _refusal(pull, ResponseCode.SYSTEM_ERROR, text)

    def _answer_plain(self, pull: Pull, first: bool) -> Sequence[Part]:
        """The usual pull, whose records are all there and in memory; nothing when it is another.
        Most of a consumer's messages come this way, so it makes few calls and few objects."""
        broker, fields = self.broker, pull.fields
        settings = broker.settings
        count = fields.max_msg_nums
        if count > settings.max_transfer_count_on_message_in_memory:
            count = settings.max_transfer_count_on_message_in_memory
        bytes_max = settings.max_transfer_bytes_on_message_in_memory
        limit = fields.max_msg_bytes
        if limit is not None and 0 < limit < bytes_max:
            bytes_max = limit
        topic, queue_id, group = pull.topic, pull.queue_id, fields.consumer_group
        found = broker.store.read_plain(topic, queue_id, pull.queue_offset, count, bytes_max)
        if found is None or pull.flag & ONEWAY_FLAG:
            return ()
        queue, file, position, end, views, size, count, behind = found
        residence = self._residence
        if self._reports.device_failed or not (
            (behind < RECENT_BYTES and monotonic() < residence.recent_until)
            or (behind < RECENT_BYTES and self._holds_recent())
            or residence.holds_range(file, position, end)
        ):
            return ()
        if size > JOIN_MAX and pull.may_wait and broker.turns.is_over():
            raise PutOff
        if first and fields.sys_flag & PULL_COMMIT_OFFSET:
            broker.offsets.commit(group, topic, queue_id, fields.commit_offset)
        next_offset = pull.queue_offset + count
        broker.stats.add_get(topic, group, count, size)
        broker.offsets.commit_pull(group, topic, queue_id, next_offset)
        high = broker.store.visible_end(queue)
        head = _found_head(pull, next_offset, queue.min_offset, high, size)
        if size <= JOIN_MAX:
            return (b"".join((head, *views)),)
        file.hold()
        pull.connection.release_when_sent(file.release)
        return (head, *views)

    # --- reading

    def _read(self, pull: Pull) -> ReadResult:
        settings = self.broker.settings
        pull.filters_later = self._may_be_cold_to_filter(pull)
        if pull.filters_later:
            result: ReadResult = self.broker.store.read_queue(
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
        """Whether the pull selects by what stands in records, and these may not be in memory."""
        if pull.selection.matches_record is None:
            return False
        store = self.broker.store
        entry = store.queue_entry(pull.topic, pull.queue_id, pull.queue_offset)
        if entry is None:
            return False
        behind = store.max_physical_offset - entry[0]
        return behind >= RECENT_BYTES or self._reports.device_failed or not self._holds_recent()

    def _holds_recent(self) -> bool:
        """Whether what was written last is in memory. It nearly always is, but a page that is not
        would have to come from the disk, and a disk that is gone ends the process there."""
        end = self.broker.store.max_physical_offset
        files = self.broker.store.commit_log.files
        return self._residence.holds_recent(files, max(end - RECENT_BYTES, 0), end)

    def _read_queue(self, pull: Pull, count_max: int, bytes_max: int) -> ReadResult:
        fields, selection = pull.fields, pull.selection
        result: ReadResult = self.broker.store.read_queue(
            pull.topic,
            pull.queue_id,
            pull.queue_offset,
            max(1, min(fields.max_msg_nums, count_max)),  # Go's Poll asks for 0, and gets one
            max_bytes=_bytes_max(fields, bytes_max),
            matches=selection.matches,
            matches_record=selection.matches_record,
        )
        return result

    def _select(self, pull: Pull, result: ReadResult, views: Sequence[Part]) -> Sequence[Part]:
        """Those of the records that the pull wants, as many as `_read` would have brought."""
        settings, fields = self.broker.settings, pull.fields
        count = settings.max_transfer_count_on_message_in_memory
        size = settings.max_transfer_bytes_on_message_in_memory
        if result.cold:
            count = settings.max_transfer_count_on_message_in_disk
            size = settings.max_transfer_bytes_on_message_in_disk
        matches = pull.selection.matches_record
        assert matches is not None
        count = min(fields.max_msg_nums, count)
        return select(result, views, matches, count, _bytes_max(fields, size))

    def _in_memory(self, result: ReadResult) -> bool:
        """Whether the loop can send the records without waiting for the disk."""
        spans = result.spans
        if not spans:
            return True
        return not self._reports.device_failed and self._residence.holds(spans, result.size)

    def _read_cold(self, pull: Pull, result: ReadResult, first: bool) -> None:
        """Have a thread read what is not in memory: the loop must not wait for the disk."""

        def failed(pull: Pull, error: Exception) -> Sequence[Part]:
            result.release()
            return self._failed(pull, error)

        work = partial(self.broker.store.read_cold, result)
        in_thread(
            pull, result.size, work, lambda read: self._answer(pull, result, read, first), failed
        )

    def _failed(self, pull: Pull, error: Exception) -> Sequence[Part]:
        """A thread could not read: the client is told, others go on."""
        if isinstance(error, OSError):
            return self._disk_failed(pull, error)
        log.error("a pull failed", topic=pull.topic, queue_id=pull.queue_id, exc_info=error)
        return _refusal(pull, ResponseCode.SYSTEM_ERROR, f"reading failed: {error}")

    def _disk_failed(self, pull: Pull, error: OSError) -> Sequence[Part]:
        self._reports.disk_error(
            "a pull could not be read from disk", error, call="read", then=CLIENT_TOLD
        )
        return _refusal(pull, ResponseCode.SYSTEM_ERROR, f"reading from disk failed: {error}")

    def _reset(self, pull: Pull) -> Sequence[Part]:
        """The answer that sends a reader to where an operator has reset its group, if one has."""
        broker, fields = self.broker, pull.fields
        offset = broker.offsets.take_reset(
            fields.consumer_group, pull.topic, pull.queue_id, pull.queue_offset
        )
        if offset is None:
            return ()
        low = broker.store.min_offset(pull.topic, pull.queue_id)
        high = broker.store.max_offset(pull.topic, pull.queue_id)
        return _without_messages(
            pull, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", offset, low, high
        )

    # --- answering

    def _answer(
        self, pull: Pull, result: ReadResult, views: Sequence[Part], first: bool
    ) -> Sequence[Part]:
        broker, fields = self.broker, pull.fields
        if pull.filters_later and result.status is ReadStatus.FOUND:
            views = self._select(pull, result, views)
        status = result.status
        if first and fields.sys_flag & PULL_COMMIT_OFFSET:
            broker.offsets.commit(
                fields.consumer_group, pull.topic, pull.queue_id, fields.commit_offset
            )
        if status is ReadStatus.FOUND:
            broker.stats.add_get(pull.topic, fields.consumer_group, result.count, result.size)
            broker.offsets.commit_pull(
                fields.consumer_group, pull.topic, pull.queue_id, result.next_offset
            )
            return _with_messages(pull, result, views)
        if status in EMPTY:
            empty = fields.queue_offset == 0
            code = ResponseCode.PULL_NOT_FOUND if empty else ResponseCode.PULL_OFFSET_MOVED
        else:
            code = CODES[status]
        broker.stats.add_miss()
        may_wait = first and fields.sys_flag & PULL_SUSPEND
        if may_wait and code == ResponseCode.PULL_NOT_FOUND and self._hold(pull):
            return ()
        return _without_messages(
            pull, code, status.name, result.next_offset, result.min_offset, result.max_offset
        )

    def _hold(self, pull: Pull) -> bool:
        settings, connection = self.broker.settings, pull.connection
        if connection.is_closed:
            return True  # nobody is left to be answered
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


def _bytes_max(fields: PullRequest, most: int) -> int:
    """What the client wants at most, or `most` where that is less."""
    wanted = fields.max_msg_bytes
    return wanted if wanted is not None and 0 < wanted < most else most


def _with_messages(pull: Pull, result: ReadResult, views: Sequence[Part]) -> Sequence[Part]:
    if pull.flag & ONEWAY_FLAG:
        result.release()
        return ()
    size = result.size
    head = _found_head(pull, result.next_offset, result.min_offset, result.max_offset, size)
    if size <= JOIN_MAX:
        joined = b"".join((head, *views))
        result.release()
        return (joined,)
    pull.connection.release_when_sent(result.release)
    return (head, *views)


def _found_head(pull: Pull, next_offset: int, min_offset: int, max_offset: int, size: int) -> bytes:
    if pull.codec == JSON:
        return found_head(pull.opaque, next_offset, min_offset, max_offset, size)
    command = _command(pull, ResponseCode.SUCCESS, "FOUND", next_offset, min_offset, max_offset)
    return encode_frame_head(command, size)


def _without_messages(
    pull: Pull, code: int, remark: str, next_offset: int, min_offset: int, max_offset: int
) -> Sequence[Part]:
    if pull.flag & ONEWAY_FLAG:
        return ()
    return (encode_frame(_command(pull, code, remark, next_offset, min_offset, max_offset)),)


def _command(
    pull: Pull, code: int, remark: str, next_offset: int, min_offset: int, max_offset: int
) -> Command:
    ext = {
        "maxOffset": str(max_offset),
        "minOffset": str(min_offset),
        "nextBeginOffset": str(next_offset),
        "suggestWhichBrokerId": "0",
    }
    return Command(code, ext, b"", pull.opaque, RESPONSE_FLAG, remark, codec=pull.codec)


def _refusal(pull: Pull, code: int, remark: str) -> Sequence[Part]:
    if pull.flag & ONEWAY_FLAG:
        return ()
    answer = Command(code, {}, b"", pull.opaque, RESPONSE_FLAG, remark, codec=pull.codec)
    say_refused(pull.connection, RequestCode.PULL_MESSAGE, False, answer)
    return (encode_frame(answer),)


def handlers(broker: Broker) -> dict[int, Handler]:
    """The broker's pulls; `broker.pulls` is what the hot path shares with them."""
    broker.pulls = Pulls(broker)
    return {
        RequestCode.PULL_MESSAGE: broker.pulls.handle,
        RequestCode.LITE_PULL_MESSAGE: broker.pulls.handle,
    }
