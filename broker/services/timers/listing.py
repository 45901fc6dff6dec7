"""Pending timers, page by page, in the order of their next action.

A timer farther ahead than the roll window is listed at the time of its next roll.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aerobee.broker.services.timers.messages import deliver_time, message_of, timer_key
from aerobee.broker.services.timers.slot import Place, load_slot
from aerobee.broker.services.timers.timer_log import MAGIC_DELETE, TimerLog
from aerobee.broker.services.timers.wheel import TimerWheel
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import StoredMessage
from aerobee.protocol.wire import recall_handle

if TYPE_CHECKING:
    from aerobee.broker.store.message_store import MessageStore

LOOKED_AT_MAX: Final = 10_000  # units of one page, when few of them are of the topic wanted


@dataclass(frozen=True, slots=True)
class TimerEntry:
    """One pending timer."""

    deliver_ms: int
    message: StoredMessage

    def to_json(self, broker_name: str) -> dict[str, Any]:
        found = self.message.property_map()
        topic, unique_key = found.get(props.REAL_TOPIC, ""), found.get(props.UNIQ_KEY, "")
        handle = recall_handle.encode(topic, broker_name, str(self.deliver_ms), unique_key)
        return {
            "bodySize": len(self.message.body),
            "bornTimestamp": self.message.born_timestamp,
            "deliverTimestamp": self.deliver_ms,
            "keys": found.get(props.KEYS),
            "msgId": unique_key,
            "offsetMsgId": self.message.message_id,
            "queueId": int(found.get(props.REAL_QID, "0")),
            "recallHandle": handle,
            "tags": found.get(props.TAGS),
            "topic": topic,
        }


def parse_cursor(text: str) -> tuple[int, Place]:
    """Where a page begins: a second, and the last place of it that was shown."""
    try:
        second, deliver_ms, position = (int(word) for word in text.split("."))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a cursor of a list of timers; begin without one"
        ) from None
    return second, (deliver_ms, position)


def list_timers(
    store: "MessageStore",
    timer_log: TimerLog,
    wheel: TimerWheel,
    start: tuple[int, Place],
    count: int,
    topic: str | None,
) -> tuple[list[TimerEntry], str]:
    """A page, and the cursor of the next one; empty when there is none."""
    entries: list[TimerEntry] = []
    second, after = start
    looked_at = 0
    found = wheel.next_second(second, 2**62)
    while found is not None and found >= second:
        second = found
        slot = load_slot(store, timer_log, wheel, second, after)
        while (place := slot.peek()) is not None:
            if len(entries) == count or looked_at >= LOOKED_AT_MAX:
                return entries, f"{second}.{after[0]}.{after[1]}"
            slot.pop()
            after = place
            looked_at += 1
            entry = _entry(store, timer_log, place, slot.recalled, topic)
            if entry is not None:
                entries.append(entry)
        second += 1
        found = wheel.next_second(second, 2**62)
    return entries, ""


def _entry(
    store: "MessageStore",
    timer_log: TimerLog,
    place: Place,
    recalled: set[str],
    topic: str | None,
) -> TimerEntry | None:
    unit = timer_log.read(place[1])
    try:
        message = message_of(store, unit) if unit is not None else None
    except OSError:  # a bad sector: the others are shown
        return None
    if unit is None or message is None or unit.magic & MAGIC_DELETE:
        return None
    if topic is not None and message.property(props.REAL_TOPIC) != topic:
        return None
    if recalled and timer_key(message) in recalled:
        return None
    return TimerEntry(deliver_time(message.properties) or place[0], message)
