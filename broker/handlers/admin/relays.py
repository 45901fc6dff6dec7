"""Requests that only a client can answer: passed on to it, its answer passed back."""

import asyncio
from typing import Any, Final

import structlog

from aerobee.broker.base.peer import Peer
from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import Handlers, reply_later, success
from aerobee.broker.handlers.context import Broker
from aerobee.broker.handlers.queries import stored_record
from aerobee.broker.net.requests import Request
from aerobee.broker.services.clients.consumer_group import Member
from aerobee.protocol.files.ids import parse_offset_message_id
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.admin_headers import ConsumeDirectly, ConsumerStatus, RunningInfo
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import decode_ext
from aerobee.protocol.wire.signing import SIGNING_FIELDS

log = structlog.get_logger("aerobee.admin")

RELAY_TIMEOUT_S: Final = 10.0
STATUS_TIMEOUT_S: Final = 5.0
_VERSION_OF_RELAYS: Final = 62  # 3.1.8-SNAPSHOT
_VERSION_OF_STATUS: Final = 28  # 3.0.7-SNAPSHOT


def _member(broker: Broker, group: str, client_id: str | None) -> Member:
    """The client to ask; any member of the group if none is named."""
    members = broker.clients.consumers_of(group)
    for member in reversed(members):
        if not client_id or member.client_id == client_id:
            if member.version >= _VERSION_OF_RELAYS:
                return member
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{member.client_id}> Version <{member.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
    raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")


def _relay(request: Request, member: Member, group: str, more: dict[str, str], body: bytes) -> None:
    """Pass the request on with `more` fields, and the answer back. Without its signature: neither
    the code nor the names of fields are signed, so the consumer could send other requests by it."""
    code = request.command.code
    ext = {name: text for name, text in request.command.ext.items() if name not in SIGNING_FIELDS}
    ext |= more

    async def ask() -> Command:
        try:
            answer = await member.connection.request(Command(code, ext, body), RELAY_TIMEOUT_S)
        except TimeoutError:
            raise Refused(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group}> <{member.client_id}> Timeout: no answer to request {code} "
                f"within {RELAY_TIMEOUT_S:.0f} s",
            ) from None
        except ConnectionError as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{group}> <{member.client_id}> Exception: {error}",
            ) from None
        return request.command.answer(answer.code, answer.ext, answer.body, answer.remark)

    reply_later(request, ask)


def consumer_running_info(broker: Broker, request: Request) -> None:
    """One consumer's own report."""
    header = decode_ext(request.command.ext, RunningInfo)
    member = _member(broker, header.consumer_group, header.client_id)
    _relay(request, member, header.consumer_group, {}, b"")


def consume_directly(broker: Broker, request: Request) -> None:
    """Have one consumer consume a stored message now."""
    header = decode_ext(request.command.ext, ConsumeDirectly)
    member = _member(broker, header.consumer_group, header.client_id)
    try:
        _host, physical_offset = parse_offset_message_id(header.msg_id)
    except ValueError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from None
    record = stored_record(broker, physical_offset)
    if record is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"no message has the id {header.msg_id}")
    ext = {"brokerName": broker.settings.broker_name}
    topic = broker.topics.get(header.topic) if header.topic else None
    group = broker.groups.find(header.consumer_group)
    if topic is not None:
        ext["topicSysFlag"] = str(topic.topic_sys_flag)
    if group is not None:
        ext["groupSysFlag"] = str(group.group_sys_flag)
    _relay(request, member, header.consumer_group, ext, record)


def consumer_status(broker: Broker, request: Request) -> None:
    """The offsets that the members of a group have in their memory."""
    header = decode_ext(request.command.ext, ConsumerStatus)
    members = [
        member
        for member in broker.clients.consumers_of(header.group)
        if not header.client_addr or member.client_id == header.client_addr
    ]
    if not members:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"No Any Consumer online in the consumer group: [{header.group}]",
        )
    for member in members:
        if member.version < _VERSION_OF_STATUS:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={member.version}",
            )

    async def ask_all() -> Command:
        ext = {"topic": header.topic, "group": header.group}
        tables = await asyncio.gather(*(_ask_status(member.connection, ext) for member in members))
        table = {
            member.client_id: found
            for member, found in zip(members, tables, strict=True)
            if found is not None
        }
        return success(request, {"consumerTable": table, "messageQueueTable": {}})

    reply_later(request, ask_all)


async def _ask_status(connection: Peer, ext: dict[str, str]) -> dict[Any, Any] | None:
    command = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, dict(ext))
    try:
        answer = await connection.request(command, STATUS_TIMEOUT_S)
        body = fastjson.loads_request(answer.body) if answer.body else None
    except (TimeoutError, ConnectionError, fastjson.JsonError) as error:
        log.warning(
            "a consumer did not report its offsets", peer=connection.name, reason=str(error)
        )
        return None
    table = body.get("messageQueueTable") if isinstance(body, dict) else None
    return table if isinstance(table, dict) else None


HANDLERS: Handlers = {
    RequestCode.GET_CONSUMER_RUNNING_INFO: consumer_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_status,
}
