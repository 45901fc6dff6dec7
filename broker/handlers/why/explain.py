"""EXPLAIN_MESSAGE, an Aerobee extension: all that this broker knows of a message, as facts."""

from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import Handlers
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.why.copies import copy_facts, decoded, find_copies
from aerobee.broker.handlers.why.groups import group_facts, groups_to_report
from aerobee.broker.net.requests import Request, failed
from aerobee.broker.store.results import QueryResult
from aerobee.protocol.files.ids import is_offset_message_id, parse_offset_message_id, unique_id_time
from aerobee.protocol.files.record import decode_record
from aerobee.protocol.files.record_layout import CorruptRecord
from aerobee.protocol.message_copies import original_topic
from aerobee.protocol.wire import message_facts
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.headers import Header, decode_ext
from aerobee.protocol.wire.message_facts import EXPLAIN_MESSAGE, Removed

_ID_SIZE_MAX = 256


class _ExplainRequest(Header):
    msg_id: str
    topic: str | None = None
    group: str | None = None


def explain(broker: Broker, request: Request) -> None:
    header = decode_ext(request.command.ext, _ExplainRequest)
    if not 0 < len(header.msg_id) <= _ID_SIZE_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, "msgId is not a message id")
    connection = request.connection
    connection.waits_begin()

    def done(outcome: QueryResult | Exception) -> None:
        connection.waits_end()
        try:
            if isinstance(outcome, Exception):
                raise outcome
            own_host = broker.addresses.store_host(connection.peer, connection.local)
            body = message_facts.encode(_facts(broker, header, outcome, own_host))
        except Exception as error:
            request.reply(failed(request, error))
        else:
            request.reply(request.command.answer(ResponseCode.SUCCESS, {}, body))

    search = find_copies(broker, header.msg_id, header.topic or None)
    broker.searches.start(search, done, lambda: not connection.is_closed)


def _facts(
    broker: Broker, header: _ExplainRequest, found: QueryResult, own_host: bytes
) -> message_facts.Broker:
    messages = decoded(found.views)
    if header.topic:  # a user of one topic must not see others
        messages = [each for each in messages if original_topic(each) == header.topic]
    topic = original_topic(messages[0]) if messages else header.topic or ""
    facts = message_facts.Broker(
        broker=broker.settings.broker_name,
        now=broker.clock.now_ms(),
        copies=[copy_facts(broker, message) for message in messages],
        topic=topic,
        sync_flush=broker.store.sync_flush,
        has_history=True,
    )
    if not messages:
        facts.removed = _removed(broker, header.msg_id, own_host)
    names = [header.group] if header.group else groups_to_report(broker, topic, messages)
    facts.groups = [group_facts(broker, name, topic, messages) for name in names if messages]
    return facts


def _oldest_ms(broker: Broker) -> int | None:
    """When the oldest record that is left was stored."""
    view = broker.store.record_at(broker.store.readable_from)
    try:
        return None if view is None else decode_record(view).store_timestamp
    except CorruptRecord:
        return None


def _removed(broker: Broker, message_id: str, own_host: bytes) -> Removed | None:
    """The log file that held the message, or what was stored when its id was made."""
    row = None
    if is_offset_message_id(message_id):
        host, physical_offset = parse_offset_message_id(message_id)
        if host == own_host and physical_offset < broker.store.readable_from:
            row = broker.history.removed_at(physical_offset)
    else:
        made_ms = unique_id_time(message_id, broker.clock.now_ms())
        oldest_ms = _oldest_ms(broker)
        if made_ms is not None and (oldest_ms is None or made_ms < oldest_ms):
            row = broker.history.removed_since(made_ms)
    if row is None:
        return None
    start, noted = row
    return Removed(
        start=start,
        end=noted["end"],
        written_until=noted["written"],
        at=noted["at"],
        reason=str(noted["why"]),
    )


HANDLERS: Handlers = {EXPLAIN_MESSAGE: explain}
