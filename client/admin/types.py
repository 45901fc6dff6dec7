"""Result types of administration: brokers, queues, lag, members."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from aerobee.protocol.json.fastjson import MessageQueue


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of the cluster, by number: 0 is the master."""

    name: str
    cluster: str
    number: int
    address: str


@dataclass(frozen=True, slots=True)
class QueueLag:
    """A group's progress in one queue. `offset` is -1 where none is stored."""

    queue: MessageQueue
    max_offset: int
    offset: int
    consumed_at: datetime | None

    @property
    def lag(self) -> int:
        return self.max_offset - self.offset if self.offset >= 0 else self.max_offset


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The ends of one queue."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class Member:
    """A client of a group as a broker sees it."""

    client_id: str
    address: str
    language: str
    version: int


def moment_of(ms: int | str) -> datetime | None:
    """A time as brokers send it; 0 and less are none."""
    return datetime.fromtimestamp(int(ms) / 1000, UTC) if int(ms) > 0 else None
