"""A consumer's filter of a topic: all messages, some tags, or an SQL92 expression."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from aerobee.client.errors import Misuse
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.java_hash import java_hash
from aerobee.protocol.files.record import StoredMessage

TAG: Final = "TAG"
SQL92: Final = "SQL92"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A filter of one topic; brokers take the one with the highest version."""

    topic: str
    expression: str
    kind: str
    tags: frozenset[str]
    version: int

    def matches(self, message: StoredMessage) -> bool:
        """The exact test for tags: brokers compare their hashes only."""
        return not self.tags or props.get(message.properties, props.TAGS) in self.tags

    def describe(self) -> dict[str, Any]:
        """SubscriptionData as a heartbeat carries it."""
        return {
            "classFilterMode": False,
            "codeSet": [java_hash(tag) for tag in sorted(self.tags)],
            "expressionType": self.kind,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": sorted(self.tags),
            "topic": self.topic,
        }


def subscribe(
    topic: str, tags: str | Iterable[str] | None, sql: str | None, version: int
) -> Subscription:
    """The subscription of `tags` (None: all) or `sql`."""
    if sql is not None:
        if tags is not None:
            raise Misuse("give tags or sql, not both")
        if not sql.strip():
            raise Misuse("the SQL expression is empty")
        return Subscription(topic, sql, SQL92, frozenset(), version)
    names = frozenset((tags,) if isinstance(tags, str) else tags or ())
    for name in names:
        if not name.strip() or "||" in name or name == "*":
            raise Misuse(f"{name!r} is not a valid tag; leave tags out to get all messages")
    return Subscription(topic, " || ".join(sorted(names)) or "*", TAG, names, version)
