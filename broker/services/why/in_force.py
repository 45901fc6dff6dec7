"""Which subscription selected a message or not: the one in force when the group reached it, not the
present one."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aerobee.broker.services.clients.subscription import SQL92, TAG, build_subscription
from aerobee.broker.sql92 import FilterSyntaxError, compile_filter, failed_term
from aerobee.protocol.files import properties as props
from aerobee.protocol.wire.message_facts import Filter

Change = dict[str, Any]
_NEVER: Final = 1 << 62


def filter_of(
    changes: Sequence[Change], queue_id: int, queue_offset: int, properties: Mapping[str, str]
) -> Filter | None:
    """The filter of the group at this offset; None when it is not remembered.

    A change notes how far the group had committed and pulled: what it had not pulled by then was
    decided by the new subscription, what it had committed by the one before. Between the two,
    either may have: unless both say the same, `matches` is None.
    """
    found: list[Filter] = []
    for number, change in enumerate(changes):
        begin = _offsets(change, queue_id)[0]
        last = number + 1 == len(changes)
        end = _NEVER if last else _offsets(changes[number + 1], queue_id)[1]
        if begin <= queue_offset < end:
            found.append(_matched(change, properties))
    if not found:
        return None
    newest = found[-1]
    if any(one.matches is not newest.matches for one in found):
        newest.matches, newest.term = None, ""
    return newest


def _offsets(change: Change, queue_id: int) -> tuple[int, int]:
    """How far the group had committed and pulled; 0 in a queue that is not named."""
    committed, pulled = (change.get("offsets") or {}).get(str(queue_id), (0, 0))
    return max(0, committed), max(0, committed, pulled)


def _matched(change: Change, properties: Mapping[str, str]) -> Filter:
    kind, expression = str(change["type"]), change["expression"]
    since = int(change["at"])
    if not isinstance(expression, str):  # too long to be remembered
        return Filter(expression_type=kind, expression="", since=since)
    matches, term = match(kind, expression, properties)
    return Filter(
        expression_type=kind, expression=expression, since=since, matches=matches, term=term
    )


def match(kind: str, expression: str, properties: Mapping[str, str]) -> tuple[bool | None, str]:
    """Whether an expression selects a message (None: not known), and which part of it does not."""
    if kind == TAG:
        tags = build_subscription("", expression).tags
        tag = properties.get(props.TAGS)
        if not tags or tag in tags:
            return True, ""
        has = f"its tag is {tag}" if tag else "it has no tag"
        return False, f"{has}, the group wants {' || '.join(tags)}"
    if kind != SQL92:
        return None, ""
    try:
        if compile_filter(expression)(properties):
            return True, ""
        return False, failed_term(expression, properties)
    except FilterSyntaxError as error:
        return None, f"the expression is wrong: {error}"
