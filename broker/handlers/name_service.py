"""Requests to a name server: routes, registrations, topic lists, key-value table."""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from aerobee.broker.dispatch import Handler, Request
from aerobee.broker.handlers import name_service_admin as admin
from aerobee.broker.services.config_file import as_int
from aerobee.broker.services.kv_config import ORDER_TOPIC_CONFIG
from aerobee.broker.services.name_service import (
    STANDARD_JSON_VERSION,
    NameService,
    encode_route,
)
from aerobee.broker.services.names import EXPIRY_MS, MASTER_ID, Registration
from aerobee.broker.services.registration_body import decode_body
from aerobee.protocol import fastjson
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.command import Command
from aerobee.protocol.headers import Header, HeaderError, Int32, Int64, decode_ext

CRC_MASK = 0x7FFFFFFF


class Host(Protocol):
    """Whoever has a name service: the broker, or `aerobee namesrv` alone."""

    names: NameService


def handlers(broker: Host) -> dict[int, Handler]:
    table: dict[int, Callable[[NameService, Request], Command | None]] = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route,
        RequestCode.REGISTER_BROKER: register_broker,
        RequestCode.UNREGISTER_BROKER: unregister_broker,
        RequestCode.QUERY_DATA_VERSION: query_data_version,
        RequestCode.BROKER_HEARTBEAT: broker_heartbeat,
        **admin.TABLE,
    }
    return {code: partial(handler, broker.names) for code, handler in table.items()}


class _RouteRequest(Header):
    topic: str = ""
    accept_standard_json_only: bool = False


def get_route(service: NameService, request: Request) -> Command:
    command = request.command
    header = decode_ext(command.ext, _RouteRequest)
    route = service.route(header.topic, service.address_for(request.connection))
    if route is None:
        return command.answer(
            ResponseCode.TOPIC_NOT_EXIST,
            remark=f"No topic route info in name server for the topic: {header.topic}",
        )
    standard = header.accept_standard_json_only or command.version >= STANDARD_JSON_VERSION
    return command.answer(ResponseCode.SUCCESS, body=encode_route(route, standard=standard))


class _BrokerRequest(Header):
    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: Int64 = MASTER_ID


class _RegisterRequest(_BrokerRequest):
    ha_server_addr: str = ""
    heartbeat_timeout_millis: Int64 | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


def register_broker(service: NameService, request: Request) -> Command:
    command = request.command
    header = decode_ext(command.ext, _RegisterRequest)
    if header.body_crc32 and zlib.crc32(command.body) & CRC_MASK != header.body_crc32:
        return command.answer(
            ResponseCode.SYSTEM_ERROR, remark="crc32 not match: the body was damaged on its way"
        )
    try:
        version, topics, filters = decode_body(command.body, compressed=header.compressed)
        service.names.register(
            Registration(
                header.cluster_name,
                header.broker_name,
                header.broker_addr,
                header.broker_id,
                header.ha_server_addr,
                version,
                topics,
                filters,
                header.heartbeat_timeout_millis or EXPIRY_MS,
            ),
            request.connection,
        )
    except ValueError as error:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
    if service.settings.delete_topic_with_broker_registration and len(topics) > 1:
        service.names.forget_topics_not_in(header.broker_name, set(topics))
    _end_with_connection(service, request)
    return command.answer(
        ResponseCode.SUCCESS, _master_of_replica(service, header), _order_topics(service)
    )


def _end_with_connection(service: NameService, request: Request) -> None:
    closed = service.names.connection_closed
    if closed not in request.connection.on_close:
        request.connection.on_close.append(closed)


def _master_of_replica(service: NameService, header: _RegisterRequest) -> dict[str, str]:
    if header.broker_id == MASTER_ID:
        return {}
    master = service.names.master_of(header.broker_name)
    return {"haServerAddr": master.ha_address, "masterAddr": master.address} if master else {}


def _order_topics(service: NameService) -> bytes:
    table = service.kv.namespace(ORDER_TOPIC_CONFIG)
    if not table or not service.settings.return_order_topic_config_to_broker:
        return b""
    return fastjson.dumps({"table": table})


def unregister_broker(service: NameService, request: Request) -> Command:
    header = decode_ext(request.command.ext, _BrokerRequest)
    service.names.unregister(
        header.cluster_name, header.broker_addr, header.broker_name, header.broker_id
    )
    return request.command.answer(ResponseCode.SUCCESS)


def query_data_version(service: NameService, request: Request) -> Command:
    """Whether a broker has to register anew; a sign of life at the same time."""
    command = request.command
    header = decode_ext(command.ext, _BrokerRequest)
    theirs = _json_object(command.body)
    ours = service.names.data_version(header.cluster_name, header.broker_addr)
    service.names.heard_of(header.cluster_name, header.broker_addr)
    same = ours is not None and all(
        as_int(theirs.get(key), -1) == ours.get(key, -1) for key in theirs
    )
    return command.answer(
        ResponseCode.SUCCESS,
        {"changed": "false" if same and theirs else "true"},
        fastjson.dumps(ours) if ours is not None else b"",
    )


def _json_object(body: bytes | memoryview) -> dict[Any, Any]:
    try:
        value = fastjson.loads(body) if body else {}
    except fastjson.JsonError as error:
        raise HeaderError(str(error)) from None
    return value if isinstance(value, dict) else {}


class _HeartbeatRequest(Header):
    cluster_name: str
    broker_addr: str
    heartbeat_timeout_mills: Int64 | None = None


def broker_heartbeat(service: NameService, request: Request) -> Command:
    header = decode_ext(request.command.ext, _HeartbeatRequest)
    service.names.heard_of(header.cluster_name, header.broker_addr, header.heartbeat_timeout_mills)
    return request.command.answer(ResponseCode.SUCCESS)
