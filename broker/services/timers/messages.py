"""The messages behind timers: when they are due, what recalls them, what is put when they fire."""

from typing import TYPE_CHECKING, Final

import structlog

from aerobee.broker.services.redelivery import put_again
from aerobee.broker.services.redelivery.origins import origin_field
from aerobee.broker.services.timers.timer_log import MAGIC_DEFAULT, MAGIC_ROLL, Unit
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import Message, StoredMessage
from aerobee.protocol.files.record_layout import CRC_PROPERTY_SIZE
from aerobee.protocol.names import TIMER_TOPIC

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

log = structlog.get_logger("aerobee.timers")

APACHE_PRECISION_MS: Final = 1000
PRECISION_MAX_MS: Final = 60_000
NEVER_ENQUEUED: Final = 2**63 - 1  # as upstream marks one that was due when it was set
_OF_CARRIED_LEVEL: Final = (
    props.TIMER_CARRIED_LEVEL,
    props.TIMER_CARRIED_FROM,
    props.TIMER_DELIVER_MS,
    props.TIMER_OUT_MS,
    props.TIMER_ROLL_TIMES,
)
NOTHING_RECALLED: Final[frozenset[str]] = frozenset()


def deliver_time(properties: str) -> int | None:
    """When a timer is due; None when its message is not a timer."""
    out_ms = _number(props.get(properties, props.TIMER_OUT_MS))
    if out_ms is None:
        return None
    deliver_ms = _number(props.get(properties, props.TIMER_DELIVER_MS))
    if deliver_ms is not None and out_ms < deliver_ms <= out_ms + PRECISION_MAX_MS:
        return deliver_ms
    # From a Java broker, with a delay: only the second is known, and its end is never too early.
    return out_ms + APACHE_PRECISION_MS


def delay_of(properties: str) -> int | None:
    """The delay in ms with which a timer was set; None when it was set with a time of day."""
    seconds = _number(props.get(properties, props.TIMER_DELAY_SEC))
    if seconds is not None:
        return seconds * 1000
    return _number(props.get(properties, props.TIMER_DELAY_MS))


def leg(deliver_ms: int, now_ms: int, window_ms: int) -> tuple[int, int]:
    """Magic and time of the unit: the timer's own, or that of its next roll when it is far."""
    left_ms = deliver_ms - now_ms
    if left_ms < window_ms:
        return MAGIC_DEFAULT, deliver_ms
    # Half a window if the last leg would be short otherwise.
    short = left_ms - window_ms < window_ms // 3
    return MAGIC_DEFAULT | MAGIC_ROLL, now_ms + (window_ms // 2 if short else window_ms)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def timer_key(message: StoredMessage) -> str:
    """The key by which a recall finds a timer."""
    return f"{message.property(props.REAL_TOPIC)}+{message.property(props.UNIQ_KEY)}"


def recalled_key(properties: str) -> str | None:
    """The `timer_key` that a recall is about; None when the message is not a recall.

    5.5 writes the unique key alone, versions before it `topic+key`.
    """
    text = props.get(properties, props.TIMER_DEL_UNIQKEY)
    if text is None:
        return None
    head = f"{props.get(properties, props.REAL_TOPIC)}+"
    return text if text.startswith(head) else head + text


def message_of(store: "MessageStore", unit: Unit) -> StoredMessage | None:
    """The timer's message; None, which is logged, if it is not in the store any more."""
    message = put_again.message_at(store, unit.physical_offset, unit.record_size)
    if message is None or message.topic != TIMER_TOPIC:
        log.error("a timer's message is gone from the store", offset=unit.physical_offset)
        return None
    return message


def is_record(store: "MessageStore", physical_offset: int, size: int) -> bool:
    """Whether there is one; True on a bad sector, as it may be readable later."""
    try:
        return store.record_at(physical_offset, size) is not None
    except OSError:
        return True


def within_queue(store: "MessageStore", queue_offset: int) -> int:
    """The offset, limited to the timer topic's queue. After the log was cut it may be past the end,
    and timers that get the offsets of the lost ones would not be set."""
    least = store.min_offset(TIMER_TOPIC, 0)
    inside = max(least, min(queue_offset, store.queue_end(TIMER_TOPIC, 0)))
    if inside < queue_offset:
        log.warning("timers were read past their queue's end", was=queue_offset, now=inside)
    return inside


def offset_after(store: "MessageStore", physical_offset: int) -> int:
    """The queue offset after the record there; 0 if it is not one of the timer topic."""
    record = put_again.message_at(store, physical_offset)
    return record.queue_offset + 1 if record and record.topic == TIMER_TOPIC else 0


def unit_deliver_ms(store: "MessageStore", unit: Unit) -> int:
    """When a unit is due; upstream's units have only the second."""
    if unit.deliver_ms:
        return unit.deliver_ms
    message = None if unit.magic & MAGIC_ROLL else message_of(store, unit)
    if message is None:
        return unit.slot_ms + 1
    return deliver_time(message.properties) or unit.slot_ms + 1


def unit_recalls(store: "MessageStore", unit: Unit) -> str | None:
    """The key of the timer that a unit recalls."""
    message = message_of(store, unit)
    return None if message is None else recalled_key(message.properties)


def fired(
    message: StoredMessage, written_ms: int, now_ms: int, recalled: set[str] | frozenset[str]
) -> Message | None:
    """The message for its real topic; None when it is recalled, or is itself a recall."""
    if message.property(props.TIMER_DEL_UNIQKEY) is not None:
        return None
    if recalled and timer_key(message) in recalled:
        return None
    made = put_again.delivered(message)
    if made is None:
        return None
    level = message.property(props.TIMER_CARRIED_LEVEL)
    if level is not None:  # as its level would have delivered it
        text = props.remove(made.properties, *_OF_CARRIED_LEVEL)
        made.properties = props.put(text, props.DELAY, level)
        return made
    made.properties = _not_carried(made.properties)
    made.properties = _with_note(made.properties, props.TIMER_ENQUEUE_MS, written_ms)
    made.properties = _with_note(made.properties, props.TIMER_DEQUEUE_MS, now_ms)
    return made


def rolled(message: StoredMessage) -> Message:
    """The message for the timer topic again, with its roll count increased."""
    text = _not_carried(put_again.own_properties(message))
    times = _number(props.get(text, props.TIMER_ROLL_TIMES)) or 0
    text = _with_note(text, props.TIMER_ROLL_TIMES, times + 1)
    made = put_again.copy_for(message, TIMER_TOPIC, 0, text)
    made.prepared_transaction_offset = origin_field(message.physical_offset)
    return made


def as_timer(message: StoredMessage, deliver_ms: int, tick_ms: int) -> Message:
    """A delayed message, which has its real topic in its properties, as a timer of this time. Its
    level is renamed: otherwise a Java broker would delay it again when it fires."""
    text = put_again.own_properties(message)
    level = props.get(text, props.DELAY) or ""
    text = props.remove(text, props.DELAY, props.TIMER_DEL_UNIQKEY, props.TIMER_CARRIED_FROM)
    text = props.put(text, props.TIMER_CARRIED_LEVEL, level)
    text = props.put(text, props.TIMER_DELIVER_MS, str(deliver_ms))
    # As upstream writes it: the tick before the one at which it is due.
    text = props.put(text, props.TIMER_OUT_MS, str((deliver_ms - 1) // tick_ms * tick_ms))
    made = put_again.copy_for(message, TIMER_TOPIC, 0, text)
    made.prepared_transaction_offset = origin_field(message.physical_offset)
    return made


def carried(message: StoredMessage) -> Message:
    """A copy for the timer topic, with its old offset, because its file is going to be removed. It
    is not a timer by itself: an existing unit is going to point to it."""
    text = put_again.own_properties(message)
    text = props.put(text, props.TIMER_CARRIED_FROM, str(message.physical_offset))
    return put_again.copy_for(message, TIMER_TOPIC, 0, text)


def carried_from(properties: str) -> int | None:
    """The physical offset that a carried message had before; None: it is not carried."""
    return _number(props.get(properties, props.TIMER_CARRIED_FROM))


def _not_carried(properties: str) -> str:
    if props.TIMER_CARRIED_FROM not in properties:
        return properties
    return props.remove(properties, props.TIMER_CARRIED_FROM)


def _with_note(properties: str, name: str, value: int) -> str:
    """Add an informative property, unless the message would become too long to be put again."""
    longer = props.put(properties, name, str(value))
    fits = len(longer.encode()) + CRC_PROPERTY_SIZE + 1 <= props.PROPERTIES_SIZE_MAX
    return longer if fits else properties
