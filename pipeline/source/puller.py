"""Reads a range of one queue over TCP, several pulls in flight, as bodies of raw records.

A broker's setting limits an answer (RocketMQ's: 32 messages; ours: 4096 and 8 MiB), so one pull at
a time would wait most of the time. Without a filter the offsets of a queue have no gaps, so the
next pulls are sent before the first is answered; an answer that is shorter than requested is
completed at once.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from aerobee.pipeline.source.queues import DataLoss, QueueKey, pull_fields
from aerobee.pipeline.source.room import Room
from aerobee.pipeline.wire import TRANSIENT, Answer, BrokerError, Cluster, Link
from aerobee.protocol.wire.codecs import ProtocolError
from aerobee.protocol.wire.codes import RequestCode, ResponseCode
from aerobee.protocol.wire.command import Command

DEPTH_MIN: Final = 2
DEPTH_MAX: Final = 12
IN_FLIGHT_BYTES: Final = 16 * 1024 * 1024
COUNT_MAX: Final = 4096
PATIENCE: Final = 3.0  # seconds to wait for messages that the broker announced and does not show

Pull = tuple[Answer, int, int]  # the answer, offset and end of what it asks for


@dataclass(frozen=True, slots=True)
class Range:
    """start <= offset < end of one queue, as one task reads it."""

    key: QueueKey
    address: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PullPlan:
    """How to pull: the same for every range of a read."""

    group: str
    expression: tuple[str, str]  # kind and text, ("TAG", "*") for everything
    fail_on_data_loss: bool

    @property
    def filtered(self) -> bool:
        return self.expression != ("TAG", "*")


def pull_range(
    cluster: Cluster,
    wanted: Range,
    plan: PullPlan,
    warn: Callable[[str], None],
    room: Room | None = None,
) -> Iterator[bytes | memoryview]:
    """The raw records of the range, in order; the last body may hold records beyond its end."""
    position, address = wanted.start, wanted.address
    outage = cluster.outage()
    while position < wanted.end:
        what = f"reading {wanted.key} at {position}: {address}"
        try:
            link = cluster.link(address)
            for body, following in _pull(link, wanted, position, plan, room):
                cluster.note_wait(address, outage.over(what))
                if len(body):
                    yield body
                position = following
        except BrokerError as error:
            if error.code not in TRANSIENT:
                raise
            outage.wait(what, error)
        except (OSError, ProtocolError) as error:
            cluster.drop(address)
            outage.wait(what, error)
            address = cluster.address_now(wanted.key.topic, wanted.key.broker) or address
        except DataLoss as error:  # a replica may lack what its master has
            master = cluster.address_now(wanted.key.topic, wanted.key.broker)
            if master is None:
                outage.wait(what, error)
            elif master != address:
                address = master
            else:
                position = lost(error, plan, warn)


def _pull(
    link: Link, wanted: Range, start: int, plan: PullPlan, room: Room | None
) -> Iterator[tuple[bytes | memoryview, int]]:
    """Pairs of a body and the offset that follows it, up to the range's end."""
    in_flight: deque[Pull] = deque()
    asked = start
    step = COUNT_MAX
    depth = 1
    moved_at = time.monotonic()

    def ask(offset: int, end: int) -> Pull:
        ext = pull_fields(wanted.key, offset, end - offset, plan.group, plan.expression)
        return link.ask(RequestCode.PULL_MESSAGE, ext), offset, end

    while asked < wanted.end or in_flight:
        while asked < wanted.end and len(in_flight) < depth:
            end = min(asked + step, wanted.end)
            in_flight.append(ask(asked, end))
            asked = end
        asked_for, offset, end = in_flight.popleft()
        answer = link.take(asked_for, room)
        following = _following(answer, wanted, offset, plan, link.address)
        if following > offset:
            moved_at = time.monotonic()
        elif time.monotonic() - moved_at > PATIENCE:
            raise DataLoss(f"{wanted.key} shows nothing at {offset}, though its end is further on")
        if plan.filtered:
            asked = max(asked, following) if in_flight else following
        elif following < end:  # less than asked for: this is what the broker gives at once
            if following > offset:
                step = following - offset
            in_flight.appendleft(ask(following, end))
        elif following > end:
            asked = max(asked, following)
        body = answer.body if answer.code == ResponseCode.SUCCESS else b""
        depth = 1 if plan.filtered else _depth(len(body))
        yield body, following


def _depth(answer_size: int) -> int:
    """How many pulls to have in flight: enough to never wait, not so many as to fill the memory."""
    return max(DEPTH_MIN, min(DEPTH_MAX, IN_FLIGHT_BYTES // max(1, answer_size)))


def _following(answer: Command, wanted: Range, offset: int, plan: PullPlan, address: str) -> int:
    """The next offset after this answer; DataLoss when messages are missing."""
    code = answer.code
    known = (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
    if code not in known:
        what = f"reading {wanted.key} at {offset}"
        raise BrokerError(what, address, code, answer.remark)
    following = int(answer.ext["nextBeginOffset"])
    if code == ResponseCode.SUCCESS:
        return following
    if code == ResponseCode.PULL_RETRY_IMMEDIATELY and following > offset:
        if plan.filtered and answer.remark != "MESSAGE_WAS_REMOVING":
            return following  # none of those matched the filter
        raise gap(wanted, offset, min(following, wanted.end), "were deleted")
    if following > offset:  # trimmed, or a gap in the queue
        raise gap(wanted, offset, min(following, wanted.end), "were deleted")
    maximum = int(answer.ext.get("maxOffset", "0"))
    if maximum > offset:  # stored, not yet shown: wait a little
        time.sleep(0.02)
        return offset
    raise gap(wanted, offset, wanted.end, f"are not there: the queue ends at {maximum}")


def gap(wanted: Range, start: int, end: int, reason: str) -> DataLoss:
    error = DataLoss(f"offsets {start} to {end - 1} of {wanted.key} {reason}")
    error.at, error.upto = start, end
    return error


def lost(error: DataLoss, plan: PullPlan, warn: Callable[[str], None]) -> int:
    """Where to resume, after a warning; raises the error if the plan fails on loss."""
    if error.upto is None:
        raise error
    if plan.fail_on_data_loss:
        error.args = (f"{error}; set failOnDataLoss=false to continue without them",)
        raise error
    warn(str(error))
    return error.upto
