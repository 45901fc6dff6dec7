"""Offsets of a queue: its ends, and by time."""

from __future__ import annotations

from aerobee.client.core import Core
from aerobee.protocol.json.fastjson import MessageQueue
from aerobee.protocol.wire.codes import RequestCode


async def min_offset(core: Core, queue: MessageQueue) -> int:
    """The offset of the oldest message that is still kept."""
    return await _ask(core, RequestCode.GET_MIN_OFFSET, queue, {})


async def max_offset(core: Core, queue: MessageQueue) -> int:
    """The offset of the next message."""
    return await _ask(core, RequestCode.GET_MAX_OFFSET, queue, {})


async def offset_at(core: Core, queue: MessageQueue, timestamp_ms: int) -> int:
    """The offset of the first message stored at that time or later."""
    extra = {"timestamp": str(timestamp_ms), "boundaryType": "LOWER"}
    return await _ask(core, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, extra)


async def _ask(core: Core, code: int, queue: MessageQueue, extra: dict[str, str]) -> int:
    ext = {
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "bname": queue.broker_name,
        **extra,
    }
    answer = await core.remoting.ask(
        core.routes.address(queue.broker_name),
        code,
        ext,
        what=f"an offset of {queue.topic!r}/{queue.queue_id}",
    )
    return int(answer.ext["offset"])
