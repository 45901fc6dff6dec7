"""What happens to a message before it is stored: half messages, delay levels, timers.

Each sends the message to a topic of the broker itself and keeps its destination in REAL_TOPIC and
REAL_QID. Most messages need no hook: they have no transaction flag and none of MARKS.
"""

import re
from typing import Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.base.resource_names import is_dlq_topic
from aerobee.broker.settings import Settings
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import TRANSACTION_MASK, TRANSACTION_PREPARED, Message
from aerobee.protocol.names import (
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_HALF_TOPIC,
)
from aerobee.protocol.wire import recall_handle
from aerobee.protocol.wire.codes import ResponseCode

# One of these is in the properties of each message that `apply` changes because of them.
MARKS: Final = (props.DELAY + props.NAME_END, "TIMER_", props.TRAN_MSG + props.NAME_END)
_TIMER_NAMES: Final = (props.TIMER_DELIVER_MS, props.TIMER_DELAY_MS, props.TIMER_DELAY_SEC)
# Written by the check of transactions, not by clients.
_KEPT_BY_CHECKS: Final = (props.TRANSACTION_CHECK_TIMES, props.TRAN_PREPARED_QUEUE_OFFSET)
# Written when a file is to be removed, not by clients.
_KEPT_BY_KEEPERS: Final = (props.TIMER_CARRIED_FROM, props.TIMER_CARRIED_LEVEL)
_TIME_MAX: Final = 2**63 - 1
_LEVEL: Final = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


class PutHooks:
    """The hooks, with the settings they follow."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._level_max = len(settings.delay_levels_ms)

    def apply(self, message: Message) -> Message:
        """A client's message as it is to be stored; Refused says why it cannot be."""
        _check_delay(message)
        if self._is_half(message):
            return self._as_half(message)
        return self.schedule(message)

    def schedule(self, message: Message) -> Message:
        """Delay level or timer; also for retries and for transactions that are committed."""
        if message.topic in (TIMER_TOPIC, SCHEDULE_TOPIC):
            return message
        level = delay_level(message.properties)
        if level > 0:
            return self._as_delayed(message, level)
        if message.property(props.TIMER_OUT_MS) is not None:
            return message  # it has been a timer before, and was delivered
        if any(message.property(name) is not None for name in _TIMER_NAMES):
            return self._as_timer(message)
        return message

    def recall_handle(self, message: Message) -> str | None:
        """What a client needs to recall a message that `apply` has made a timer; else None."""
        if message.topic != TIMER_TOPIC or message.property(props.TIMER_DEL_UNIQKEY) is not None:
            return None
        topic = message.property(props.REAL_TOPIC)
        unique_key = message.property(props.UNIQ_KEY)
        deliver_ms = message.property(props.TIMER_DELIVER_MS)
        if not topic or not unique_key or not deliver_ms or topic.startswith(RETRY_PREFIX):
            return None
        return recall_handle.encode(topic, self._settings.broker_name, deliver_ms, unique_key)

    # --- half messages

    def _is_half(self, message: Message) -> bool:
        prepared = message.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED
        if not prepared and (message.property(props.TRAN_MSG) or "").lower() != "true":
            return False
        # A committed message keeps TRAN_MSG: as a retry or a dead letter it is not a half message.
        is_retried = delay_level(message.properties) > 0 or is_dlq_topic(message.topic)
        return not (message.reconsume_times > 0 and is_retried)

    def _as_half(self, message: Message) -> Message:
        if self._settings.reject_transaction_message:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                "this broker takes no transactional messages: rejectTransactionMessage is true",
            )
        if any(name in message.properties for name in _KEPT_BY_CHECKS):
            message.properties = props.remove(message.properties, *_KEPT_BY_CHECKS)
        if unique_key := message.property(props.UNIQ_KEY):
            message.properties = props.put(message.properties, props.TRANSACTION_ID, unique_key)
        message.sys_flag &= ~TRANSACTION_MASK  # so that it enters the half topic's queue
        return _redirect(message, TRANSACTION_HALF_TOPIC, 0)

    # --- delays

    def _as_delayed(self, message: Message, level: int) -> Message:
        level = min(level, self._level_max)
        text = message.properties
        if "TIMER_" in text:  # a level wins over a timer
            text = props.remove(text, *_TIMER_NAMES)
        message.properties = props.put(text, props.DELAY, str(level))
        return _redirect(message, SCHEDULE_TOPIC, level - 1)

    def _as_timer(self, message: Message) -> Message:
        settings = self._settings
        if not settings.timer_wheel_enable:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        now_ms = self._clock.now_ms()
        deliver_ms = _deliver_time(message, now_ms)
        if deliver_ms <= now_ms:
            if message.property(props.TIMER_DEL_UNIQKEY) is not None:
                raise _illegal("the time of the timer to recall has passed")
            return message
        if deliver_ms - now_ms > settings.timer_max_delay_sec * 1000:
            raise _illegal(
                f"the delay of {(deliver_ms - now_ms) / 1000:.0f} s is more than "
                f"timerMaxDelaySec={settings.timer_max_delay_sec}"
            )
        # As upstream writes it: the tick before the one at which it is due.
        tick_ms = settings.timer_precision_ms
        out_ms = (deliver_ms - 1) // tick_ms * tick_ms
        text = message.properties
        if "TIMER_CARRIED_" in text:
            text = props.remove(text, *_KEPT_BY_KEEPERS)
        text = props.put(text, props.TIMER_DELIVER_MS, str(deliver_ms))
        message.properties = props.put(text, props.TIMER_OUT_MS, str(out_ms))
        return _redirect(message, TIMER_TOPIC, 0)


def _check_delay(message: Message) -> None:
    """An unreadable delay is refused: the message must not be delivered at once."""
    text = message.property(props.DELAY)
    if text and not (_LEVEL.fullmatch(text) and abs(int(text)) < 2**31):
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL, f"property DELAY={text[:40]!r} is not a delay level"
        )


def delay_level(properties: str) -> int:
    """The delay level that a message asks for; 0 if it has none, or no valid number."""
    text = (props.get(properties, props.DELAY) or "").removeprefix("+")
    return int(text) if text and len(text) <= 10 and text.isascii() and text.isdigit() else 0


def _redirect(message: Message, topic: str, queue_id: int) -> Message:
    text = props.put(message.properties, props.REAL_TOPIC, message.topic)
    message.properties = props.put(text, props.REAL_QID, str(message.queue_id))
    message.topic = topic
    message.queue_id = queue_id
    return message


def _deliver_time(message: Message, now_ms: int) -> int:
    delay_s = message.property(props.TIMER_DELAY_SEC)
    delay_ms = message.property(props.TIMER_DELAY_MS)
    if delay_s is not None:
        return now_ms + _number(props.TIMER_DELAY_SEC, delay_s) * 1000
    if delay_ms is not None:
        return now_ms + _number(props.TIMER_DELAY_MS, delay_ms)
    return _number(props.TIMER_DELIVER_MS, message.property(props.TIMER_DELIVER_MS) or "")


def _number(name: str, text: str) -> int:
    try:
        value = int(text) if len(text) <= 20 and "_" not in text else _TIME_MAX + 1
    except ValueError:
        value = _TIME_MAX + 1
    if not -_TIME_MAX <= value <= _TIME_MAX:
        raise _illegal(f"property {name}={text[:40]!r} is not a time in whole numbers")
    return value


def _illegal(reason: str) -> Refused:
    return Refused(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal: {reason}")
