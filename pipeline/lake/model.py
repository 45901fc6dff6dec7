"""What a kept table is, whatever its format: files, and which offsets of which queues they hold.

A commit adds files and records the offsets in one step. A job resumes from the table's own
offsets, so there is no separate checkpoint that could be lost or contradict it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol

from aerobee.pipeline.errors import OptionError

Numbers = dict[str, dict[str, int]]  # {"topic": {"broker:queue": offset}}, as in Spark's checkpoint
NOTE: Final = "aerobee"  # where a commit carries what is not data: the offsets and figures

# Inside a Parquet table; readers of folders pass over names that begin with _, and to those that
# look into every folder the suffixes are no Parquet.
OWN: Final = "_aerobee"
ASIDE: Final = ".aside"
REMOVED: Final = ".removed"

KEEP: Final = timedelta(days=7)  # old snapshots and unreferenced files stay that long
TARGET_BYTES: Final = 128 * 1024 * 1024


class TableConflict(RuntimeError):
    """Another writer committed to the table since it was read; nothing was written."""


class TableError(OptionError):
    """A table that cannot be used as asked."""


@dataclass(frozen=True, slots=True)
class Held:
    """first <= offset < next of each queue are in the table."""

    first: Numbers = field(default_factory=dict)
    next: Numbers = field(default_factory=dict)

    def extended(self, start: Numbers, end: Numbers) -> "Held":
        """With the rows from `start` to `end` added."""
        first = {topic: dict(queues) for topic, queues in self.first.items()}
        following = {topic: dict(queues) for topic, queues in self.next.items()}
        for topic, queues in end.items():
            for queue, offset in queues.items():
                first.setdefault(topic, {}).setdefault(queue, start[topic][queue])
                following.setdefault(topic, {})[queue] = offset
        return Held(first, following)

    def set_back(self, offsets: Numbers) -> "Held":
        """With these queues held up to there only, or, before what was held, from there on."""
        first = {topic: dict(queues) for topic, queues in self.first.items()}
        following = {topic: dict(queues) for topic, queues in self.next.items()}
        for topic, queues in offsets.items():
            for queue, offset in queues.items():
                begun = first.setdefault(topic, {})
                begun[queue] = min(offset, begun.get(queue, offset))
                following.setdefault(topic, {})[queue] = offset
        return Held(first, following)


# A key beside the queues: how often rejected rows of a typed table were tried again.
RETRIES: Final = ("(retries)", "rejected:0")


def retries(held: Held) -> int:
    return held.next.get(RETRIES[0], {}).get(RETRIES[1], 0)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of a table."""

    path: str  # absolute, or a URI
    rows: int
    size: int
    partition: dict[str, str | None]  # the values of its partition, as text
    offset_min: int | None = None
    offset_max: int | None = None
    oldest_ms: int | None = None  # when its first message was stored; of files just written


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a cleaning removed."""

    snapshots: int = 0
    files: int = 0


class Table(Protocol):
    """One table. `refresh` loads its newest version, which the other methods describe."""

    where: str
    table_format: str
    partition_by: tuple[str, ...]

    def refresh(self) -> None: ...

    def schema(self) -> Any:
        """Arrow's schema of a row, partition columns included."""

    def file_schema(self) -> Any:
        """Arrow's schema of a data file."""

    def held(self, queues: Iterable[tuple[str, str]]) -> Held:
        """The offsets of these queues (topic, "broker:queue"); a format may return more."""

    def files(self) -> list[DataFile]: ...

    def data_folder(self) -> str:
        """Where tasks put new files; they become visible with their commit."""

    def append(self, files: Sequence[DataFile], held: Held, note: Mapping[str, Any]) -> None:
        """Adds files and offsets in one commit; TableConflict when another one was first."""

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], held: Held) -> None:
        """The same rows in other files."""

    def add_columns(self, fields: Sequence[Any]) -> None:
        """The table's schema with these Arrow fields at its end; one whose column is there has
        more fields inside."""

    def clean(self, keep: timedelta) -> Cleaned:
        """Removes snapshots older than that, and files that no snapshot names."""
