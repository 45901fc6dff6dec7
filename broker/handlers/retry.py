"""CONSUMER_SEND_MSG_BACK: a consumer returns a message that it could not handle."""

from aerobee.broker.handlers.common import Handlers, unsaved_text
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.durable import answer_when_durable
from aerobee.broker.net.requests import Request
from aerobee.broker.services.retry import SentBack
from aerobee.broker.store.results import PutResult
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import Header, Int32, Int64, decode_ext

# From this version on (3.4.9) the client itself sends the limit of retries.
_VERSION_WITH_RETRY_MAX = 121


class _SendBackRequest(Header):
    offset: Int64
    group: str
    delay_level: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    reason: str = ""  # our SDK's


def send_back(broker: Broker, request: Request) -> Command | None:
    header = decode_ext(request.command.ext, _SendBackRequest)
    has_limit = request.command.version >= _VERSION_WITH_RETRY_MAX
    connection = request.connection
    result = broker.retry.send_back(
        SentBack(
            header.group,
            header.offset,
            header.delay_level,
            header.max_reconsume_times if has_limit else None,
            header.unit_mode,
            header.reason,
        ),
        broker.addresses.store_host(connection.peer, connection.local),
    )
    if result is None:
        return request.command.answer(ResponseCode.SUCCESS)
    if result.ok and not broker.topics.are_durable:
        _answer_when_saved(broker, request, result)
        return None
    return answer_when_durable(broker, request, result)


def _answer_when_saved(broker: Broker, request: Request, result: PutResult) -> None:
    """Answer once the retry or dead-letter topic, which may be new, is on disk."""
    connection, file = request.connection, broker.topics.file
    connection.waits_begin()

    def saved(error: OSError | None) -> None:
        if error is None:
            answer = answer_when_durable(broker, request, result)
        else:
            remark = f"stored, but its topic is new: {unsaved_text(file, error)}"
            answer = request.command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        connection.waits_end()
        if answer is not None:
            request.reply(answer)

    file.when_saved(saved)


HANDLERS: Handlers = {RequestCode.CONSUMER_SEND_MSG_BACK: send_back}
