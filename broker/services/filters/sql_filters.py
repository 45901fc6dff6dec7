"""SQL92 filters of consumer groups: compiled once, applied to records; config/consumerFilter.json.

A group's filter is born with its heartbeat and dies with its last member; a dead one is kept for a
day, for the members that come back. After a load every filter counts as dead until its group's
heartbeat comes. It is compiled for the first pull: a heartbeat may bring thousands. The file's
Bloom filter data is upstream's way to spare work that is not done here: it is kept for Java brokers
that read the file after us.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.refused import Refused
from aerobee.broker.base.reports import Reports
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
BYTES_MAX: Final = 64 << 20
FILTER_BYTES: Final = 1000  # that a filter takes beside its text
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
    predicate: Predicate | None = field(default=None, repr=False)  # None: not compiled (yet)
    problem: str = ""  # why it does not compile

    @property
    def dead(self) -> bool:
        return self.dead_ms >= self.born_ms

    @property
    def size(self) -> int:
        return len(self.expression) + FILTER_BYTES

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

    def __init__(
        self,
        path: str,
        clock: Clock,
        disk: Disk | None = None,
        bytes_max: Callable[[], int] = lambda: BYTES_MAX,
    ) -> None:
        self._clock = clock
        self._bytes_max = bytes_max
        self._size = 0  # bytes, of all filters
        self._reports = Reports(clock)
        self.file = TableFile(path, clock, self._entries, self._value_of, disk)
        self._table: dict[str, dict[str, Filter]] = {}
        self._topics: dict[str, set[str]] = {}  # of each group that has filters
        self._dead: dict[tuple[str, str], Filter] = {}  # by topic and group, in the order of death

    def get(self, topic: str, group: str) -> Filter | None:
        """The group's filter; a pull finds 27 without one, 28 with one older than its own."""
        groups = self._table.get(topic)
        return groups.get(group) if groups else None

    def for_pull(self, topic: str, group: str, version: int) -> Predicate:
        """The filter of a pull whose subscription is the heartbeat's; Refused when not usable."""
        known = self.get(topic, group)
        if known is None:
            raise Refused(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"the SQL92 filter of group {group} on topic {topic} is not known (yet): it comes "
                "with the consumer's heartbeat",
            )
        predicate = known.predicate or self._compile(known)
        if predicate is None:
            raise Refused(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"the SQL92 filter of group {group} on topic {topic} cannot be used: "
                f"{known.problem}",
            )
        if known.client_version < version:
            raise Refused(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                f"the SQL92 filter of group {group} on topic {topic} is older than the pull's",
            )
        return predicate

    @staticmethod
    def _compile(known: Filter) -> Predicate | None:
        """Compile it, or find out once that this is impossible."""
        if not known.problem:
            try:
                known.predicate = compiled(known.expression, known.expression_type)
            except Refused as refused:
                known.problem = refused.remark
                log.warning(
                    "a group's SQL92 filter cannot be used",
                    group=known.group,
                    topic=known.topic,
                    reason=refused.remark,
                )
        return known.predicate

    # --- following the heartbeats; for `clients.on_group_change`

    def group_changed(self, name: str, group: ConsumerGroup | None) -> None:
        """Take over what the group's members now subscribe; None: the last one has left."""
        wanted = {} if group is None else group.subscriptions
        changed: list[str] = []  # topics
        for topic in self._topics.get(name, ()):
            known = self._table[topic][name]
            subscription = wanted.get(topic)
            if not known.dead and (subscription is None or subscription.is_tag):
                known.dead_ms = max(self._clock.now_ms(), known.born_ms)
                self._dead[topic, name] = known
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
        known = self.get(wanted.topic, group)
        # The newest of the live members', though its number may be lower than before: whoever had
        # the higher one is gone, or a client's clock was set back.
        if known is not None and (known.expression, known.expression_type) == (
            wanted.expression,
            wanted.expression_type,
        ):
            changed = known.dead or known.client_version != wanted.version
            known.client_version = wanted.version
            known.dead_ms = 0
            self._dead.pop((wanted.topic, group), None)
            return changed
        made = Filter(
            wanted.topic,
            group,
            wanted.expression,
            wanted.expression_type,
            wanted.version,
            self._clock.now_ms(),
            bloom=known.bloom if known else None,
        )
        if known is not None:
            self._remove(known)
        if not self._has_room(made.size):
            self._reports.log(
                "a group's SQL92 filter is not kept",
                level="warning",
                group=group,
                topic=wanted.topic,
                reason=f"the filters take {self._size} bytes, with it {self._size + made.size}, "
                f"and maxFilterBytes is {self._bytes_max()}",
                then="its pulls are refused with code 27; raise the limit and restart the consumer",
            )
            return known is not None
        self._add(made)
        return True

    def _has_room(self, size: int) -> bool:
        """Whether the limit allows a filter of this size; the longest dead ones make room."""
        while self._dead and self._size + size > self._bytes_max():
            self._remove(next(iter(self._dead.values())))
        return self._size + size <= self._bytes_max()

    def _add(self, new: Filter) -> None:
        self._table.setdefault(new.topic, {})[new.group] = new
        self._topics.setdefault(new.group, set()).add(new.topic)
        self._size += new.size
        if new.dead:
            self._dead[new.topic, new.group] = new

    def _remove(self, known: Filter) -> None:
        topic, group = known.topic, known.group
        del self._table[topic][group]
        if not self._table[topic]:
            del self._table[topic]
        self._topics[group].discard(topic)
        if not self._topics[group]:
            del self._topics[group]
        self._size -= known.size
        self._dead.pop((topic, group), None)
        self.file.changed_lazily((_TABLE, topic, _GROUPS, group))

    def _clean(self) -> None:
        """Forget filters that have been dead for a day."""
        now_ms = self._clock.now_ms()
        while self._dead:
            known = next(iter(self._dead.values()))
            if now_ms - known.dead_ms < DEAD_KEPT_MS:
                break
            self._remove(known)

    # --- the file

    def load(self) -> None:
        content = self.file.load() or {}
        topics = content.get(_TABLE)
        found: dict[tuple[str, str], Filter] = {}
        for topic, entry in (topics if isinstance(topics, dict) else {}).items():
            groups = entry.get(_GROUPS) if isinstance(entry, dict) else None
            for group, value in (groups if isinstance(groups, dict) else {}).items():
                if isinstance(value, dict):
                    found[str(topic), str(group)] = self._from_json(str(topic), str(group), value)
        for known in sorted(found.values(), key=lambda each: each.dead_ms):
            self._add(known)
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
