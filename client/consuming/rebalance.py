"""Which member of a group reads which queue: RocketMQ's strategies, so that mixed groups agree.

Every member computes the same split from the same sorted queues and client ids.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from aerobee.client.errors import Misuse
from aerobee.protocol.json.fastjson import MessageQueue

# me, all queues (sorted), all client ids (sorted) -> my queues
Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
VIRTUAL_NODES: Final = 10


def averagely(
    me: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Contiguous ranges; the first members get one more when it does not divide evenly."""
    if me not in members:
        return []
    index = members.index(me)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (1 if index < rest else 0)])


def averagely_by_circle(
    me: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Round robin."""
    return list(queues[members.index(me) :: len(members)]) if me in members else []


def consistent_hash(
    me: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[MessageQueue]:
    """Consistent hashing: few queues move when a member joins or leaves."""
    if me not in members:
        return []
    ring = sorted(
        (_ring_hash(f"{member}-{number}"), member)
        for member in members
        for number in range(VIRTUAL_NODES)
    )
    points = [point for point, _ in ring]

    def owner(queue: MessageQueue) -> str:
        text = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
            f"queueId={queue.queue_id}]"
        )
        at = bisect.bisect_left(points, _ring_hash(text))
        return ring[at % len(ring)][1]

    return [queue for queue in queues if owner(queue) == me]


def _ring_hash(text: str) -> int:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


STRATEGIES: Final[dict[str, Strategy]] = {
    "averagely": averagely,
    "averagely by circle": averagely_by_circle,
    "consistent hash": consistent_hash,
}


def strategy_of(choice: str | Strategy) -> Strategy:
    if callable(choice):
        return choice
    try:
        return STRATEGIES[choice]
    except KeyError:
        raise Misuse(f"no strategy {choice!r}; choose one of {', '.join(STRATEGIES)}") from None
