"""Keepers: services whose messages wait in the log, asked before one of its files is removed.

A timer, a delayed message, a half message was acknowledged and nobody has had it yet. So before a
file goes, each keeper stores again, further on, what of its own waits in it, in small pieces; and
all that was delivered or stored again from it must be on disk. When
the disk is nearly full this must pay: at most three quarters of what it frees is stored again.
Where that is not possible, the file stays. Only while sends are refused because of the disk does it
go all the same: then every message that goes with it is named in the log, and counted.
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
SHARE_MAX: Final = 0.75  # of a file that may be stored again to remove it from a full disk


LogEnds = tuple[int, int]  # where the log ends, and up to where it is on disk


class Standing(Enum):
    """What a keeper has left before an offset."""

    CLEAR = auto()  # nothing
    BUSY = auto()  # something; ask again soon
    STUCK = auto()  # something that cannot be stored again now


class Keeper(Protocol):
    """A service with messages that wait in the log."""

    kind: str  # of its messages
    carried: int  # messages stored again so far
    carried_bytes: int
    problem: str  # why it is stuck

    def carry(self, end: int, may_put: bool) -> Standing:
        """Store again some of what waits before physical offset `end`; called until it is CLEAR.
        Without `may_put` it only looks."""

    def waiting(self, end: int) -> Iterator[StoredMessage]:
        """The messages that wait before `end`."""


class Keepers:
    """All keepers, asked together about one file."""

    def __init__(
        self, refusals: Refusals, reports: Reports, log_ends: Callable[[], LogEnds]
    ) -> None:
        self._refusals = refusals
        self._reports = reports
        self._log_ends = log_ends
        self._keepers: list[Keeper] = []
        self._gain: float | None = None  # what a disk that is nearly full has gained, in files
        self._may_put: tuple[int, bool] = (-1, True)  # end of a file, whether it pays to carry
        self._clear: tuple[int, int] = (-1, 0)  # end of a file; of the log when nothing waited
        self._naming: tuple[int, Iterator[tuple[str, StoredMessage]]] | None = None
        self.lost: dict[str, int] = {}  # kind -> messages
        self.busy = False  # after `is_clear`: ask again soon

    def add(self, keeper: Keeper) -> None:
        self._keepers.append(keeper)
        self.lost[keeper.kind] = 0

    @property
    def carried(self) -> dict[str, int]:
        """Messages that were stored again, of each kind."""
        return {keeper.kind: keeper.carried for keeper in self._keepers}

    def is_clear(self, file: MappedFile, forced: bool) -> bool:
        """Whether nothing that waits is in the file; else some of it is stored again."""
        self.busy = False
        if self._naming is not None and self._naming[0] == file.end:
            return self._name_some(self._naming[1])
        self._naming = None
        may_put = self._pays(file) if forced else True
        for keeper in self._keepers:
            before = keeper.carried_bytes
            try:
                standing = keeper.carry(file.end, may_put)
            except Exception as error:  # cleaning must go on, and nothing be removed by mistake
                event, then = "messages that wait were not stored again", "their file is kept"
                self._reports.failed(event, error, then=then, kind=keeper.kind)
                return False
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
        """Whether what took the place of the file's messages, as far as they waited, is there."""
        if not self._keepers:
            return True
        log_end, flushed = self._log_ends()
        if self._clear[0] != file.end:
            self._clear = file.end, log_end
        self.busy = flushed < self._clear[1]
        return not self.busy

    def relax(self) -> None:
        """The disk is not nearly full: what is stored again may cost what it will."""
        self._gain = None
        self._may_put = (-1, True)

    def _pays(self, file: MappedFile) -> bool:
        """Whether the files before this one have left enough room; decided once for each."""
        if self._gain is None:
            self._gain = 1 - SHARE_MAX
        if self._may_put[0] != file.end:
            self._may_put = (file.end, self._gain > 0)
        return self._may_put[1]

    def _stuck(self, file: MappedFile, forced: bool, keeper: Keeper) -> bool:
        if forced and Cause.DISK_FULL in self._refusals:
            log.error(
                "the disk is full of messages that wait: the oldest are removed",
                path=file.path,
                reason=keeper.problem,
            )
            self._naming = file.end, self._all_waiting(file.end)
            self.busy = True
        else:
            self._reports.say(
                "a file is kept although it has expired: messages wait in it",
                level="warning",
                path=file.path,
                kind=keeper.kind,
                reason=keeper.problem,
            )
        return False

    def _all_waiting(self, end: int) -> Iterator[tuple[str, StoredMessage]]:
        for keeper in self._keepers:
            for message in keeper.waiting(end):
                yield keeper.kind, message

    def _name_some(self, waiting: Iterator[tuple[str, StoredMessage]]) -> bool:
        """Name the next messages that go with the file; whether those were the last."""
        count = 0
        for kind, message in islice(waiting, NAMED_AT_ONCE):
            count += 1
            self.lost[kind] += 1
            log.error(
                "a message that waits is removed with its file: the disk is full",
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
