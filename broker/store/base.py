"""What all parts of a store share: settings, clock, disk, counters and reports."""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.reports import Reports
from aerobee.broker.base.trusted_time import TrustedTime
from aerobee.broker.store.files.abort_file import AbortFile
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.mapped_file import MappingCounters
from aerobee.broker.store.refusals import Cause, Refusals
from aerobee.broker.store.results import StoreStats
from aerobee.broker.store.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class StoreBase:
    settings: StoreSettings
    clock: Clock
    disk: Disk
    stats: StoreStats
    counters: MappingCounters
    refusals: Refusals
    reports: Reports
    unsynced: set[str]  # folders with entries that are not yet on disk
    abort: AbortFile
    trusted_time: TrustedTime

    def fence(self, reason: str) -> None:
        """Refuse puts from now on, and record for the next start that the page cache cannot be
        trusted."""
        self.refusals.set(Cause.SYNC_FAILED, reason)
        self.abort.mark_sync_failed()


def build_base(settings: StoreSettings, clock: Clock, disk: Disk) -> StoreBase:
    return StoreBase(
        settings,
        clock,
        disk,
        StoreStats(),
        MappingCounters(),
        Refusals(),
        Reports(clock),
        set(),
        AbortFile(disk, settings.layout),
        TrustedTime(clock),
    )
