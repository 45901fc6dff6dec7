"""Requests to a name server: routes, registrations, topic lists, key-value table."""

import zlib
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Protocol

from aerobee.broker.handlers.name_service import admin as admin
from aerobee.broker.net.requests import Handler, Request, failed
from aerobee.broker.services.config_files.config_file import as_int
from aerobee.broker.services.name_service.kv_config import ORDER_TOPIC_CONFIG
from aerobee.broker.services.name_service.registration_body import decode_slices
from aerobee.broker.services.name_service.route_data import (
    EXPIRY_MS,
    MASTER_ID,
    NewerMaster,
    Registration,
)
from aerobee.broker.services.name_service.service import (
    STANDARD_JSON_VERSION,
    NameService,
    encode_route,
)
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import Header, HeaderError, Int32, Int64, decode_ext

CRC_MASK = 0x7FFFFFFF


class Host(Protocol):
    """The process with the name service: the broker, or `aerobee namesrv` alone."""

    name_service: NameService


def handlers(broker: Host) -> dict[int, Handler]:
    table: dict[int, Callable[[NameService, Request], Command | None]] = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route,
        RequestCode.REGISTER_BROKER: register_broker,
        RequestCode.UNREGISTER_BROKER: unregister_broker,
        RequestCode.QUERY_DATA_VERSION: query_data_version,
        RequestCode.BROKER_HEARTBEAT: broker_heartbeat,
        **admin.TABLE,
    }
    return {code: partial(handler, broker.name_service) for code, handler in table.items()}


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


def register_broker(service: NameService, request: Request) -> Command | None:
    command = request.command
    header = decode_ext(command.ext, _RegisterRequest)
    if header.body_crc32 and zlib.crc32(command.body) & CRC_MASK != header.body_crc32:
        return command.answer(
            ResponseCode.SYSTEM_ERROR, remark="crc32 not match: the body was damaged on its way"
        )
    service.registrations.add(request.connection.turns, _register(service, request, header))
    return None


def _register(
    service: NameService, request: Request, header: _RegisterRequest
) -> Generator[None, None, None]:
    """In slices, because a broker may have tens of thousands of topics."""
    command = request.command
    try:
        version, topics, filters = yield from decode_slices(
            command.body, compressed=header.compressed
        )
        if request.connection.is_closed:
            return
        _end_with_connection(service, request)
        yield from service.routes.register_slices(
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
    except NewerMaster as error:
        ext = {"masterEpoch": str(error.epoch)}
        request.reply(command.answer(ResponseCode.SYSTEM_ERROR, ext, remark=str(error)))
        return
    except ValueError as error:
        request.reply(command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error)))
        return
    except Exception as error:
        request.reply(failed(request, error))
        return
    if service.settings.delete_topic_with_broker_registration and len(topics) > 1:
        service.routes.forget_topics_not_in(header.broker_name, set(topics))
    request.reply(
        command.answer(
            ResponseCode.SUCCESS, _master_of(service, request, header), _order_topics(service)
        )
    )


def _end_with_connection(service: NameService, request: Request) -> None:
    closed = service.routes.connection_closed
    if closed not in request.connection.on_close:
        request.connection.on_close.append(closed)


def _master_of(service: NameService, request: Request, header: _RegisterRequest) -> dict[str, str]:
    """For a slave: its master's addresses, if that is alive, and the last epoch of any master."""
    if header.broker_id == MASTER_ID:
        return {}
    routes, local = service.routes, service.routes.local
    epoch = routes.epoch_of(header.broker_name)
    known = {"masterEpoch": str(epoch)} if epoch else {}
    is_local = local and (local.name, local.broker_id) == (header.broker_name, MASTER_ID)
    if is_local and not routes.local_is_superseded:
        address = service.address_for(request.connection)
        return known | {"haServerAddr": service.ha_address_of(address), "masterAddr": address}
    master = routes.master_of(header.broker_name)
    if master is None:
        return known
    return known | {"haServerAddr": master.ha_address, "masterAddr": master.address}


def _order_topics(service: NameService) -> bytes:
    table = service.kv.namespace(ORDER_TOPIC_CONFIG)
    if not table or not service.settings.return_order_topic_config_to_broker:
        return b""
    return fastjson.dumps({"table": table})


def unregister_broker(service: NameService, request: Request) -> None:
    header = decode_ext(request.command.ext, _BrokerRequest)

    def unregister() -> Iterator[None]:
        service.routes.unregister(
            header.cluster_name, header.broker_addr, header.broker_name, header.broker_id
        )
        request.reply(request.command.answer(ResponseCode.SUCCESS))
        yield

    service.registrations.add(request.connection.turns, unregister())


def query_data_version(service: NameService, request: Request) -> Command:
    """Whether a broker has to register again; it counts as a heartbeat, too."""
    command = request.command
    header = decode_ext(command.ext, _BrokerRequest)
    theirs = _json_object(command.body)
    ours = service.routes.data_version(header.cluster_name, header.broker_addr)
    _note_heartbeat(service, request, header)
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
        value = fastjson.loads_request(body) if body else {}
    except fastjson.JsonError as error:
        raise HeaderError(str(error)) from None
    return value if isinstance(value, dict) else {}


class _HeartbeatRequest(Header):
    cluster_name: str
    broker_addr: str
    heartbeat_timeout_mills: Int64 | None = None


def _note_heartbeat(
    service: NameService,
    request: Request,
    header: _BrokerRequest | _HeartbeatRequest,
    timeout_ms: int | None = None,
) -> None:
    """The registration lasts as long as the connection by which the last sign of life came: an
    earlier one may have been lost without an end, and be closed only later."""
    connection = None if request.connection.is_closed else request.connection
    known = service.routes.note_heartbeat(
        header.cluster_name, header.broker_addr, connection, timeout_ms
    )
    if known and connection is not None:
        _end_with_connection(service, request)


def broker_heartbeat(service: NameService, request: Request) -> Command:
    header = decode_ext(request.command.ext, _HeartbeatRequest)
    _note_heartbeat(service, request, header, header.heartbeat_timeout_mills)
    return request.command.answer(ResponseCode.SUCCESS)
