"""SQL92 filters of consumer groups: compiled once, applied to records; config/consumerFilter.json.

A group's filter is born with its heartbeat and dies with its last member; a dead one is kept for a
day, for the members that come back. After a load every filter counts as dead until its group's
heartbeat comes. The file's Bloom filter data is upstream's way to spare work that is not done here:
it is kept for Java brokers that read the file after us.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.services.clients.consumer_group import ConsumerGroup
from aerobee.broker.services.clients.subscription import SQL92, TAG, Subscription
from aerobee.broker.services.config_files.config_file import as_int
from aerobee.broker.services.config_files.table_file import TableFile
from aerobee.broker.sql92 import FilterSyntaxError, Predicate, compile_filter
from aerobee.broker.store.files.disk import Disk
from aerobee.protocol.files.config_journal import Change, Path
from aerobee.protocol.wire.codes import ResponseCode

log = structlog.get_logger("aerobee.filters")

DEAD_KEPT_MS: Final = 24 * 3600 * 1000
DEAD_AT_LOAD_MS: Final = 30_000
_TABLE: Final = "filterDataByTopic"
_GROUPS: Final = "groupFilterData"


@dataclass(slots=True)
class Filter:
    """What one group selects of one topic."""

    topic: str
    group: str
    expression: str
    expression_type: str
    client_version: int
    born_ms: int
    dead_ms: int = 0
    bloom: dict[str, Any] | None = None
    predicate: Predicate | None = field(default=None, repr=False)  # None: it does not compile

    @property
    def dead(self) -> bool:
        return self.dead_ms >= self.born_ms

    def to_json(self) -> dict[str, Any]:
        return {
            "bloomFilterData": self.bloom,
            "bornTime": self.born_ms,
            "clientVersion": self.client_version,
            "consumerGroup": self.group,
            "dead": self.dead,
            "deadTime": self.dead_ms,
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
        }


def compiled(expression: str, expression_type: str = SQL92) -> Predicate:
    """The predicate over a message's properties; Refused shows where the expression is wrong."""
    if expression_type != SQL92:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"expression type {expression_type!r} is not known; use TAG or SQL92",
        )
    try:
        return compile_filter(expression)
    except FilterSyntaxError as error:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the SQL92 expression is wrong: {error}"
        ) from None


class Filters:
    """The filters of all groups, by topic and group."""

    def __init__(self, path: str, clock: Clock, disk: Disk | None = None) -> None:
        self._clock = clock
        self.file = TableFile(path, clock, self._entries, self._value_of, disk)
        self._table: dict[str, dict[str, Filter]] = {}

    def get(self, topic: str, group: str) -> Filter | None:
        """The group's filter; a pull finds 27 without one, 28 with one older than its own."""
        groups = self._table.get(topic)
        return groups.get(group) if groups else None

    def for_pull(self, topic: str, group: str, version: int) -> Predicate:
        """The filter of a pull whose subscription is the heartbeat's; Refused when not usable."""
        known = self.get(topic, group)
        if known is None or known.predicate is None:
            raise Refused(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"the SQL92 filter of group {group} on topic {topic} is not known (yet): it comes "
                "with the consumer's heartbeat",
            )
        if known.client_version < version:
            raise Refused(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                f"the SQL92 filter of group {group} on topic {topic} is older than the pull's",
            )
        return known.predicate

    # --- following the heartbeats; for `clients.on_group_change`

    def group_changed(self, name: str, group: ConsumerGroup | None) -> None:
        """Take over what the group's members now subscribe; None: the last one has left."""
        wanted = {} if group is None else group.subscriptions
        changed: list[str] = []  # topics
        for topic, groups in self._table.items():
            known = groups.get(name)
            subscription = wanted.get(topic)
            by_tag = subscription is None or subscription.is_tag
            if known is not None and not known.dead and by_tag:
                known.dead_ms = max(self._clock.now_ms(), known.born_ms)
                changed.append(topic)
        for subscription in wanted.values():
            if not subscription.is_tag and self._register(name, subscription):
                changed.append(subscription.topic)
        if changed:
            self._clean()
        for topic in changed:
            self.file.changed_lazily((_TABLE, topic, "topic"))
            self.file.changed_lazily((_TABLE, topic, _GROUPS, name))

    def _register(self, group: str, wanted: Subscription) -> bool:
        if not wanted.expression:
            return False
        groups = self._table.setdefault(wanted.topic, {})
        known = groups.get(group)
        # The newest of the live members', though its number may be lower than before: whoever had
        # the higher one is gone, or a client's clock was set back.
        if known is not None and (known.expression, known.expression_type) == (
            wanted.expression,
            wanted.expression_type,
        ):
            changed = known.dead or known.client_version != wanted.version
            known.client_version = wanted.version
            known.dead_ms = 0
            return changed
        try:
            predicate = compiled(wanted.expression, wanted.expression_type)
        except Refused as refused:
            log.warning(
                "a group's SQL92 filter cannot be used",
                group=group,
                topic=wanted.topic,
                reason=refused.remark,
            )
            return groups.pop(group, None) is not None
        groups[group] = Filter(
            wanted.topic,
            group,
            wanted.expression,
            wanted.expression_type,
            wanted.version,
            self._clock.now_ms(),
            bloom=known.bloom if known else None,
            predicate=predicate,
        )
        return True

    def _clean(self) -> None:
        """Forget filters that have been dead for a day."""
        now_ms = self._clock.now_ms()
        self._table = {
            topic: kept
            for topic, groups in self._table.items()
            if (
                kept := {
                    group: known
                    for group, known in groups.items()
                    if not known.dead or now_ms - known.dead_ms < DEAD_KEPT_MS
                }
            )
        }

    # --- the file

    def load(self) -> None:
        content = self.file.load() or {}
        topics = content.get(_TABLE)
        for topic, entry in (topics if isinstance(topics, dict) else {}).items():
            groups = entry.get(_GROUPS) if isinstance(entry, dict) else None
            for group, value in (groups if isinstance(groups, dict) else {}).items():
                if isinstance(value, dict):
                    known = self._from_json(str(topic), str(group), value)
                    self._table.setdefault(known.topic, {})[known.group] = known
        self._clean()

    def _from_json(self, topic: str, group: str, value: dict[Any, Any]) -> Filter:
        bloom = value.get("bloomFilterData")
        known = Filter(
            topic,
            group,
            str(value.get("expression") or ""),
            str(value.get("expressionType") or TAG),
            as_int(value.get("clientVersion"), 0),
            as_int(value.get("bornTime"), 0),
            as_int(value.get("deadTime"), 0),
            bloom if isinstance(bloom, dict) else None,
        )
        try:
            known.predicate = compiled(known.expression, known.expression_type)
        except Refused as refused:
            log.warning(
                "a filter of the config file cannot be used",
                group=group,
                topic=topic,
                reason=refused.remark,
            )
        if known.dead_ms == 0:  # no member is connected yet
            known.dead_ms = max(self._clock.now_ms() - DEAD_AT_LOAD_MS, known.born_ms)
        return known

    def _entries(self) -> Iterator[Change]:
        self._clean()
        if not self._table:
            yield (_TABLE,), {}
        for topic in list(self._table):
            for group in list(self._table.get(topic, ())):
                value = self._value_of((_TABLE, topic, _GROUPS, group))
                if value is not None:
                    yield (_TABLE, topic, _GROUPS, group), value
            yield (_TABLE, topic, "topic"), topic

    def _value_of(self, path: Path) -> Any:
        if len(path) < 3:
            return None  # the file has no version
        topic = path[1]
        if path[2] == "topic":
            return topic
        known = self._table.get(topic, {}).get(path[3])
        return known.to_json() if known is not None else None
