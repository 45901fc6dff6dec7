"""Bugs to plant, as in `mutants.py`: those that show when a start does not come to its end."""

from __future__ import annotations

from typing import Any

import pytest
from crash.mutants import mutant

from aerobee.broker.store.errors import WrongFileSize
from aerobee.broker.store.files.mapped_file_queue import MappedFileQueue
from aerobee.broker.store.index import index_service
from aerobee.broker.store.recovery.plan import Plan
from aerobee.broker.store.recovery.recovery import Recovery


@mutant
def refuse_a_short_last_file(patch: pytest.MonkeyPatch) -> None:
    def check(self: MappedFileQueue, path: str, start: int, length: int, *_: Any) -> None:
        raise WrongFileSize(path, length, self.file_size, self.setting)

    patch.setattr(MappedFileQueue, "_check_short", check)


@mutant
def remove_a_short_last_file(patch: pytest.MonkeyPatch) -> None:
    def complete(self: MappedFileQueue) -> None:
        last = self.last
        if last is not None and last.file.size < self.file_size:
            self.remove(self.files.pop())

    patch.setattr(MappedFileQueue, "complete_last", complete)


@mutant
def leave_a_short_last_file_as_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MappedFileQueue, "complete_last", lambda self: None)


@mutant
def refuse_a_short_index_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(index_service, "entries_kept", lambda file, slots, most: None)


@mutant
def cut_the_log_before_the_files_behind_its_end_go(patch: pytest.MonkeyPatch) -> None:
    def cut_log(self: Recovery, end: int, *, synced: bool) -> None:
        file = self._log.files.find(end)
        if file is not None and file.end > end > file.start:
            file.cut(end - file.start)
        real(self, end, synced=synced)

    real = Recovery._cut_log
    patch.setattr(Recovery, "_cut_log", cut_log)


@mutant
def write_abort_anew_around_the_recovery(patch: pytest.MonkeyPatch) -> None:
    def run(self: Recovery, facts: Any) -> Plan:
        disk, path = self._log.files.disk, self._settings.layout.abort
        disk.unlink(path)
        plan = real(self, facts)
        disk.write_small(path, b"1")
        disk.syncdir(self._settings.layout.root)
        return plan

    real = Recovery.run
    patch.setattr(Recovery, "run", run)
