"""Administration of consumers' progress: reset, clone, correct."""

from typing import Any, Final

import structlog

from aerobee.broker.base import resource_names
from aerobee.broker.base.refused import Refused
from aerobee.broker.handlers.common import (
    Handlers,
    answer_when_saved,
    known_group,
    known_topic,
    peer,
    success,
)
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Request
from aerobee.broker.services.clients.consumer_group import Member
from aerobee.broker.services.topics.config import TopicConfig
from aerobee.broker.store.results import Boundary
from aerobee.protocol.json import fastjson
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.admin_headers import CloneOffset, CorrectionOffset, ResetOffset
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import decode_ext

log = structlog.get_logger("aerobee.admin")

_VERSION_OF_RESET: Final = 28  # 3.0.7-SNAPSHOT takes the push
_VERSION_WITHOUT_PUSH: Final = 453  # 5.2.0 relies on the answer to its next pull
_NO_OFFSET: Final = 2**63 - 1


def reset_offset(broker: Broker, request: Request) -> Command | None:
    """Move a group to a time, or one of its queues to an offset.

    The broker stores the new offset and returns it with the group's next pull; older clients also
    get it pushed at once. Without useServerSideResetOffset only clients online can be moved.
    """
    header = decode_ext(request.command.ext, ResetOffset)
    topic = known_topic(broker, header.topic)
    table = _targets(broker, header, topic)
    members = broker.clients.consumers_of(header.group)
    if broker.settings.use_server_side_reset_offset:
        known_group(broker, header.group)
        _note(broker, header.group, header.topic, table, request)
        for queue_id, offset in table.items():
            broker.offsets.reset(header.group, header.topic, queue_id, offset)
        members = [member for member in members if member.version < _VERSION_WITHOUT_PUSH]
    else:
        table = _only_back(broker, header, table)
        if not members:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        _note(broker, header.group, header.topic, table, request)
    queues = {
        MessageQueue(header.topic, broker.settings.broker_name, queue_id): offset
        for queue_id, offset in table.items()
    }
    for member in members:
        _push(member, header, queues)
    for queue_id in table:
        broker.long_polling.wake_queue(header.topic, queue_id)
    log.info(
        "offsets reset by an operator",
        group=header.group,
        topic=header.topic,
        offsets=table,
        peer=peer(request),
    )
    answer = success(request, {"offsetTable": queues})
    if not broker.settings.use_server_side_reset_offset:
        return answer  # the clients commit it
    return answer_when_saved(request, answer, broker.offsets.file)


def _note(broker: Broker, group: str, topic: str, table: dict[int, int], request: Request) -> None:
    """Remember who moved a group, for `aerobee why`."""
    for queue_id, offset in table.items():
        was = broker.offsets.query(group, topic, queue_id)
        broker.history.reset(f"{topic}@{group}", queue_id, was, offset, peer(request))


def _targets(broker: Broker, header: ResetOffset, topic: TopicConfig) -> dict[int, int]:
    """queue id -> the offset to go to."""
    if header.queue_id < 0:
        return {
            queue_id: _at_time(broker, header.topic, queue_id, header.timestamp)
            for queue_id in range(topic.read_queue_nums)
        }
    if header.offset is None or header.offset == -1:
        if header.queue_id >= topic.queue_nums:
            return {}  # nothing to move in a queue that is not there
        return {header.queue_id: _at_time(broker, header.topic, header.queue_id, header.timestamp)}
    first = broker.store.min_offset(header.topic, header.queue_id)
    end = broker.store.max_offset(header.topic, header.queue_id)
    if not max(0, first) <= header.offset <= end:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"Target offset {header.offset} not in consume queue range [{first}-{end}]",
        )
    return {header.queue_id: header.offset}


def _at_time(broker: Broker, topic: str, queue_id: int, timestamp: int) -> int:
    if timestamp < 0:
        return int(max(0, broker.store.max_offset(topic, queue_id)))
    found: int = broker.store.offset_by_time(topic, queue_id, timestamp, Boundary.LOWER)
    return max(0, found)


def _only_back(broker: Broker, header: ResetOffset, table: dict[int, int]) -> dict[int, int]:
    """Without force a group is only ever moved back."""
    kept = {}
    for queue_id, offset in table.items():
        committed = broker.offsets.query(header.group, header.topic, queue_id)
        if committed < 0:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The consumer group <{header.group}> has no offset in queue {queue_id} of "
                f"{header.topic}",
            )
        kept[queue_id] = offset if header.is_force else min(offset, committed)
    return kept


def _push(member: Member, header: ResetOffset, queues: dict[MessageQueue, int]) -> None:
    if member.version < _VERSION_OF_RESET:
        log.warning("a consumer cannot be notified of a reset", client_id=member.client_id)
        return
    table: Any = queues
    if member.language == "CPP":
        table = [
            {
                "brokerName": queue.broker_name,
                "offset": offset,
                "queueId": queue.queue_id,
                "topic": queue.topic,
            }
            for queue, offset in queues.items()
        ]
    ext = {
        "group": header.group,
        "isForce": str(header.is_force).lower(),
        "queueId": str(header.queue_id),
        "timestamp": str(header.timestamp),
        "topic": header.topic,
    }
    body = fastjson.dumps({"offsetTable": table})
    member.connection.send_oneway(Command(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body))


def clone_group_offset(broker: Broker, request: Request) -> Command | None:
    """Give one group the progress of another."""
    header = decode_ext(request.command.ext, CloneOffset)
    if problem := resource_names.group_problem(header.dest_group):
        raise Refused(ResponseCode.INVALID_PARAMETER, problem)
    source = broker.clients.consumer_group(header.src_group)
    topics = [header.topic] if header.topic else broker.offsets.topics_of(header.src_group)
    for topic in topics:
        if broker.topics.get(topic) is None:
            continue
        unsubscribed = source is not None and topic not in source.subscriptions
        if header.offline or not unsubscribed:
            source_offsets = broker.offsets.queues_of(header.src_group, topic)
            _note(broker, header.dest_group, topic, source_offsets, request)
            broker.offsets.clone(header.src_group, header.dest_group, topic)
    broker.groups.get(header.dest_group)
    return answer_when_saved(request, success(request), broker.groups.file, broker.offsets.file)


def query_correction_offset(broker: Broker, request: Request) -> Command:
    """The least offset of any group in each queue; 2^63 - 1 where the compared group is behind."""
    header = decode_ext(request.command.ext, CorrectionOffset)
    left_out = {group.strip() for group in (header.filter_groups or "").split(",")}
    least: dict[int, int] = {}
    for group in broker.offsets.groups_of(header.topic):
        if group in left_out:
            continue
        for queue_id, offset in broker.offsets.queues_of(group, header.topic).items():
            least[queue_id] = min(offset, least.get(queue_id, offset))
    for queue_id, offset in broker.offsets.queues_of(header.compare_group, header.topic).items():
        if least.get(queue_id, _NO_OFFSET) > offset:
            least[queue_id] = _NO_OFFSET
    return success(request, {"correctionOffsets": least})


HANDLERS: Handlers = {
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset_offset,
    RequestCode.CLONE_GROUP_OFFSET: clone_group_offset,
    RequestCode.QUERY_CORRECTION_OFFSET: query_correction_offset,
}
