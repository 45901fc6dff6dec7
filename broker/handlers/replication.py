"""Requests between a master and its slaves, and what a slave refuses."""

from typing import Final

import structlog

from aerobee.broker.auth.copied import NOTHING_NEW, Sealing, digests, group_of, seal, version_of
from aerobee.broker.auth.verdicts import Principal
from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import Handlers, success
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.inner_client import inner_credentials
from aerobee.broker.net.requests import Handler, Request
from aerobee.protocol.json import fastjson
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import Header, Int32, decode_ext
from aerobee.protocol.wire.replica_codes import GET_ACCESS, PROMOTE
from aerobee.protocol.wire.sink_codes import (
    SINK_COMMIT,
    SINK_FORGET,
    SINK_HOME,
    SINK_PREPARE,
    SINK_STATE,
)

log = structlog.get_logger("aerobee.ha")

_SENDS: Final = (ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave: send to its master")
_ADMIN: Final = (
    ResponseCode.SYSTEM_ERROR,
    "Can't modify topic or subscription group from slave broker, please execute it from master "
    "broker.",
)
_TRANSACTIONS: Final = (
    ResponseCode.SLAVE_NOT_AVAILABLE,
    "this broker is a slave: end the transaction at its master",
)
# A slave's answer to requests for a change, as in 4.9.
REFUSED_BY_SLAVES: Final[dict[int, tuple[ResponseCode, str]]] = {
    RequestCode.SEND_MESSAGE: _SENDS,
    RequestCode.SEND_MESSAGE_V2: _SENDS,
    RequestCode.SEND_BATCH_MESSAGE: _SENDS,
    RequestCode.CONSUMER_SEND_MSG_BACK: _SENDS,
    RequestCode.SEND_REPLY_MESSAGE: _SENDS,
    RequestCode.SEND_REPLY_MESSAGE_V2: _SENDS,
    RequestCode.RECALL_MESSAGE: _SENDS,
    SINK_STATE: _SENDS,
    SINK_PREPARE: _SENDS,
    SINK_COMMIT: _SENDS,
    SINK_FORGET: _SENDS,
    SINK_HOME: _SENDS,
    RequestCode.END_TRANSACTION: _TRANSACTIONS,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _TRANSACTIONS,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _ADMIN,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _ADMIN,
    RequestCode.DELETE_TOPIC_IN_BROKER: _ADMIN,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _ADMIN,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _ADMIN,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: _ADMIN,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _ADMIN,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _ADMIN,
    RequestCode.CLONE_GROUP_OFFSET: _ADMIN,
    RequestCode.CLEAN_UNUSED_TOPIC: _ADMIN,
}


def refuse_as_slave(broker: Broker, table: dict[int, Handler]) -> dict[int, Handler]:
    """The handlers of a slave: those that change anything refuse, for as long as it is one."""
    return {code: _guarded(broker, code, handler) for code, handler in table.items()}


def _guarded(broker: Broker, code: int, handler: Handler) -> Handler:
    if code not in REFUSED_BY_SLAVES:
        return handler
    refusal, remark = REFUSED_BY_SLAVES[code]

    def guarded(request: Request) -> Command | None:
        if broker.settings.is_slave:
            raise Refused(refusal, remark)
        return handler(request)

    return guarded


class _SlaveIdentity(Header):
    slave_id: Int32 | None = None
    slave_host: str = ""
    slave_port: Int32 = 0


def exchange_ha_info(broker: Broker, request: Request) -> Command:
    """Where the master's log can be fetched; a slave of ours says which connection is its own."""
    header = decode_ext(request.command.ext, _SlaveIdentity)
    if header.slave_id is not None and header.slave_id > 0:
        principal = request.principal
        user = principal.user if isinstance(principal, Principal) else None
        if user is not None and not user.is_super:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"User:{user.name} may not copy the log, which has the messages of all topics: "
                "only a super user may",
            )
        broker.replication.identify((header.slave_host, header.slave_port), header.slave_id)
    connection = request.connection
    address = broker.addresses.route_address(connection.peer, connection.local)
    ext = {
        "masterAddress": address,
        "masterFlushOffset": str(broker.store.flushed_offset),
        "masterHaAddress": broker.addresses.ha_address(address),
    }
    return success(request, ext={} if broker.settings.is_slave else ext)


def get_ha_status(broker: Broker, request: Request) -> Command:
    """Who copies our log, or whose log we copy."""
    slaves = broker.replication.slaves()
    status = {
        "haClientRuntimeInfo": broker.replication.master(),
        "haConnectionInfo": slaves,
        "inSyncSlaveNums": sum(slave["inSync"] for slave in slaves),
        "master": not broker.settings.is_slave,
        "masterCommitLogMaxOffset": broker.store.max_physical_offset,
    }
    if access := broker.replication.access():
        status["access"] = access
    if broker.settings.has_arbiter:
        status["failover"] = broker.replication.failover()
    return success(request, status)


def get_broker_epoch(broker: Broker, request: Request) -> Command:
    """Which part of our log was written under which master."""
    settings = broker.settings
    epochs = [
        {"endOffset": end, "epoch": number, "startOffset": start}
        for (number, start), end in broker.replication.epochs()
    ]
    return success(
        request,
        {
            "brokerId": settings.broker_id,
            "brokerName": settings.broker_name,
            "clusterName": settings.broker_cluster_name,
            "epochList": epochs,
            "maxOffset": broker.store.max_physical_offset,
        },
    )


class _Promotion(Header):
    broker_role: str = ""
    force: bool = False
    accept_loss: bool = False


def promote(broker: Broker, request: Request) -> Command:
    """An operator makes this slave the master."""
    header = decode_ext(request.command.ext, _Promotion)
    if header.broker_role not in ("", "ASYNC_MASTER", "SYNC_MASTER"):
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"brokerRole={header.broker_role} is not a master's: ASYNC_MASTER or SYNC_MASTER",
        )
    end = broker.store.max_physical_offset
    epoch = broker.replication.promote(
        header.broker_role, force=header.force, accept_loss=header.accept_loss
    )
    return success(request, ext={"epoch": str(epoch), "startOffset": str(end)})


def get_access(broker: Broker, request: Request) -> Command:
    """Users and rights for a replica that has authenticated with the brokers' own credentials."""
    principal, inner = request.principal, inner_credentials(broker.settings)
    if (
        inner is None
        or not isinstance(principal, Principal)
        or principal.name != inner.access_key
        or inner.secret_key not in principal.secrets
    ):
        raise Refused(
            ResponseCode.NO_PERMISSION,
            "only this broker's own innerClientAuthenticationCredentials may copy users: set the "
            "same on its replicas",
        )
    book, ext = broker.guard.book, request.command.ext
    content = {"accounts": list(book.accounts.values()), "white": book.white}
    text = fastjson.dumps(content | {"digests": digests(book.current)})
    if ext.get("known") == version_of(inner.secret_key, text):
        text = NOTHING_NEW
    else:
        log.info("users and rights are given to a replica", peer=request.connection.name)
    challenge = ext.get("challenge", "")
    data = seal(Sealing(inner.secret_key, group_of(broker.settings), challenge), text)
    return request.command.answer(ResponseCode.SUCCESS, {}, data)


def notify_role_changed(broker: Broker, request: Request) -> Command:
    """The controller has elected a master: ask it which one."""
    broker.replication.role_changed()
    return success(request)


def get_timer_check_point(broker: Broker, request: Request) -> Command:
    """config/timercheck for a replica, and the mark that belongs to it."""
    points = broker.timers.checkpoints
    ext = {} if points.mark is None else {"logOffset": str(points.mark)}
    return request.command.answer(ResponseCode.SUCCESS, ext, points.encode())


def get_timer_metrics(_broker: Broker, request: Request) -> Command:
    """An empty answer for RocketMQ 5's replicas, which count their timers themselves."""
    version = {"counter": 0, "stateVersion": 0, "timestamp": 0}
    return success(request, {"dataVersion": version, "timingCount": {}})


HANDLERS: Handlers = {
    RequestCode.EXCHANGE_BROKER_HA_INFO: exchange_ha_info,
    RequestCode.GET_BROKER_HA_STATUS: get_ha_status,
    RequestCode.GET_BROKER_EPOCH_CACHE: get_broker_epoch,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: notify_role_changed,
    PROMOTE: promote,
    GET_ACCESS: get_access,
    RequestCode.GET_TIMER_CHECK_POINT: get_timer_check_point,
    RequestCode.GET_TIMER_METRICS: get_timer_metrics,
}
