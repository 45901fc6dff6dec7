"""Finding messages: by key, by id, by time; and how far queues reach."""

from collections.abc import Callable, Iterable
from typing import Final

from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import Handlers, success
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Request, failed
from aerobee.broker.store.results import Boundary, QueryResult
from aerobee.protocol.files.record import decode_record
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.wire.admin_headers import QueryMessage, QueueHeader, SearchOffset, ViewMessage
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.frame import FRAME_SIZE_MAX
from aerobee.protocol.wire.headers import decode_ext

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_UNIQUE_INDEX: Final = "U"  # indexType of 5.5 clients
_BODY_SIZE_MAX: Final = FRAME_SIZE_MAX - 65536


def query_message(broker: Broker, request: Request) -> None:
    """The records with a key, or a unique key, stored between two times."""
    ext = request.command.ext
    header = decode_ext(ext, QueryMessage)
    unique = ext.get(UNIQUE_KEY_QUERY, "").lower() == "true" or header.index_type == _UNIQUE_INDEX
    count = broker.settings.default_query_max_num if unique else header.max_num
    if count <= 0:
        raise Refused(ResponseCode.QUERY_NOT_FOUND, f"maxNum is {count}: no message is requested")
    search = broker.store.search(
        header.topic,
        header.key,
        min(count, broker.settings.max_msgs_num_batch),
        header.begin_timestamp,
        header.end_timestamp,
        unique=unique,
    )
    connection = request.connection
    connection.waits_begin()

    def done(outcome: QueryResult | Exception) -> None:
        connection.waits_end()
        if isinstance(outcome, Exception):
            request.reply(failed(request, outcome))
        else:
            request.reply(_found(request, header, outcome))

    broker.searches.start(search, done, lambda: not connection.is_closed)


def _found(request: Request, header: QueryMessage, found: QueryResult) -> Command:
    progress = {
        "indexLastUpdatePhyoffset": str(found.index_last_update_physical_offset),
        "indexLastUpdateTimestamp": str(found.index_last_update_timestamp),
    }
    if not found.views:
        return request.command.answer(
            ResponseCode.QUERY_NOT_FOUND,
            progress,
            remark=f"can not find message with key {header.key} in {header.topic}, "
            "maybe time range not correct",
        )
    return request.command.answer(ResponseCode.SUCCESS, progress, _joined(found.views))


def _joined(views: Iterable[memoryview]) -> bytes:
    """As many records as one frame holds, but at least one."""
    taken: list[memoryview] = []
    size = 0
    for view in views:
        size += len(view)
        if taken and size > _BODY_SIZE_MAX:
            break
        taken.append(view)
    return b"".join(taken)


def view_message_by_id(broker: Broker, request: Request) -> Command:
    """The one record that begins at a physical offset."""
    offset = decode_ext(request.command.ext, ViewMessage).offset
    record = stored_record(broker, offset)
    if record is None:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"can not find message by the offset, {offset}: the log can be read from "
            f"{broker.store.min_physical_offset} to {broker.store.safe_limit()}",
        )
    return request.command.answer(ResponseCode.SUCCESS, {}, record)


def stored_record(broker: Broker, physical_offset: int) -> bytes | None:
    """The bytes of the record that begins exactly there; None if there is none, or none that may
    be shown: with SYNC_FLUSH a crash can lose what is not flushed. Replicas compare their logs
    with this, so it includes records that are not confirmed yet."""
    if physical_offset < 0:
        return None
    view = broker.store.record_at(physical_offset)
    if view is None or physical_offset + len(view) > broker.store.safe_limit():
        return None
    try:
        message = decode_record(view)
    except CorruptRecord:
        return None
    return bytes(view) if message.physical_offset == physical_offset else None


def search_offset_by_timestamp(broker: Broker, request: Request) -> Command:
    """The queue offset at a time: the first not before it, or (upper) the last not after it."""
    header = decode_ext(request.command.ext, SearchOffset)
    upper = (header.boundary_type or "").lower() == "upper"
    offset = broker.store.offset_by_time(
        header.topic,
        header.queue_id,
        header.timestamp,
        Boundary.UPPER if upper else Boundary.LOWER,
    )
    return success(request, ext={"offset": str(offset)})


def _of_queue(name: str, read: Callable[[Broker, str, int], int]) -> Callable[..., Command]:
    """A handler that answers with one number of a queue; for a queue that does not exist, as for an
    empty one, which is what clients expect from RocketMQ."""

    def handler(broker: Broker, request: Request) -> Command:
        header = decode_ext(request.command.ext, QueueHeader)
        return success(request, ext={name: str(read(broker, header.topic, header.queue_id))})

    return handler


get_max_offset = _of_queue("offset", lambda broker, *queue: max(0, broker.store.max_offset(*queue)))
get_min_offset = _of_queue("offset", lambda broker, *queue: max(0, broker.store.min_offset(*queue)))
get_earliest_time = _of_queue(
    "timestamp", lambda broker, *queue: broker.store.earliest_time(*queue)
)


HANDLERS: Handlers = {
    RequestCode.QUERY_MESSAGE: query_message,
    RequestCode.VIEW_MESSAGE_BY_ID: view_message_by_id,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset_by_timestamp,
    RequestCode.GET_MAX_OFFSET: get_max_offset,
    RequestCode.GET_MIN_OFFSET: get_min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: get_earliest_time,
}
