"""Maintains a table: merges small files, removes what no snapshot needs."""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from aerobee.pipeline.jobs.table_tasks import merge_files
from aerobee.pipeline.lake.model import KEEP, TARGET_BYTES, Cleaned, DataFile, Held, Table

SMALL_BYTES: Final = TARGET_BYTES // 2
FIRST_CLEAN: Final = 300.0  # seconds after the start
TIER_FACTOR: Final = 16  # files of one tier differ by less than that in size


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The schedule of maintenance."""

    small_files: int = 16  # of one tier in a partition before they are merged
    keep: timedelta = KEEP
    clean_every: float = 3600.0  # seconds


def is_small(one: DataFile) -> bool:
    return one.size < SMALL_BYTES


def mergeable(files: Iterable[DataFile], small_files: int) -> list[list[DataFile]]:
    """Groups of small files that should be one. A file is merged with others of its size, so that
    a row is rewritten a few times at most, however often there is a commit; the rest of a day that
    is over is merged at once."""
    today = datetime.now(UTC).date()
    tiers: dict[tuple[Any, ...], list[DataFile]] = defaultdict(list)
    for one in files:
        if is_small(one):
            day = one.partition.get("date")
            over = day is not None and date.fromisoformat(day) < today
            tier = -1 if over else int(math.log(max(one.size, 4096) / 4096, TIER_FACTOR))
            tiers[(*one.partition.items(), tier)].append(one)
    groups = []
    for key, members in tiers.items():
        least = 2 if key[-1] == -1 else small_files
        if len(members) >= least:
            groups += _bins(sorted(members, key=lambda one: (one.offset_min or 0, one.path)))
    return groups


def _bins(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Cut so that none becomes larger than a file should be."""
    bins: list[list[DataFile]] = [[]]
    size = 0
    for one in files:
        if size + one.size > TARGET_BYTES and bins[-1]:
            bins.append([])
            size = 0
        bins[-1].append(one)
        size += one.size
    return [some for some in bins if len(some) > 1]


def compact(spark: Any, table: Table, held: Held, small_files: int) -> int:
    """Merges what should be merged, in one commit; how many files became others."""
    groups = mergeable(table.files(), small_files)
    if not groups:
        return 0
    old = [one for group in groups for one in group]
    new = merge_files(spark, groups, table)
    before, after = (sum(one.rows for one in files) for files in (old, new))
    if before != after:
        raise RuntimeError(f"a merge made {after} rows of {before}; {table.where} is unchanged")
    table.replace(old, new, held)
    return len(old)


class Schedule:
    """Cleans periodically; a run without --fresh cleans at its end."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._upkeep = upkeep
        # The first time soon: a job that is restarted often would never get to it.
        first = min(upkeep.clean_every, FIRST_CLEAN)
        self._cleaned_at = time.monotonic() - upkeep.clean_every + first

    def clean(self, tables: Iterable[Table], *, ending: bool = False) -> list[Cleaned]:
        now = time.monotonic()
        if not ending and now - self._cleaned_at < self._upkeep.clean_every:
            return []
        self._cleaned_at = now
        return [table.clean(self._upkeep.keep) for table in tables]
