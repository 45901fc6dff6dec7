"""The answer to "where is my message?": its history, and one verdict for each group."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

ANY_GROUP: Final = "*"  # a verdict that does not depend on the group; no group can be named so


class WhyVerdict(StrEnum):
    """All that can be said of a message and a group. A closed list: programs may switch on it."""

    NOT_FOUND = "not_found"
    EXPIRED = "expired"
    WAITING_TIMER = "waiting_timer"
    RECALLED = "recalled"
    HALF_OPEN = "half_open"
    ROLLED_BACK = "rolled_back"
    GIVEN_UP = "given_up"
    NOT_VISIBLE = "not_visible"
    NOT_FLUSHED = "not_flushed"
    NO_GROUP = "no_group"
    PAUSED = "paused"
    FORBIDDEN = "forbidden"
    OFFLINE = "offline"
    CONFLICT = "conflict"
    FILTERED = "filtered"
    BEHIND = "behind"
    SENT = "sent"
    IN_RETRY = "in_retry"
    DEAD = "dead"
    CONSUMED = "consumed"
    SKIPPED_BY_RESET = "skipped_by_reset"
    BROADCAST = "broadcast"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """One thing that happened to the message. `at` is in ms since 1970; None: not known when."""

    at: int | None
    event: str
    topic: str
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"at": self.at, "event": self.event, "topic": self.topic, **self.facts}


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """The outcome of the message for one group; group `*`: the same for every group."""

    group: str
    verdict: WhyVerdict
    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "verdict": self.verdict.value,
            "text": self.text,
            "facts": self.facts,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Why:
    """The result of `mq.why`. There is at least one verdict."""

    message_id: str
    life: tuple[LifeEvent, ...]
    groups: tuple[GroupVerdict, ...]

    @property
    def is_found(self) -> bool:
        return all(row.verdict is not WhyVerdict.NOT_FOUND for row in self.groups)

    def of(self, group: str) -> GroupVerdict | None:
        """The verdict for a group: its own, or the one that holds for all."""
        rows = {row.group: row for row in self.groups}
        return rows.get(group) or rows.get(ANY_GROUP)

    def as_dict(self) -> dict[str, Any]:
        """As `aerobee why --json` prints it."""
        return {
            "id": self.message_id,
            "life": [event.as_dict() for event in self.life],
            "groups": [row.as_dict() for row in self.groups],
        }
