"""Clients come, stay and go: HEART_BEAT, UNREGISTER_CLIENT, GET_CONSUMER_LIST_BY_GROUP."""

from collections.abc import Generator
from dataclasses import replace
from typing import Final

import structlog

from aerobee.broker.base import resource_names
from aerobee.broker.handlers.common import Handlers, in_slices, peer, success
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Request
from aerobee.broker.services.clients.heartbeats import (
    CONSUME_ACTIVELY,
    ConsumerData,
    Heartbeat,
    parse_heartbeat,
)
from aerobee.protocol.wire.admin_headers import ConsumerGroupHeader, UnregisterClient
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import decode_ext

log = structlog.get_logger("aerobee.clients")

AT_ONCE: Final = 200  # groups and subscriptions of a heartbeat; with more it is done in slices


def heart_beat(broker: Broker, request: Request) -> Command | None:
    """Register the client before answering: its next request expects to find it in the group."""
    heartbeat = parse_heartbeat(
        request.command.body, broker.settings.max_subscriptions_per_connection
    )
    connection = request.connection
    connection.client_id = heartbeat.client_id
    connection.language = request.command.language
    connection.version = request.command.version
    work = _register(broker, request, heartbeat)
    if heartbeat.size <= AT_ONCE:
        return _end_of(work)
    in_slices(request, work)
    return None


def _register(
    broker: Broker, request: Request, heartbeat: Heartbeat
) -> Generator[None, None, Command]:
    """Register all groups, yielding after each; returns the answer."""
    unknown = False
    for data in heartbeat.consumers:
        if request.connection.is_closed:
            break
        unknown |= _consumer(broker, request, heartbeat, data)
        yield
    if refused := _producers(broker, request, heartbeat):
        return request.command.answer(ResponseCode.SYSTEM_ERROR, remark=refused)
    # Only a client that sends the short form evaluates this answer: "send all of it next time".
    changed = unknown if heartbeat.fingerprint else True
    return success(
        request,
        ext={
            "IS_SUPPORT_HEART_BEAT_V2": "true",
            "IS_SUB_CHANGE": str(changed).lower(),
            "flushDiskType": broker.settings.flush_disk_type,  # for the SDK's receipts
        },
    )


def _end_of(work: Generator[None, None, Command]) -> Command:
    while True:
        try:
            next(work)
        except StopIteration as done:
            answer: Command = done.value
            return answer


def _producers(broker: Broker, request: Request, heartbeat: Heartbeat) -> str:
    """Register the producer groups; returns why some are not, if the connection has too many."""
    connection = request.connection
    left_out: list[str] = []
    for group in () if connection.is_closed else heartbeat.producer_groups:
        if problem := resource_names.producer_group_problem(group):
            log.warning("a producer is not registered", reason=problem, peer=connection.name)
        elif not broker.clients.register_producer(
            connection,
            heartbeat.client_id,
            group,
            language=request.command.language,
            version=request.command.version,
        ):
            left_out.append(group)
    if not left_out:
        return ""
    most = broker.settings.max_producer_groups_per_connection
    reason = (
        f"{len(left_out)} producer groups, {left_out[0]} the first, are not registered: this "
        f"connection has {most}, and maxProducerGroupsPerConnection allows no more"
    )
    log.warning("producers are not registered", reason=reason, peer=connection.name)
    return reason


def _consumer(broker: Broker, request: Request, heartbeat: Heartbeat, data: ConsumerData) -> bool:
    """Register one group's entry; True if the client must send all subscriptions next time."""
    pulls = data.consume_type == CONSUME_ACTIVELY
    if pulls and broker.settings.reject_pull_consumer_enable:
        return False
    config = broker.groups.get(data.group)
    if config is None:
        log.warning(
            "a consumer is not registered: its group may not be created",
            group=data.group[: resource_names.GROUP_SIZE_MAX],
            client_id=heartbeat.client_id,
            peer=request.connection.name,
        )
        return False
    data = _with_good_names(broker, request, data)
    ordered = any(
        (topic := broker.topics.get(subscription.topic)) is not None and topic.order
        for subscription in data.subscriptions
    )
    if not broker.settings.is_slave:  # its master makes topics
        broker.topics.create_retry(
            data.group, config.retry_queue_nums, order=ordered, unit=data.unit_mode
        )
    broker.clients.register_consumer(
        request.connection,
        heartbeat.client_id,
        data,
        language=request.command.language,
        version=request.command.version,
        without_subscriptions=heartbeat.without_subscriptions,
    )
    return heartbeat.without_subscriptions and not broker.clients.knows_subscriptions(
        data.group, request.connection
    )


def _with_good_names(broker: Broker, request: Request, data: ConsumerData) -> ConsumerData:
    """The entry without subscriptions to topics with invalid names, as filters are kept by name."""
    problems = {
        subscription.topic: problem
        for subscription in data.subscriptions
        if broker.topics.get(subscription.topic) is None
        and (problem := resource_names.topic_problem(subscription.topic))
    }
    for problem in problems.values():
        log.warning(
            "a subscription is left out", group=data.group, reason=problem, peer=peer(request)
        )
    if not problems:
        return data
    kept = tuple(each for each in data.subscriptions if each.topic not in problems)
    return replace(data, subscriptions=kept)


def unregister_client(broker: Broker, request: Request) -> Command:
    """Remove the client from the groups that it names."""
    header = decode_ext(request.command.ext, UnregisterClient)
    if header.producer_group:
        broker.clients.unregister_producer(request.connection, header.producer_group)
    if header.consumer_group:
        broker.clients.unregister_consumer(
            request.connection, header.consumer_group, header.client_id
        )
    return success(request)


def consumer_list(broker: Broker, request: Request) -> Command:
    """The ids of all members; every member gets the same list."""
    group = decode_ext(request.command.ext, ConsumerGroupHeader).consumer_group
    body = broker.clients.list_body(group)
    if body is None:
        return request.command.answer(
            ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {group}"
        )
    return request.command.answer(ResponseCode.SUCCESS, body=body)


HANDLERS: Handlers = {
    RequestCode.HEART_BEAT: heart_beat,
    RequestCode.UNREGISTER_CLIENT: unregister_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
}
