"""A group and a message in a queue: rules over how far the group has come, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aerobee.client.why.answer import WhyVerdict
from aerobee.client.why.story import Placed, Story, clock_text
from aerobee.protocol.wire.message_facts import Broker, Filter, Group, Standing

Said = tuple[WhyVerdict, str, dict[str, Any], str]


@dataclass(slots=True)
class GroupView:
    """A group as all brokers together see it."""

    facts: Group
    standings: list[tuple[Broker, Standing]]

    def join(self, other: Group) -> None:
        facts = self.facts
        known = {member.client_id for member in facts.members}
        facts.members += [one for one in other.members if one.client_id not in known]
        facts.is_known = facts.is_known or other.is_known
        facts.consume_enabled = facts.consume_enabled and other.consume_enabled
        facts.broadcasts = facts.broadcasts or other.broadcasts
        facts.subscribes = facts.subscribes or other.subscribes
        facts.conflict += [one for one in other.conflict if one not in facts.conflict]
        facts.left_at = max(facts.left_at or 0, other.left_at or 0) or None
        if facts.retry_max is None:
            facts.retry_max = other.retry_max


@dataclass(frozen=True, slots=True)
class Case:
    """The facts that the rules need."""

    story: Story
    group: Group
    placed: Placed
    standing: Standing
    attempt: int  # 0: the message itself; else the number of the retry

    @property
    def offset(self) -> int:
        return self.placed.copy.queue_offset

    @property
    def is_passed(self) -> bool:
        return self.standing.committed > self.offset

    @property
    def place(self) -> dict[str, Any]:
        copy = self.placed.copy
        return {
            "broker": self.placed.broker.broker,
            "topic": copy.topic,
            "queue": copy.queue_id,
            "offset": copy.queue_offset,
            "committed": self.standing.committed,
        } | ({"attempt": self.attempt} if self.attempt else {})

    def when(self, ms: int | None) -> str:
        return clock_text(ms, self.story.now)


def in_queue(story: Story, view: GroupView, placed: Placed, attempt: int) -> Said:
    """The outcome of the copy in its queue."""
    copy = placed.copy
    for broker, standing in view.standings:
        here = (standing.topic, standing.queue_id, standing.queue_offset)
        if broker is placed.broker and here == (copy.topic, copy.queue_id, copy.queue_offset):
            case = Case(story, view.facts, placed, standing, attempt)
            return next(said for rule in RULES if (said := rule(case)) is not None)
    return WhyVerdict.UNKNOWN, "its broker does not tell how far the group is", {}, ""


def _broadcast(case: Case) -> Said | None:
    if not case.group.broadcasts:
        return None
    members = [member.client_id for member in case.group.members]
    return (
        WhyVerdict.BROADCAST,
        f"the group broadcasts: each of its {len(members)} members keeps its own progress, no "
        "broker knows it",
        {"members": members},
        "check each member's log",
    )


def _skipped(case: Case) -> Said | None:
    """An operator moved the group past it, or the group began after it."""
    if not case.is_passed:
        return None
    skip, began = None, case.standing.began
    for reset in case.standing.resets:
        if reset.to <= case.offset:
            skip, began = None, None
        elif reset.was <= case.offset:
            skip = reset
    if skip is not None:
        facts = {"reset_at": skip.at, "was": skip.was, "to": skip.to, "by": skip.by}
        text = (
            f"the group was moved from {skip.was} to {skip.to} at {case.when(skip.at)} by {skip.by}"
        )
        return WhyVerdict.SKIPPED_BY_RESET, text, case.place | facts, _move_back(case)
    if began is not None and began[1] > case.offset:
        facts = {"began_at": began[0], "began": began[1]}
        text = (
            f"the group began at {case.when(began[0])} with offset {began[1]}, behind it: new "
            "groups may start at the end"
        )
        return WhyVerdict.SKIPPED_BY_RESET, text, case.place | facts, _move_back(case)
    return None


def _move_back(case: Case) -> str:
    group, topic = case.group.group, case.placed.copy.topic
    return f"to have it read: aerobee offsets reset {group} {topic} --to-time TIME"


def _conflict(case: Case) -> Said | None:
    if not case.group.conflict or case.attempt:
        return None
    return (
        WhyVerdict.CONFLICT,
        "members of the group subscribe the topic differently, and not all want it: "
        + "; ".join(case.group.conflict[:4]),
        case.place | {"subscriptions": case.group.conflict},
        "give all members the same subscription, or each kind its own group",
    )


def _filtered(case: Case) -> Said | None:
    wanted = case.standing.filter
    if wanted is None or wanted.matches is not False:
        return None
    if case.is_passed and not case.placed.broker.has_history:
        return None  # the subscription of that time is not remembered
    since = f"; expression since {case.when(wanted.since)}" if wanted.since else ""
    return (
        WhyVerdict.FILTERED,
        f"{wanted.term or 'the subscription does not select it'}{since}",
        case.place | _filter_facts(wanted),
        "change the subscription, or the message's tag or properties",
    )


def _filter_facts(wanted: Filter | None) -> dict[str, Any]:
    if wanted is None:
        return {"expression": None}
    return {
        "expression": wanted.expression,
        "expression_type": wanted.expression_type,
        "expression_since": wanted.since,
        "matches": wanted.matches,
    }


def _passed(case: Case) -> Said | None:
    if not case.is_passed:
        return None
    wanted, passed = case.standing.filter, case.standing.passed
    facts = case.place | _filter_facts(wanted) | {"client": case.standing.puller}
    if wanted is not None and wanted.matches is None:
        return (
            WhyVerdict.UNKNOWN,
            "the group's offset passed it; whether it selected it then is not known: its "
            "subscription changed meanwhile, or cannot be checked here",
            facts,
            "",
        )
    if wanted is not None and wanted.matches is False:
        text = "the group's offset passed it; it does not select it now, before is not known"
        return WhyVerdict.UNKNOWN, text, facts, ""
    text = "the group's offset passed it"
    if passed is not None:
        facts["passed_after"], facts["passed_before"] = passed
        text += f" by {case.when(passed[1])}"
    if case.attempt:
        text += f", at retry {case.attempt}"
    remedy = "if the work was not done, the handler acknowledged it anyway: see its log"
    return WhyVerdict.CONSUMED, text, facts, remedy


def _paused(case: Case) -> Said | None:
    if case.group.consume_enabled:
        return None
    remedy = f"aerobee group update {case.group.group} --consume enables it again"
    return WhyVerdict.PAUSED, "the group is paused (consumeEnable=false)", case.place, remedy


def _forbidden(case: Case) -> Said | None:
    if not case.standing.refusal:
        return None
    facts = case.place | {"refusal": case.standing.refusal}
    return WhyVerdict.FORBIDDEN, case.standing.refusal, facts, "allow it again, then it is read"


def _offline(case: Case) -> Said | None:
    if case.group.members:
        return None
    left = case.group.left_at
    since = (
        f"nobody of the group is online since {case.when(left)}"
        if left
        else ("nobody of the group is online")
    )
    facts = case.place | {"left_at": left, "left_by": case.group.left_by}
    behind = max(0, case.offset - max(0, case.standing.committed))
    facts["behind"] = behind
    text = f"{since}; it comes after {behind} others"
    return WhyVerdict.OFFLINE, text, facts, "start a consumer of the group"


def _unsubscribed(case: Case) -> Said | None:
    if case.group.subscribes is not False or case.attempt:
        return None
    topic = case.placed.copy.topic
    text = f"the group is online, but none of its members subscribes {topic}"
    return WhyVerdict.NO_GROUP, text, case.place, f"subscribe {topic} in the consumer"


def _sent(case: Case) -> Said | None:
    pulled = case.standing.pulled
    if pulled is None or pulled <= case.offset:
        return None
    client = case.standing.puller
    is_there = any(member.client_id == client for member in case.group.members)
    facts = case.place | {"pulled": pulled, "client": client, "client_online": is_there}
    if client and not is_there:
        text = f"sent to {client}, which is gone; whoever takes over the queue gets it again"
    else:
        text = f"sent to {client or 'a member'}, which has not acknowledged it yet"
    if case.attempt:
        text = f"retry {case.attempt} was {text}"
    return WhyVerdict.SENT, text, facts, "is the handler slow or stuck? See that client's log"


def _behind(case: Case) -> Said | None:
    committed = case.standing.committed
    begin = committed if committed >= 0 else case.standing.began[1] if case.standing.began else 0
    behind = max(0, case.offset - begin)
    client = case.standing.puller
    facts = case.place | {"behind": behind, "pulled": case.standing.pulled, "client": client}
    reader = f"; queue {case.standing.queue_id} is with {client}" if client else ""
    remedy = "add members (up to the number of queues) or make the handler faster"
    if case.standing.pulled is None and not case.placed.broker.has_history:
        if not behind:
            text = "not acknowledged; this broker does not tell whether a member has it"
            return WhyVerdict.UNKNOWN, text, facts, "check the members' logs"
        reader = "; whether a member has fetched it is not known"
    waits = f"{behind} messages are before it" if behind else "it is the next to be read"
    return WhyVerdict.BEHIND, waits + reader, facts, remedy


# The first rule that returns a verdict decides; the last always does.
Rule = Callable[[Case], Said | None]
RULES: Final[tuple[Rule, ...]] = (
    _broadcast,
    _skipped,
    _conflict,
    _filtered,
    _passed,
    _paused,
    _forbidden,
    _offline,
    _unsubscribed,
    _sent,
    _behind,
)
