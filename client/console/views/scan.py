"""Reads queues in time order, page by page, within a budget; the answer says when it is used up.

A cursor holds for each queue where to continue, and where it ends: new messages do not
move the pages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from aerobee.client.client import Client
from aerobee.client.console.view import gather
from aerobee.client.consuming.pulling import PullStatus
from aerobee.client.errors import Misuse
from aerobee.client.message import Message
from aerobee.protocol.json.fastjson import MessageQueue

BUDGET_SECONDS: Final = 3.0
PULL_MAX: Final = 200


@dataclass(slots=True)
class Reach:
    """What is left of one queue."""

    queue: MessageQueue
    at: int
    end: int


@dataclass(slots=True)
class Page:
    """What was found, the cursor of what is left, and how many messages were passed."""

    messages: list[Message] = field(default_factory=list)
    cursor: str = ""
    passed: int = 0
    stopped: bool = False  # the time budget was used up


async def read_page(
    mq: Client,
    reaches: list[Reach],
    limit: int,
    *,
    tags: list[str] | None = None,
    sql: str | None = None,
) -> Page:
    """The next `limit` messages of all queues, oldest first."""
    begun = time.monotonic()
    page = Page()
    found = await gather(_read(mq, reach, limit, tags, sql, begun, page) for reach in reaches)
    rows = sorted(
        (message for messages in found for message in messages),
        key=lambda row: (row.stored.store_timestamp, row.stored.queue_id, row.queue_offset),
    )
    page.messages = rows[:limit]
    for left in rows[limit:]:  # they come with the next page
        reach = next(row for row in reaches if row.queue == left.queue)
        reach.at = min(reach.at, left.queue_offset)
    if any(reach.at < reach.end for reach in reaches):
        page.cursor = write_cursor(reaches)
    return page


async def _read(
    mq: Client,
    reach: Reach,
    limit: int,
    tags: list[str] | None,
    sql: str | None,
    begun: float,
    page: Page,
) -> list[Message]:
    found: list[Message] = []
    while reach.at < reach.end and len(found) < limit:
        if time.monotonic() - begun > BUDGET_SECONDS:
            page.stopped = True
            break
        count = min(PULL_MAX, limit if not (tags or sql) else PULL_MAX)
        pulled = await mq.pull(reach.queue, reach.at, count=count, tags=tags, sql=sql)
        for stored in pulled.messages:
            if stored.queue_offset >= reach.end:
                break
            found.append(Message(stored, reach.queue.broker_name))
        after = min(pulled.next_offset, reach.end)
        page.passed += max(0, after - reach.at)
        if after <= reach.at and pulled.status is not PullStatus.OFFSET_MOVED:
            reach.at = reach.end  # the queue has no more
            break
        reach.at = max(after, reach.at)
        await asyncio.sleep(0)
    return found


def write_cursor(reaches: list[Reach]) -> str:
    rows = [[*row.queue, row.at, row.end] for row in reaches]
    return base64.urlsafe_b64encode(msgspec.json.encode(rows)).decode()


def read_cursor(text: str, topic: str) -> list[Reach]:
    try:
        rows: list[Any] = msgspec.json.decode(
            base64.urlsafe_b64decode(text), type=list[tuple[str, str, int, int, int]]
        )
    except (binascii.Error, msgspec.DecodeError, ValueError):
        raise Misuse("the cursor of the next page is damaged: search again") from None
    reaches = [Reach(MessageQueue(*queue), at, end) for *queue, at, end in rows]
    if any(row.queue.topic != topic for row in reaches):
        raise Misuse("the cursor is of another topic: search again")
    return reaches
