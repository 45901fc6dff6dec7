"""END_TRANSACTION, and RESUME_CHECK_HALF_MESSAGE for a transaction that was given up."""

from typing import Final

import structlog

from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import Handlers
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.durable import answer_when_durable
from aerobee.broker.net.requests import Request
from aerobee.broker.services.transactions.service import EndRequest
from aerobee.protocol.files.ids import parse_offset_message_id
from aerobee.protocol.files.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import Header, Int32, Int64, decode_ext

log = structlog.get_logger("aerobee.transactions")

_NOT_KNOWN_YET: Final = 0
_ENDS: Final = (_NOT_KNOWN_YET, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)


class _EndRequest(Header):
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str = ""


class _ResumeRequest(Header):
    msg_id: str
    topic: str | None = None


def end_transaction(broker: Broker, request: Request) -> Command | None:
    header = decode_ext(request.command.ext, _EndRequest)
    if header.commit_or_rollback not in _ENDS:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"commitOrRollback {header.commit_or_rollback} is none of {_ENDS}",
        )
    if header.commit_or_rollback == _NOT_KNOWN_YET:
        log.info(
            "a producer does not know yet how a transaction ends",
            producer_group=header.producer_group,
            message_id=header.msg_id,
            in_answer_to_check=header.from_transaction_check,
            reason=request.command.remark,
        )
        return None
    try:
        result = broker.transactions.end(
            EndRequest(
                header.producer_group,
                header.tran_state_table_offset,
                header.commit_log_offset,
                header.commit_or_rollback == TRANSACTION_COMMIT,
                header.transaction_id,
            )
        )
    except Refused as refused:
        # Producers send this oneway: the log is the only place where it can be seen.
        log.warning(
            "the end of a transaction was refused",
            producer_group=header.producer_group,
            message_id=header.msg_id,
            reason=refused.remark,
        )
        raise
    return answer_when_durable(broker, request, result)


def resume_check(broker: Broker, request: Request) -> Command | None:
    header = decode_ext(request.command.ext, _ResumeRequest)
    try:
        _, physical_offset = parse_offset_message_id(header.msg_id)
    except ValueError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
    return answer_when_durable(broker, request, broker.transactions.resume(physical_offset))


HANDLERS: Handlers = {
    RequestCode.END_TRANSACTION: end_transaction,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: resume_check,
}
