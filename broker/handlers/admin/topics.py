"""Administration of topics: create, change, delete, list, and how full their queues are."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from aerobee.broker.base import resource_names
from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import (
    Handlers,
    answer_when_saved,
    check_can_be_saved,
    known_topic,
    peer,
    put_listed,
    success,
)
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Request
from aerobee.broker.services.config_files.config_file import DataVersion
from aerobee.broker.services.topics.config import (
    FILTER_TYPES,
    TopicConfig,
    topic_from_json,
)
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.admin_headers import CreateTopic, TopicHeader, TopicPage
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import decode_ext

log = structlog.get_logger("aerobee.admin")

INT_MIN: Final = -(2**31)  # RocketMQ's fields have 32 bits
INT_MAX: Final = 2**31 - 1
PAGE_SIZE_MAX: Final = 2000  # splitMetadataSize

# Attributes of topics, with the values that this broker can hold to; None: any.
_ATTRIBUTES: Final[dict[str, tuple[str, ...] | None]] = {
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
    "message.type": None,
    "reserve.time": None,
}


def update_and_create_topic(broker: Broker, request: Request) -> Command | None:
    """Create a topic or change it."""
    header = decode_ext(request.command.ext, CreateTopic)
    known = broker.topics.get(header.topic)
    config = TopicConfig(
        header.topic,
        header.read_queue_nums,
        header.write_queue_nums,
        header.perm,
        header.topic_filter_type,
        header.topic_sys_flag or 0,
        header.order,
        _altered(known.attributes if known else {}, _parse_attributes(header.attributes)),
        known.unknown if known else {},
    )
    _check(broker, config)
    broker.topics.put(config)
    log.info("topic set by an operator", topic=config.name, peer=peer(request))
    return answer_when_saved(request, success(request), broker.topics.file)


def update_and_create_topic_list(broker: Broker, request: Request) -> None:
    """Create or change several topics, all or none."""
    topics = broker.topics
    put_listed(request, "topic", partial(_checked, broker), topics.put, topics.file)


def _checked(broker: Broker, entry: dict[Any, Any]) -> TopicConfig:
    config = topic_from_json(entry)
    known = broker.topics.get(config.name)
    attributes = _altered(known.attributes if known else {}, config.attributes)
    config = replace(config, attributes=attributes)
    _check(broker, config)
    return config


def _check(broker: Broker, config: TopicConfig) -> None:
    """Refuse a configuration that the broker cannot keep."""
    problem = next(_problems(broker, config), None)
    if problem is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, problem)
    check_can_be_saved(f"topic {config.name}", config.to_json())


def _problems(broker: Broker, config: TopicConfig) -> Iterator[str]:
    settings = broker.settings
    name = config.name
    if problem := resource_names.topic_problem(name):
        yield problem
    if settings.validate_system_topic_when_update_topic and broker.topics.is_system(name):
        yield f"The topic[{name}] is conflict with system topic."
    most = settings.max_queue_nums
    read, write = config.read_queue_nums, config.write_queue_nums
    if not (0 <= read <= most and 0 <= write <= most):
        yield f"topic {name} with {read} read and {write} write queues: each must be 0 to {most}"
    if not (INT_MIN <= config.perm <= INT_MAX and INT_MIN <= config.topic_sys_flag <= INT_MAX):
        yield f"perm {config.perm} or topicSysFlag of topic {name} does not fit 32 bits"
    if config.topic_filter_type not in FILTER_TYPES:
        yield f"topicFilterType {config.topic_filter_type} is not one of {FILTER_TYPES}"


def _parse_attributes(text: str | None) -> dict[str, str]:
    """`+name=value,-name` as a map from the signed name."""
    parsed: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        name, equals, value = part.strip().partition("=")
        if name.startswith("+") == bool(equals) and name[1:]:
            parsed[name] = value
            continue
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"attribute {part!r} cannot be read; write +name=value to set, -name to remove",
        )
    return parsed


def _altered(current: dict[str, str], changes: dict[str, str]) -> dict[str, str]:
    """`current` with the signed `changes` made."""
    altered = dict(current)
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        problem = None
        if sign not in ("+", "-"):
            problem = f"attribute {signed!r} must begin with + or -"
        elif sign == "-" and name not in altered:
            problem = f"attribute {name} cannot be removed: it is not set"
        elif name not in _ATTRIBUTES:
            problem = f"attribute {name} is unknown; known are {', '.join(sorted(_ATTRIBUTES))}"
        elif sign == "+" and (allowed := _ATTRIBUTES[name]) and value not in allowed:
            problem = f"attribute {name}={value} is not supported here; use {' or '.join(allowed)}"
        if problem:
            raise Refused(ResponseCode.INVALID_PARAMETER, problem)
        if sign == "+":
            altered[name] = value
        else:
            del altered[name]
    return altered


def delete_topic(broker: Broker, request: Request) -> Command | None:
    """Remove a topic, its queues and every group's offsets in it."""
    name = decode_ext(request.command.ext, TopicHeader).topic
    if not name.strip():
        raise Refused(ResponseCode.INVALID_PARAMETER, "the topic has no name; give one")
    if broker.settings.validate_system_topic_when_update_topic and broker.topics.is_system(name):
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"The topic[{name}] is conflict with system topic.",
        )
    if broker.topics.get(name) is None and resource_names.topic_problem(name):
        return success(request)  # no such topic can exist: skip the store
    config = broker.topics.delete(name)
    broker.offsets.delete_topic(name)
    broker.stats.delete_topic(name)
    broker.store.delete_topic(name)
    for queue_id in range(config.queue_nums if config else 0):
        broker.long_polling.wake_queue(name, queue_id)  # pulls held there would never be answered
    log.info("topic deleted by an operator", topic=name, peer=peer(request))
    return answer_when_saved(request, success(request), broker.topics.file, broker.offsets.file)


def get_topic_config(broker: Broker, request: Request) -> Command:
    config = known_topic(broker, decode_ext(request.command.ext, TopicHeader).topic)
    return success(request, config.to_json())


def get_all_topic_config(broker: Broker, request: Request) -> Command:
    """The whole table, or since 5.3 a page of it in the order of names."""
    header = decode_ext(request.command.ext, TopicPage)
    table = broker.topics.all()
    names = page(
        sorted(table),
        header.topic_seq,
        header.max_topic_num,
        header.data_version,
        broker.topics.data_version,
    )
    content = {
        "dataVersion": broker.topics.data_version.to_json(),
        "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
        "topicConfigTable": {name: table[name].to_json() for name in names},
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    return success(request, content, {"totalTopicNum": str(len(table))})


def page(
    names: list[str],
    start: int | None,
    count: int | None,
    version_text: str | None,
    version: DataVersion,
) -> list[str]:
    """The names that a paged request asks for: from the first when the table changed meanwhile."""
    if start is None and count is None and version_text is None:
        return names
    asked: Any = fastjson.loads_request(version_text) if version_text else None
    begin = max(0, start or 0) if asked == version.to_json() else 0
    return names[
        begin : begin + min(PAGE_SIZE_MAX, max(0, PAGE_SIZE_MAX if count is None else count))
    ]


def get_topic_stats(broker: Broker, request: Request) -> Command:
    """First, last and newest of each queue."""
    config = known_topic(broker, decode_ext(request.command.ext, TopicHeader).topic)
    store = broker.store
    table: dict[MessageQueue, dict[str, int]] = {}
    for queue_id in range(config.queue_nums):
        first = max(0, store.min_offset(config.name, queue_id))
        end = max(0, store.max_offset(config.name, queue_id))
        newest = store.store_time(config.name, queue_id, end - 1) if end > first else 0
        table[MessageQueue(config.name, broker.settings.broker_name, queue_id)] = {
            "lastUpdateTimestamp": max(0, newest),
            "maxOffset": end,
            "minOffset": first,
        }
    return success(
        request, {"offsetTable": table, "topicPutTps": broker.stats.put_rate(config.name)}
    )


def get_system_topics(broker: Broker, request: Request) -> Command:
    return success(request, {"topicList": broker.topics.system_topics()})


HANDLERS: Handlers = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: update_and_create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: update_and_create_topic_list,
    RequestCode.GET_ALL_TOPIC_CONFIG: get_all_topic_config,
    RequestCode.GET_TOPIC_CONFIG: get_topic_config,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.GET_TOPIC_STATS_INFO: get_topic_stats,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: get_system_topics,
}
