"""One verdict for each group, by rules in order; the first that returns one decides.

First the message itself (is it there, is it visible yet), then the group: what it gave back,
then how its progress in the queue stands to the message. Nothing is guessed: without evidence
the verdict is `unknown`.
"""

from __future__ import annotations

from typing import Any

from aerobee.client.why.answer import ANY_GROUP, GroupVerdict, WhyVerdict
from aerobee.client.why.queue_rules import GroupView, in_queue
from aerobee.client.why.story import Placed, Story, clock_text, span_text
from aerobee.protocol.files import properties as props
from aerobee.protocol.names import (
    DLQ_PREFIX,
    TRANSACTION_GIVEN_UP_TOPIC,
    TRANSACTION_HALF_TOPIC,
)
from aerobee.protocol.wire.message_facts import DONE, WAITING, Group

Said = tuple[WhyVerdict, str, dict[str, Any], str]


def judge(story: Story, group: str | None) -> tuple[GroupVerdict, ...]:
    """The verdict for this group, or for each group concerned."""
    said = _gone(story) or _before_queue(story)
    if said is not None:
        return (GroupVerdict(group or ANY_GROUP, *said),)
    views = _views(story)
    if group is not None:
        views = {group: views.get(group) or GroupView(Group(group=group, is_known=False), [])}
    if not views:
        return (GroupVerdict(ANY_GROUP, *_no_reader(story)),)
    return tuple(GroupVerdict(name, *_of_group(story, view)) for name, view in views.items())


def _views(story: Story) -> dict[str, GroupView]:
    """The facts of all brokers about each group, merged."""
    views: dict[str, GroupView] = {}
    for broker in story.brokers:
        for facts in broker.groups:
            view = views.get(facts.group)
            if view is None:
                view = views[facts.group] = GroupView(facts, [])
            else:
                view.join(facts)
            view.standings += [(broker, standing) for standing in facts.standings]
    return dict(sorted(views.items()))


# --- the message itself


def _gone(story: Story) -> Said | None:
    """No broker has it."""
    if story.copies:
        return None
    for broker in story.brokers:
        if removed := broker.removed:
            when = clock_text(removed.at, story.now)
            return (
                WhyVerdict.EXPIRED,
                f"what was stored at its time has been removed from {broker.broker} at {when} "
                f"({removed.reason})",
                {
                    "broker": broker.broker,
                    "removed_at": removed.at,
                    "reason": removed.reason,
                    "file_start": removed.start,
                    "file_end": removed.end,
                    "written_until": removed.written_until,
                },
                "keep messages longer: raise fileReservedTime, or give the store a larger disk",
            )
    searched = {"searched": [broker.broker for broker in story.brokers]}
    if story.unreached:
        return (
            WhyVerdict.UNKNOWN,
            f"not found, but {', '.join(story.unreached)} did not answer",
            {**searched, "unreached": story.unreached},
            "ask again when all brokers can be reached",
        )
    if not story.brokers:
        return (
            WhyVerdict.UNKNOWN,
            "the name servers know no broker that could have it",
            searched,
            "ask again when the brokers are registered: aerobee cluster brokers lists them",
        )
    where = f"topic {story.topic}" if story.topic else "any topic"
    return (
        WhyVerdict.NOT_FOUND,
        f"no broker of this cluster has a message with this id in {where}",
        searched,
        "check the id, the topic and the cluster; check the producer's log: was the send "
        "acknowledged?",
    )


def _before_queue(story: Story) -> Said | None:
    """It is stored, but consumers cannot see it yet."""
    plain = story.in_topic(story.topic)
    if plain:
        return _unseen(story, plain[-1])
    if any(placed.goes_to.startswith(("%RETRY%", DLQ_PREFIX)) for placed in story.copies):
        return None  # the first copy has been removed, a group's is still there
    halves = story.in_topic(TRANSACTION_HALF_TOPIC)
    timers = story.waiting_for(story.topic)
    if timers and (not halves or timers[-1].copy.stored_at >= halves[-1].copy.stored_at):
        return _timer(story, timers[-1])
    given_up = story.in_topic(TRANSACTION_GIVEN_UP_TOPIC)
    if given_up or halves:
        return _transaction(story, halves, given_up)
    if recalls := story.recalls():
        return _recalled(story, recalls[-1], None)
    return WhyVerdict.UNKNOWN, "its copies do not tell where it is", {}, ""


def _unseen(story: Story, placed: Placed) -> Said | None:
    copy = placed.copy
    if copy.in_queue is not False:
        return None
    facts: dict[str, Any] = {
        "broker": placed.broker.broker,
        "topic": copy.topic,
        "queue": copy.queue_id,
        "offset": copy.queue_offset,
        "stored_at": copy.stored_at,
    }
    if copy.on_disk is False and placed.broker.sync_flush:
        return (
            WhyVerdict.NOT_FLUSHED,
            f"stored {clock_text(copy.stored_at, story.now)}, not on disk yet: with SYNC_FLUSH "
            "consumers see it once it is",
            facts,
            "if this lasts, the disk is slow or failing: see the broker's log and /metrics",
        )
    return (
        WhyVerdict.NOT_VISIBLE,
        f"it is in the log, but queue {copy.queue_id} of {copy.topic} does not lead to it",
        facts,
        "was the topic deleted and made again since? Else wait a moment: the queue follows the log",
    )


def _timer(story: Story, placed: Placed) -> Said:
    copy = placed.copy
    for recall in story.recalls():
        if recall.copy.stored_at >= copy.stored_at:
            return _recalled(story, recall, copy.due_at)
    facts = {"broker": placed.broker.broker, "due_at": copy.due_at, "set_at": copy.stored_at}
    if copy.due_at is None or copy.state == DONE:
        return WhyVerdict.UNKNOWN, "it was delayed; what became of it is not known", facts, ""
    left = copy.due_at - story.now
    when = clock_text(copy.due_at, story.now)
    text = (
        f"due at {when}, in {span_text(left)}"
        if left > 0
        else (f"due since {when}, {span_text(left)} ago: its delivery is late")
    )
    return WhyVerdict.WAITING_TIMER, text, facts, "wait, or take it back: aerobee timer recall"


def _recalled(story: Story, placed: Placed, due_at: int | None) -> Said:
    at = placed.copy.stored_at
    return (
        WhyVerdict.RECALLED,
        f"taken back at {clock_text(at, story.now)} by {placed.copy.born_host or 'a client'}, "
        "before its time",
        {"recalled_at": at, "by": placed.copy.born_host, "due_at": due_at},
        "send it again if that was a mistake",
    )


def _transaction(story: Story, halves: list[Placed], given_up: list[Placed]) -> Said:
    newest = halves[-1] if halves else given_up[-1]
    copy = newest.copy
    group = copy.properties.get(props.PGROUP, "")
    checks = int(copy.properties.get(props.TRANSACTION_CHECK_TIMES, "0") or 0)
    first_at = (halves or given_up)[0].copy.stored_at
    facts = {"producer_group": group, "half_at": first_at, "checks": checks}
    began = f"half message of producer group {group} since {clock_text(first_at, story.now)}"
    if given_up and given_up[-1].copy.stored_at >= copy.stored_at:
        return (
            WhyVerdict.GIVEN_UP,
            f"{began}: nobody ended the transaction after {checks} checks, it was given up at "
            f"{clock_text(given_up[-1].copy.stored_at, story.now)}",
            {**facts, "given_up_at": given_up[-1].copy.stored_at},
            f"it is kept in topic {TRANSACTION_GIVEN_UP_TOPIC}; see why {group} does not answer "
            "checks",
        )
    if copy.state == WAITING:
        return (
            WhyVerdict.HALF_OPEN,
            f"{began}: not committed yet, the producer was asked {checks} times",
            facts,
            f"is producer group {group} online and does its check answer?",
        )
    if copy.state == DONE:
        return WhyVerdict.ROLLED_BACK, f"{began}: the producer rolled it back", facts, ""
    return WhyVerdict.UNKNOWN, f"{began}: the broker does not tell what became of it", facts, ""


def _no_reader(story: Story) -> Said:
    return (
        WhyVerdict.NO_GROUP,
        f"it is stored; no group has read or subscribed topic {story.topic}",
        {"topic": story.topic},
        "start a consumer; to read what is stored already, it must begin at the first message",
    )


# --- a group


def _of_group(story: Story, view: GroupView) -> Said:
    if not view.facts.is_known:
        return (
            WhyVerdict.NO_GROUP,
            f"no broker knows the group {view.facts.group}",
            {"topic": story.topic},
            "check its name: a group is known once a consumer has connected",
        )
    own = story.of_group(view.facts.group)
    plain = story.in_topic(story.topic)
    if not own or (plain and plain[-1].copy.stored_at > own[-1].copy.stored_at):
        return in_queue(story, view, plain[-1], 0) if plain else _first_is_gone()
    newest = own[-1]
    if newest.copy.topic.startswith(DLQ_PREFIX):
        return _dead(story, view, newest)
    if newest.waits:
        return _in_retry(story, view, newest)
    return in_queue(story, view, newest, newest.copy.reconsume_times)


def _first_is_gone() -> Said:
    text = "its first copy has been removed; nothing tells what this group did with it"
    return WhyVerdict.UNKNOWN, text, {}, ""


def _dead(story: Story, view: GroupView, newest: Placed) -> Said:
    copy, group = newest.copy, view.facts.group
    reason = copy.properties.get(props.LAST_FAILURE, "")
    facts = {
        "dead_at": copy.stored_at,
        "retries": max(0, copy.reconsume_times - 1),
        "reason": reason,
        "topic": copy.topic,
        "offset": copy.queue_offset,
    }
    text = f"given up after {facts['retries']} retries at {clock_text(copy.stored_at, story.now)}"
    remedy = f"repair the handler, then: aerobee dlq replay {group}"
    return WhyVerdict.DEAD, text + (f": {reason}" if reason else ""), facts, remedy


def _in_retry(story: Story, view: GroupView, newest: Placed) -> Said:
    copy = newest.copy
    most = view.facts.retry_max
    reason = copy.properties.get(props.LAST_FAILURE, "")
    facts = {
        "attempt": copy.reconsume_times,
        "attempts_max": most,
        "given_back_at": copy.stored_at,
        "due_at": copy.due_at,
        "reason": reason,
    }
    text = (
        f"retry {copy.reconsume_times}{'' if most is None else f' of {most}'}: given back "
        f"{clock_text(copy.stored_at, story.now)}, again at {clock_text(copy.due_at, story.now)}"
    )
    remedy = "see the handler's log for why it fails"
    return WhyVerdict.IN_RETRY, text + (f" ({reason})" if reason else ""), facts, remedy
