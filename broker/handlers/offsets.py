"""Consumers' progress: query, commit, and the tables of it that replicas and tools read."""

import os
from functools import cache
from typing import Final

from aerobee.broker.handlers.common import (
    Handlers,
    known_group,
    known_topic,
    success,
)
from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.requests import Request
from aerobee.protocol.wire.admin_headers import QueryConsumerOffset, UpdateConsumerOffset
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command
from aerobee.protocol.wire.headers import decode_ext

_MEMORY_SHARE: Final = 0.4  # of the machine's memory: messages nearer to the log's end are "young"


@cache
def _young_bytes() -> int:
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _MEMORY_SHARE)


def query_consumer_offset(broker: Broker, request: Request) -> Command:
    """The committed offset; 0 for a new group on a young queue; else the client decides."""
    header = decode_ext(request.command.ext, QueryConsumerOffset)
    offset = broker.offsets.query(header.consumer_group, header.topic, header.queue_id)
    if offset < 0 and header.set_zero_if_not_found is not False and _is_young(broker, header):
        offset = 0
    if offset >= 0:
        return success(request, ext={"offset": str(offset)})
    return request.command.answer(
        ResponseCode.QUERY_NOT_FOUND,
        remark=f"group {header.consumer_group} has no offset in queue {header.queue_id} of "
        f"{header.topic} yet",
    )


def _is_young(broker: Broker, header: QueryConsumerOffset) -> bool:
    """Whether the queue still begins at 0 and its first message is near the log's end."""
    if broker.topics.get(header.topic) is None or header.queue_id < 0:
        return False
    store = broker.store
    if store.min_offset(header.topic, header.queue_id) > 0:
        return False
    entry = store.queue_entry(header.topic, header.queue_id, 0)
    return entry is None or store.max_physical_offset - entry[0] <= _young_bytes()


def update_consumer_offset(broker: Broker, request: Request) -> Command:
    """Store a committed offset as it is, even outside the range of the queue."""
    header = decode_ext(request.command.ext, UpdateConsumerOffset)
    if broker.groups.get(header.consumer_group) is None:
        known_group(broker, header.consumer_group)  # raises what is wrong
    topic = known_topic(broker, header.topic)
    if not 0 <= header.queue_id < topic.queue_nums and not broker.store.max_offset(
        header.topic, header.queue_id
    ):
        # Success, as in RocketMQ, but queues that do not exist must not fill the table of offsets.
        return success(
            request,
            remark=f"not kept: topic {header.topic} has {topic.queue_nums} queues, none is "
            f"number {header.queue_id}",
        )
    kept = broker.offsets.commit(
        header.consumer_group, header.topic, header.queue_id, header.commit_offset
    )
    if kept:
        return success(request)
    if header.commit_offset < 0:  # ali-ons commits -1 for a queue that it has not read
        return success(request, remark="a negative offset is not kept")
    return success(request, remark="Offset has been previously reset")


def all_consumer_offsets(broker: Broker, request: Request) -> Command:
    """consumerOffset.json, for a replica."""
    return success(request, broker.offsets.table_json())


def all_delay_offsets(broker: Broker, request: Request) -> Command:
    """delayOffset.json, for a replica."""
    return success(request, broker.schedule.table_json())


HANDLERS: Handlers = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_consumer_offset,
    RequestCode.GET_ALL_CONSUMER_OFFSET: all_consumer_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: all_delay_offsets,
}
