"""Every record that has a message's id: in its topic, kept for later, retried, dead."""

from collections.abc import Generator, Iterator
from typing import Final

from aerobee.broker.handlers.context import Broker
from aerobee.broker.services.timers.messages import deliver_time
from aerobee.broker.store.results import QueryResult
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.ids import parse_offset_message_id
from aerobee.protocol.files.record import StoredMessage, decode_record
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.message_copies import HOLDING_TOPICS, copy_of
from aerobee.protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_TOPIC,
)
from aerobee.protocol.wire.message_facts import DONE, WAITING, Copy

COPIES_MAX: Final = 64  # in one topic: a half message is stored again with each check
TAIL_MAX: Final = 4096  # records not dispatched yet that are searched
_TIME_MAX: Final = 2**63 - 1
# Not a producer's own properties: the caller may not be allowed to read the message.
_SHOWN: Final = (
    *(props.TAGS, props.KEYS, props.UNIQ_KEY, props.DELAY, props.PGROUP, props.MAX_RECONSUME_TIMES),
    *(props.REAL_TOPIC, props.REAL_QID, props.RETRY_TOPIC, props.ORIGIN_MESSAGE_ID),
    *(props.TIMER_DELIVER_MS, props.TIMER_OUT_MS, props.TIMER_DEL_UNIQKEY, props.LAST_FAILURE),
    *(props.TIMER_ROLL_TIMES, props.TIMER_CARRIED_LEVEL, props.TIMER_CARRIED_FROM),
    *(props.TRANSACTION_CHECK_TIMES, props.DLQ_ORIGIN_TOPIC, props.TRAN_PREPARED_QUEUE_OFFSET),
)

Found = Generator[None, None, QueryResult]


def find_copies(broker: Broker, message_id: str, topic: str | None) -> Found:
    """A search, for `searches`: the records with the id, in all topics or in those related to one.
    An offset id is looked up at its offset, then by that record's unique id."""
    result = QueryResult([])
    unique_id = message_id
    record = _at_offset(broker, message_id)
    if record is not None:
        message = decode_record(record)
        unique_id = message.property(props.UNIQ_KEY) or ""
        if not unique_id:
            result.views.append(record)
            return result
    for name in _topics(broker, topic):
        found = yield from broker.store.search(
            name, unique_id, COPIES_MAX, 0, _TIME_MAX, unique=True
        )
        result.views.extend(found.views)
        yield
    result.views.extend(_tail(broker, unique_id))
    return result


def _topics(broker: Broker, topic: str | None) -> list[str]:
    known = [name for name in broker.topics.all() if name != TRANSACTION_OP_TOPIC]
    if topic is not None:
        known = [name for name in known if name.startswith((RETRY_PREFIX, DLQ_PREFIX))] + [topic]
    return list(dict.fromkeys([*known, *HOLDING_TOPICS]))


def _at_offset(broker: Broker, message_id: str) -> memoryview | None:
    try:
        _, physical_offset = parse_offset_message_id(message_id)
    except ValueError:
        return None
    if not broker.store.readable_from <= physical_offset < broker.store.max_physical_offset:
        return None
    view = broker.store.record_at(physical_offset)
    try:
        if view is not None and decode_record(view).message_id == message_id.upper():
            return view
    except CorruptRecord:
        pass
    return None


def _tail(broker: Broker, unique_id: str) -> Iterator[memoryview]:
    """Searches the newest records, which are in no queue or index yet: with SYNC_FLUSH that happens
    once they are on disk."""
    store = broker.store
    offset = store.dispatched_offset
    for _ in range(TAIL_MAX):
        view = store.record_at(offset) if offset < store.max_physical_offset else None
        if view is None:
            return
        try:
            message = decode_record(view)
        except CorruptRecord:
            return
        if message.property(props.UNIQ_KEY) == unique_id:
            yield view
        offset += len(view)


def decoded(views: list[memoryview]) -> list[StoredMessage]:
    """The messages of these records, each once, in the order in which they were stored."""
    found = {}
    for view in views:
        try:
            message = decode_record(view)
        except CorruptRecord:
            continue
        found[message.physical_offset] = message
    return [found[offset] for offset in sorted(found)]


def copy_facts(broker: Broker, message: StoredMessage) -> Copy:
    store = broker.store
    entry = store.queue_entry(message.topic, message.queue_id, message.queue_offset)
    is_entered = entry is not None and entry[0] == message.physical_offset
    end = message.physical_offset + message.size
    copy = copy_of(message)
    copy.properties = {name: copy.properties[name] for name in _SHOWN if name in copy.properties}
    copy.on_disk = end <= store.flushed_offset
    copy.in_queue = is_entered and end <= store.visible_limit()
    if message.topic == SCHEDULE_TOPIC:
        level = message.queue_id + 1
        copy.due_at = entry[2] if entry is not None and is_entered else None
        copy.state = DONE if broker.schedule.progress(level)[0] > message.queue_offset else WAITING
    elif message.topic == TIMER_TOPIC:
        copy.due_at = deliver_time(message.properties)
    elif message.topic == TRANSACTION_HALF_TOPIC and not broker.settings.is_slave:
        is_open = broker.transactions.is_open(message)
        copy.state = None if is_open is None else WAITING if is_open else DONE
    return copy
