"""The copies of a message put in order: what it is, where it went, what each group did with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from aerobee.client.why.answer import LifeEvent
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from aerobee.protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_HALF_TOPIC,
    dlq_topic,
    retry_topic,
)
from aerobee.protocol.wire.message_facts import Broker, Copy


@dataclass(frozen=True, slots=True)
class Placed:
    """A copy, and the broker that has it."""

    broker: Broker
    copy: Copy

    @property
    def goes_to(self) -> str:
        """The topic that it is in, or will be in when its time has come."""
        if self.copy.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            return self.copy.properties.get(props.REAL_TOPIC, "")
        return self.copy.topic

    @property
    def waits(self) -> bool:
        return self.copy.topic in (SCHEDULE_TOPIC, TIMER_TOPIC)

    @property
    def recalls(self) -> bool:
        return self.waits and props.TIMER_DEL_UNIQKEY in self.copy.properties


@dataclass(slots=True)
class Story:
    """All copies in the order in which they were stored, and the facts of every broker."""

    brokers: list[Broker]
    unreached: list[str]  # brokers that did not answer
    topic: str
    copies: list[Placed] = field(default_factory=list)

    @property
    def now(self) -> int:
        return max((broker.now for broker in self.brokers), default=0)

    def in_topic(self, topic: str) -> list[Placed]:
        return [placed for placed in self.copies if placed.copy.topic == topic]

    def waiting_for(self, topic: str) -> list[Placed]:
        """Timers and delayed copies for a topic, without recalls."""
        return [
            placed
            for placed in self.copies
            if placed.waits and placed.goes_to == topic and not placed.recalls
        ]

    def recalls(self) -> list[Placed]:
        return [placed for placed in self.copies if placed.recalls]

    def of_group(self, group: str) -> list[Placed]:
        """What the group gave back: retries, waiting and delivered, and dead letters."""
        wanted = (retry_topic(group), dlq_topic(group))
        return [placed for placed in self.copies if placed.goes_to in wanted]


def story_of(brokers: list[Broker], unreached: list[str], topic: str | None) -> Story:
    placed = [Placed(broker, copy) for broker in brokers for copy in broker.copies]
    placed.sort(key=lambda one: (one.copy.stored_at, one.copy.physical_offset))
    named = (broker.topic for broker in brokers if broker.copies)
    return Story(brokers, unreached, topic or next(named, ""), placed)


def life(story: Story) -> Iterable[LifeEvent]:
    """What happened to the message, in order."""
    seen_half = was_kept = False
    for placed in story.copies:
        copy = placed.copy
        event, facts = _event(placed, seen_half, was_kept)
        seen_half = seen_half or copy.topic == TRANSACTION_HALF_TOPIC
        was_kept = was_kept or (placed.waits and placed.goes_to == story.topic)
        place = {
            "broker": placed.broker.broker,
            "queue": copy.queue_id,
            "offset": copy.queue_offset,
        }
        yield LifeEvent(copy.stored_at, event, copy.topic, {**place, **facts})
    for broker in story.brokers:
        if broker.removed is not None and not story.copies:
            removed = broker.removed
            facts = {"broker": broker.broker, "reason": removed.reason}
            yield LifeEvent(removed.at, "removed", story.topic, facts)


def _event(placed: Placed, seen_half: bool, was_kept: bool) -> tuple[str, dict[str, object]]:
    copy = placed.copy
    known = copy.properties
    if copy.topic == TRANSACTION_HALF_TOPIC:
        checks = int(known.get(props.TRANSACTION_CHECK_TIMES, "0") or 0)
        facts: dict[str, object] = {"producer_group": known.get(props.PGROUP, ""), "checks": checks}
        return ("checked" if seen_half else "half"), facts
    if copy.topic == TRANSACTION_GIVEN_UP_TOPIC:
        return "given_up", {}
    if placed.recalls:
        return "recalled", {}
    if placed.goes_to.startswith(RETRY_PREFIX):
        facts = {"group": placed.goes_to.removeprefix(RETRY_PREFIX)}
        facts["attempt"] = copy.reconsume_times
        if reason := known.get(props.LAST_FAILURE):
            facts["reason"] = reason
        if placed.waits:
            return "given_back", {**facts, "due_at": copy.due_at}
        return "retried", facts
    if copy.topic.startswith(DLQ_PREFIX):
        facts = {"group": copy.topic.removeprefix(DLQ_PREFIX), "attempts": copy.reconsume_times}
        return "dead", facts | (
            {"reason": known[props.LAST_FAILURE]} if props.LAST_FAILURE in known else {}
        )
    if placed.waits:
        return "delayed", {"due_at": copy.due_at}
    facts = {"born_at": copy.born_at, "born_host": copy.born_host}
    facts |= {"on_disk": copy.on_disk, "visible": copy.in_queue}
    if copy.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
        return "committed", facts
    return ("delivered" if was_kept else "stored"), facts


def clock_text(ms: int | None, now: int) -> str:
    """A time for people, in their time zone; with the date unless it is today."""
    if ms is None:
        return "an unknown time"
    moment = datetime.fromtimestamp(ms / 1000).astimezone()
    form = (
        "%H:%M:%S" if moment.date() == datetime.fromtimestamp(now / 1000).date() else "%F %H:%M:%S"
    )
    return moment.strftime(form)


def span_text(ms: int) -> str:
    """How long, roughly."""
    seconds = abs(ms) / 1000
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 86400:.3g} days"
