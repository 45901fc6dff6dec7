"""What a pull selects: from the expression that it carries, or from its group's heartbeat."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from aerobee.broker.base.refused import Refused
from aerobee.broker.services.clients.subscription import (
    SQL92,
    TAG,
    Subscription,
    build_subscription,
)
from aerobee.broker.services.filters.filter_properties import properties_matcher, record_matcher
from aerobee.broker.services.filters.sql_filters import Filters, compiled
from aerobee.broker.sql92 import Predicate
from aerobee.protocol.wire.codes import ResponseCode

if TYPE_CHECKING:
    from aerobee.broker.store.results import Arrival

EXPRESSION_SIZE_MAX: Final = 32_768  # characters
_CACHED_SIZE_MAX: Final = 2_048  # longer ones are rare and would fill memory


@dataclass(frozen=True, slots=True)
class Selection:
    """The tests of one expression; both None: every message."""

    matches: Callable[[int], bool] | None = None  # of the tags code in a queue entry
    matches_record: Callable[[memoryview], bool] | None = None
    matches_properties: Callable[[str], bool] | None = None

    def wants(self, arrival: "Arrival") -> bool:
        if self.matches is not None:
            return self.matches(arrival.tags_code)
        if self.matches_properties is not None:
            return self.matches_properties(arrival.properties)
        return True


ALL: Final = Selection()


def by_expression(expression: str | None, kind: str | None) -> Selection:
    """What an expression in a pull selects; Refused (23) when it cannot be read."""
    text = expression or ""
    if not text or text == "*":
        return ALL
    if len(text) > EXPRESSION_SIZE_MAX:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription has {len(text)} characters; at most {EXPRESSION_SIZE_MAX} are taken",
        )
    build = _cached if len(text) <= _CACHED_SIZE_MAX else _build
    return build(text, kind or TAG)


def by_heartbeat(
    subscription: Subscription, filters: Filters, group: str, version: int
) -> Selection:
    """What the group's heartbeat selects; Refused (27, 28) while its filter is not known."""
    if subscription.is_tag:
        codes = subscription.codes
        return Selection(codes.__contains__) if codes else ALL
    return _by_predicate(filters.for_pull(subscription.topic, group, version))


def _by_predicate(predicate: Predicate) -> Selection:
    return Selection(None, record_matcher(predicate), properties_matcher(predicate))


def _build(text: str, kind: str) -> Selection:
    if kind == SQL92:
        return _by_predicate(compiled(text))
    if kind != TAG:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"expression type {kind!r} is not known; use TAG or SQL92",
        )
    if not text.replace("||", ""):
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription {text!r} names no tag; write `*` for all or `A || B`",
        )
    codes = build_subscription("", text).codes
    return Selection(codes.__contains__) if codes else ALL


_cached: Final = lru_cache(maxsize=1024)(_build)
