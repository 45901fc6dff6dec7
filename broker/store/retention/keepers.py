"""Keepers: services with pending messages in the log, asked before one of its files is removed.

A timer, a delayed message or a half message was acknowledged but not delivered yet. So before a
file is removed, each keeper appends its pending messages in that file to the log again, in small
pieces; and all that was delivered or stored again must be on disk. When the disk is nearly full
this must free space: at most three quarters of the file may be stored again, else the file stays.
Only while sends are refused because of a full disk is it removed all the same; every message lost
with it is then logged and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from itertools import islice
from typing import Final, Protocol

import structlog

from aerobee.broker.base.reports import Reports
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.refusals import Cause, Refusals
from aerobee.protocol.files import properties as props
from aerobee.protocol.files.record import StoredMessage

log = structlog.get_logger("aerobee.store")

NAMED_AT_ONCE: Final = 128
SHARE_MAX: Final = 0.75  # of a file that may be stored again on a nearly full disk


LogEnds = tuple[int, int]  # end of the log, and of its part on disk


class Standing(Enum):
    """Whether a keeper has pending messages before an offset."""

    CLEAR = auto()  # nothing
    BUSY = auto()  # something; ask again soon
    STUCK = auto()  # something that cannot be stored again now


class Keeper(Protocol):
    """A service with pending messages in the log."""

    kind: str  # of its messages
    carried: int  # messages stored again so far
    carried_bytes: int
    problem: str  # why it is stuck

    def carry(self, end: int, may_put: bool) -> Standing:
        """Store again some pending messages before physical offset `end`; called until it is CLEAR.
        Without `may_put` it only checks."""

    def waiting(self, end: int) -> Iterator[StoredMessage]:
        """The pending messages before `end`."""


class Keepers:
    """All keepers, for one file at a time."""

    def __init__(
        self, refusals: Refusals, reports: Reports, log_ends: Callable[[], LogEnds]
    ) -> None:
        self._refusals = refusals
        self._reports = reports
        self._log_ends = log_ends
        self._keepers: list[Keeper] = []
        self._gain: float | None = None  # space gained on a nearly full disk, in files
        self._may_put: tuple[int, bool] = (-1, True)  # file end, whether it frees space
        self._clear: tuple[int, int] = (-1, 0)  # file end; log end when nothing waited
        self._naming: tuple[int, Iterator[tuple[str, StoredMessage]]] | None = None
        self.lost: dict[str, int] = {}  # kind -> messages
        self.busy = False  # after `is_clear`: ask again soon

    def add(self, keeper: Keeper) -> None:
        self._keepers.append(keeper)
        self.lost[keeper.kind] = 0

    @property
    def carried(self) -> dict[str, int]:
        """Messages that were stored again, by kind."""
        return {keeper.kind: keeper.carried for keeper in self._keepers}

    def is_clear(self, file: MappedFile, forced: bool) -> bool:
        """Whether the file has no pending messages; else some are stored again."""
        self.busy = False
        if self._naming is not None and self._naming[0] == file.end:
            return self._name_some(self._naming[1])
        self._naming = None
        may_put = self._pays(file) if forced else True
        for keeper in self._keepers:
            before = keeper.carried_bytes
            try:
                standing = keeper.carry(file.end, may_put)
            except Exception as error:  # cleaning must continue, and nothing be removed by mistake
                event, then = "pending messages were not stored again", "their file is kept"
                self._reports.failed(event, error, then=then, kind=keeper.kind)
                if not (forced and isinstance(error, OSError)):
                    return False
                keeper.problem = str(error)  # one on a bad sector must not keep the disk full
                standing = Standing.STUCK
            if self._gain is not None:
                self._gain -= (keeper.carried_bytes - before) / file.size
            if standing is Standing.BUSY:
                self.busy = True
                return False
            if standing is Standing.STUCK:
                return self._stuck(file, forced, keeper)
        if not self._is_on_disk(file):
            return False
        if self._gain is not None:
            self._gain = min(self._gain + SHARE_MAX, 1.0)
        return True

    def _is_on_disk(self, file: MappedFile) -> bool:
        """Whether what replaced the file's pending messages is on disk."""
        if not self._keepers:
            return True
        log_end, flushed = self._log_ends()
        if self._clear[0] != file.end:
            self._clear = file.end, log_end
        self.busy = flushed < self._clear[1]
        return not self.busy

    def relax(self) -> None:
        """The disk is not nearly full: storing again may take any amount of space."""
        self._gain = None
        self._may_put = (-1, True)

    def _pays(self, file: MappedFile) -> bool:
        """Whether removing earlier files has freed enough space; decided once per file."""
        if self._gain is None:
            self._gain = 1 - SHARE_MAX
        if self._may_put[0] != file.end:
            self._may_put = (file.end, self._gain > 0)
        return self._may_put[1]

    def _stuck(self, file: MappedFile, forced: bool, keeper: Keeper) -> bool:
        if forced and Cause.DISK_FULL in self._refusals:
            log.error(
                "the disk is full of pending messages: the oldest are removed",
                path=file.path,
                reason=keeper.problem,
            )
            self._naming = file.end, self._all_waiting(file.end)
            self.busy = True
        else:
            self._reports.log(
                "an expired file is kept: it has pending messages",
                level="warning",
                path=file.path,
                kind=keeper.kind,
                reason=keeper.problem,
            )
        return False

    def _all_waiting(self, end: int) -> Iterator[tuple[str, StoredMessage]]:
        for keeper in self._keepers:
            try:
                for message in keeper.waiting(end):
                    yield keeper.kind, message
            except OSError as error:
                log.error(
                    "pending messages are removed with their file, and some cannot be read to name "
                    "them: the disk is full",
                    kind=keeper.kind,
                    reason=str(error),
                )

    def _name_some(self, waiting: Iterator[tuple[str, StoredMessage]]) -> bool:
        """Log the next messages that are lost with the file; whether those were the last."""
        count = 0
        for kind, message in islice(waiting, NAMED_AT_ONCE):
            count += 1
            self.lost[kind] += 1
            log.error(
                "a pending message is removed with its file: the disk is full",
                kind=kind,
                topic=message.property(props.REAL_TOPIC),
                keys=message.property(props.KEYS),
                unique_key=message.property(props.UNIQ_KEY),
                message_id=message.message_id,
            )
        self.busy = count == NAMED_AT_ONCE
        if not self.busy:
            self._naming = None
        return not self.busy
