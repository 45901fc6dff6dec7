"""Answers to requests that the broker carries out by storing a message of its own."""

from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.send_rules import LATE
from aerobee.broker.net.requests import Request
from aerobee.broker.store.results import PutResult, PutStatus
from aerobee.protocol.wire.codes import ResponseCode
from aerobee.protocol.wire.command import Command


def answer_when_durable(
    broker: Broker, request: Request, result: PutResult, ext: dict[str, str] | None = None
) -> Command | None:
    """SUCCESS once the message is as safe as the settings require, else what went wrong."""
    command = request.command
    if not result.ok:
        remark = f"{result.status.name}: {result.reason}"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    if not broker.store.puts_wait or command.is_oneway:
        return command.answer(ResponseCode.SUCCESS, ext)
    connection = request.connection
    connection.waits_begin()

    def durable(status: PutStatus) -> None:
        connection.waits_end(1)
        if status is PutStatus.PUT_OK:
            request.reply(command.answer(ResponseCode.SUCCESS, ext))
        else:
            why = LATE.get(status, "the disk has not confirmed it")
            remark = f"{status.name}: {why}"
            request.reply(command.answer(ResponseCode.SYSTEM_ERROR, remark=remark))

    broker.store.when_durable(result.end_offset, durable)
    return None
