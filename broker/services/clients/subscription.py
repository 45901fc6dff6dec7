"""A group's subscription to a topic: by tag or SQL92, from a heartbeat or from a pull."""

from dataclasses import dataclass
from typing import Any, Final

from aerobee.broker.services.config_files.config_file import as_bool, as_int
from aerobee.protocol.files.java_hash import tags_code

TAG: Final = "TAG"
SQL92: Final = "SQL92"
ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic's subscription. `codes` empty: no selection by tag."""

    topic: str
    expression: str = ALL
    expression_type: str = TAG
    tags: tuple[str, ...] = ()
    codes: frozenset[int] = frozenset()
    version: int = 0
    class_filter: bool = False

    @property
    def is_tag(self) -> bool:
        return self.expression_type == TAG

    @property
    def selects(self) -> tuple[str, frozenset[str] | str]:
        """Equal for two subscriptions that want the same messages."""
        if self.is_tag:
            return TAG, frozenset(self.tags)
        return self.expression_type, self.expression.strip()

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter,
            "codeSet": sorted(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }


def build_subscription(
    topic: str, expression: str | None, expression_type: str | None = TAG, version: int = 0
) -> Subscription:
    """The subscription that a client describes by its expression; no type means TAG."""
    kind = expression_type or TAG
    if kind != TAG:
        return Subscription(topic, expression or "", kind, version=version)
    text = (expression or "").strip()
    if text in ("", ALL):
        return Subscription(topic, version=version)
    tags = tuple(dict.fromkeys(tag for part in text.split("||") if (tag := part.strip())))
    if ALL in tags:  # `A || *` wants all
        tags = ()
    codes = frozenset(tags_code(tag) for tag in tags)
    return Subscription(topic, expression or ALL, TAG, tags, codes, version)


def subscription_from_json(value: dict[Any, Any]) -> Subscription | None:
    """One entry of a heartbeat's subscriptionDataSet; None when it names no topic."""
    topic = value.get("topic")
    if not isinstance(topic, str) or not topic:
        return None
    expression = value.get("subString")
    if expression is None and isinstance(value.get("tagsSet"), list):
        expression = "||".join(str(tag) for tag in value["tagsSet"])
    kind = value.get("expressionType")
    built = build_subscription(
        topic,
        None if expression is None else str(expression),
        str(kind) if kind else TAG,
        as_int(value.get("subVersion"), 0),
    )
    if not as_bool(value.get("classFilterMode"), False):
        return built
    return Subscription(topic, built.expression, built.expression_type, class_filter=True)
