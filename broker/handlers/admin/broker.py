"""Administration of the broker itself: settings, figures, cleaning, queue entries."""

import json
from typing import Any, Final

import structlog

from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.admin.runtime_info import runtime_info
from aerobee.broker.handlers.common import (
    Handlers,
    peer,
    success,
)
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Request
from aerobee.broker.settings import FixedSetting, SettingsError, render_settings
from aerobee.broker.settings.properties_file import parse_properties
from aerobee.protocol.wire.admin_headers import QueryConsumeQueue, StatsData
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import decode_ext

log = structlog.get_logger("aerobee.admin")

ENTRIES_MAX: Final = 1024  # of one QUERY_CONSUME_QUEUE


def get_broker_config(broker: Broker, request: Request) -> Command:
    """Every setting as `key=value` lines."""
    version = json.dumps(broker.settings.data_version(), separators=(",", ":"))
    return request.command.answer(
        ResponseCode.SUCCESS, {"version": version}, render_settings(broker.settings).encode()
    )


def update_broker_config(broker: Broker, request: Request) -> Command:
    """Change settings that may change while the broker runs, all or none."""
    try:
        text = str(request.command.body, "utf-8")
    except UnicodeDecodeError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the settings are not UTF-8: {error}") from None
    values = {key: value for _line, key, value in parse_properties(text)}
    try:
        changed = broker.settings.change(values)
    except FixedSetting as error:
        raise Refused(ResponseCode.NO_PERMISSION, str(error)) from None
    except SettingsError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from None
    for key, (old, new) in changed.items():
        log.info("setting changed by an operator", key=key, old=old, new=new, peer=peer(request))
    return success(request)


def get_runtime_info(broker: Broker, request: Request) -> Command:
    return success(request, {"table": runtime_info(broker)})


def view_stats(broker: Broker, request: Request) -> Command:
    """One counter's sums and rates in the last minute, hour and day."""
    header = decode_ext(request.command.ext, StatsData)
    found = broker.stats.find(header.stats_name, header.stats_key)
    if found is None:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
        )
    counter, size = found
    return success(request, counter.windows(broker.clock.now_ms(), size=size))


def clean_expired_queues(broker: Broker, request: Request) -> Command:
    """Remove queue files whose messages are gone from the log."""
    broker.store.clean_expired(manual=False)
    return success(request)


def delete_expired_log(broker: Broker, request: Request) -> Command:
    """Remove expired log files now instead of at deleteWhen."""
    broker.store.clean_expired(manual=True)
    log.info("an operator lets expired files be removed", peer=peer(request))
    return success(request)


def clean_unused_topics(broker: Broker, request: Request) -> Command:
    """Remove the queues of topics that have no configuration any more."""
    removed = broker.store.clean_unused_topics(set(broker.topics.all()))
    log.info("queues of unused topics removed by an operator", count=removed, peer=peer(request))
    return success(request)


def query_consume_queue(broker: Broker, request: Request) -> Command:
    """The raw entries of a queue; an empty list if there is no such queue."""
    header = decode_ext(request.command.ext, QueryConsumeQueue)
    store = broker.store
    first = max(0, store.min_offset(header.topic, header.queue_id))
    end = max(0, store.max_offset(header.topic, header.queue_id))
    body: dict[str, Any] = {"maxQueueIndex": end, "minQueueIndex": first, "queueData": []}
    if header.consumer_group:
        subscription = broker.clients.subscription(header.consumer_group, header.topic)
        if subscription is None:
            body["filterData"] = f"{header.consumer_group}@{header.topic} is not online!"
        else:
            body["filterData"] = "null"
            body["subscriptionData"] = subscription.to_json()
    start = max(first, header.index)
    count = min(header.count, ENTRIES_MAX) if header.index >= 0 else 0
    for queue_offset in range(start, min(end, header.index + count)):
        entry = store.queue_entry(header.topic, header.queue_id, queue_offset)
        if entry is None:
            break
        physical_offset, size, tags_code = entry
        body["queueData"].append(
            {"physicOffset": physical_offset, "physicSize": size, "tagsCode": tags_code}
        )
    return success(request, body)


HANDLERS: Handlers = {
    RequestCode.GET_BROKER_CONFIG: get_broker_config,
    RequestCode.UPDATE_BROKER_CONFIG: update_broker_config,
    RequestCode.GET_BROKER_RUNTIME_INFO: get_runtime_info,
    RequestCode.VIEW_BROKER_STATS_DATA: view_stats,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: clean_expired_queues,
    RequestCode.DELETE_EXPIRED_COMMITLOG: delete_expired_log,
    RequestCode.CLEAN_UNUSED_TOPIC: clean_unused_topics,
    RequestCode.QUERY_CONSUME_QUEUE: query_consume_queue,
}
