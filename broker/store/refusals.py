"""Why puts are currently refused, if they are: each cause has its own message."""

from __future__ import annotations

from enum import IntEnum

import structlog

from aerobee.broker.store.results import PutStatus, Refusal

log = structlog.get_logger("aerobee.store")


class Cause(IntEnum):
    """In order of precedence."""

    SHUT_DOWN = 0
    SLAVE = 1
    SYNC_FAILED = 2
    START_UNFINISHED = 3
    QUEUES_LOST = 4
    DISPATCH_FAILED = 5
    DISK_FULL = 6
    COMMIT_FAILED = 7
    SUPERSEDED = 8
    FENCED = 9
    FEW_IN_SYNC = 10


class Refusals:
    __slots__ = ("_reasons", "current")

    def __init__(self) -> None:
        self._reasons: dict[Cause, str] = {}
        self.current: Refusal | None = None

    def set(self, cause: Cause, reason: str) -> None:
        if cause not in self._reasons and cause not in (Cause.SHUT_DOWN, Cause.SLAVE):
            log.error("puts are refused from now on", cause=cause.name, reason=reason)
        self._reasons[cause] = reason
        self._choose()

    def clear(self, cause: Cause) -> None:
        if self._reasons.pop(cause, None) is not None and cause > Cause.SLAVE:
            log.info("puts are accepted again", cause=cause.name)
        self._choose()

    def __contains__(self, cause: Cause) -> bool:
        return cause in self._reasons

    def besides(self, cause: Cause) -> Refusal | None:
        """Why puts are refused, ignoring this cause."""
        others = [other for other in self._reasons if other is not cause]
        return self._refusal(min(others)) if others else None

    def _choose(self) -> None:
        self.current = self._refusal(min(self._reasons)) if self._reasons else None

    def _refusal(self, cause: Cause) -> Refusal:
        return Refusal(PutStatus.SERVICE_NOT_AVAILABLE, self._reasons[cause])
