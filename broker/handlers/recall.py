"""RECALL_MESSAGE: take back a timer; and LIST_TIMERS, an Aerobee extension: which are pending."""

from typing import Final

from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import Handlers, known_topic, success
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.durable import answer_when_durable
from aerobee.broker.net.requests import Request
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.ids import encode_host
from aerobee.protocol.files.record import Message
from aerobee.protocol.wire import recall_handle
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import Header, Int32, decode_ext
from aerobee.protocol.wire.recall_handle import RecallHandle

LIST_TIMERS: Final = 20110
LIST_MAX: Final = 1000
_TAG: Final = "_RECALL_TAG_"


class _RecallRequest(Header):
    topic: str
    recall_handle: str
    producer_group: str = ""


class _ListRequest(Header):
    topic: str | None = None
    cursor: str = ""
    max_num: Int32 = 100


def recall(broker: Broker, request: Request) -> Command | None:
    header = decode_ext(request.command.ext, _RecallRequest)
    ext = {props.MSG_REGION: broker.settings.region_id}  # without it Java traces no recall
    try:
        message = _recalling(broker, request, header)
    except Refused as refused:
        return request.command.answer(refused.code, ext, remark=refused.remark)
    ext["msgId"] = message.property(props.UNIQ_KEY) or ""
    return answer_when_durable(broker, request, broker.store.put([message])[0], ext)


def _recalling(broker: Broker, request: Request, header: _RecallRequest) -> Message:
    """The message that takes the timer back, as it is to be stored; Refused says why not."""
    if not broker.settings.recall_message_enable:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            "recall failed, operation is forbidden: recallMessageEnable is false",
        )
    known_topic(broker, header.topic)
    handle = _checked_handle(broker, header)
    connection = request.connection
    now_ms = broker.clock.now_ms()
    message = Message(
        handle.topic,
        0,
        b"0",
        props.encode(
            {
                props.TAGS: _TAG,
                props.TIMER_DEL_UNIQKEY: handle.unique_key,  # as 5.5 writes it
                props.UNIQ_KEY: handle.unique_key,
                props.TIMER_DELIVER_MS: str(handle.deliver_ms),
                props.PGROUP: header.producer_group,
            }
        ),
        born_timestamp=now_ms,
        born_host=encode_host(*connection.peer),
        store_host=broker.addresses.store_host(connection.peer, connection.local),
    )
    return broker.put_hooks.schedule(message)


def _checked_handle(broker: Broker, header: _RecallRequest) -> RecallHandle:
    try:
        handle = recall_handle.decode(header.recall_handle)
    except ValueError as error:
        raise _illegal(str(error)) from None
    if handle.topic != header.topic:
        raise _illegal(f"topic not match: the handle is of topic {handle.topic}")
    if handle.broker_name != broker.settings.broker_name:
        raise _illegal(f"the handle is of broker {handle.broker_name}, send it there")
    left_ms = handle.deliver_ms - broker.clock.now_ms()
    if not 0 < left_ms <= broker.settings.timer_max_delay_sec * 1000:
        raise _illegal("timestamp invalid: the message was delivered already")
    return handle


def _illegal(reason: str) -> Refused:
    return Refused(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {reason}")


def list_timers(broker: Broker, request: Request) -> Command:
    """A page of pending timers; `nextCursor` in the answer asks for the next, absent: no more."""
    header = decode_ext(request.command.ext, _ListRequest)
    count = max(1, min(header.max_num, LIST_MAX))
    try:
        entries, cursor = broker.timers.page(header.cursor, count, header.topic)
    except ValueError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from None
    timers = [entry.to_json(broker.settings.broker_name) for entry in entries]
    body = {"pending": broker.timers.pending, "timers": timers}
    return success(request, body, {"nextCursor": cursor} if cursor else {})


HANDLERS: Handlers = {RequestCode.RECALL_MESSAGE: recall, LIST_TIMERS: list_timers}
