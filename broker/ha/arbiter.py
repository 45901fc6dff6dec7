"""The interface to an arbiter: one record, changed by compare-and-set, and announcements
that expire. Adapters (`etcd`, `controller`) implement it; nothing
here does I/O.

The record is what Apache's controller keeps of a broker's name: epoch, master, in-sync set. Safety
rests on it and on the logs. Announcements and their expiry only decide when a replica acts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


class ArbiterError(Exception):
    """It did not answer. The requested change may have happened, or may still happen."""


@dataclass(frozen=True, slots=True)
class Record:
    """Who is master of a broker's name, and who has all that was acknowledged."""

    epoch: int
    master: int  # brokerId
    in_sync: frozenset[int]
    holder: str  # the master's process: after a restart it has to be elected again

    def encode(self) -> bytes:
        return _dump(asdict(self) | {"in_sync": sorted(self.in_sync)})

    @staticmethod
    def decode(data: bytes) -> Record:
        """ValueError when this is not a record."""
        found = _load(data)
        try:
            in_sync = frozenset(map(int, found["in_sync"]))
            return Record(int(found["epoch"]), int(found["master"]), in_sync, str(found["holder"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no record of a master: {data[:200]!r} ({error!r})") from None


@dataclass(frozen=True, slots=True)
class Alive:
    """A replica's announcement of itself, for as long as it is alive."""

    broker_id: int
    address: str = ""  # for requests
    ha_address: str = ""  # for replication
    last_epoch: int = 0  # of its log ...
    log_end: int = 0  # ... as of the last announcement
    electable: bool = True  # it has all that it ever acknowledged
    may_begin: bool = True  # it may create the first record
    leads: int = 0  # the epoch that it leads
    stands: int = -1  # the epoch after which it is a candidate; it follows no master then

    @property
    def place(self) -> tuple[int, int, int]:
        """The greatest is elected: newest epoch, then longest log, then smallest id."""
        return self.last_epoch, self.log_end, -self.broker_id

    def encode(self) -> bytes:
        return _dump(asdict(self))

    @staticmethod
    def decode(data: bytes) -> Alive:
        """ValueError when this is not an announcement."""
        found = _load(data)
        try:
            made = Alive(**{name: found[name] for name in Alive.__slots__ if name in found})
        except TypeError as error:
            raise ValueError(f"no announcement: {data[:200]!r} ({error!r})") from None
        like = Alive(0)
        for name in Alive.__slots__:
            if type(getattr(made, name)) is not type(getattr(like, name)):
                raise ValueError(f"no announcement: {data[:200]!r} ({name})")
        return made


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot of the record and the announcements. `revision` is the record's, 0 without one."""

    record: Record | None = None
    revision: int = 0
    alive: Mapping[int, Alive] = field(default_factory=dict)

    @property
    def is_led(self) -> bool:
        """Whether the master is alive: it leads, or has just won and was a candidate."""
        record = self.record
        master = self.alive.get(record.master) if record is not None else None
        if record is None or master is None:
            return False
        return master.leads == record.epoch or master.stands == record.epoch - 1


class Arbiter(Protocol):
    """ArbiterError from any of these: the outcome is unknown."""

    @property
    def local(self) -> tuple[str, int]:
        """Our end of the connection to it: the address by which other machines may reach us."""

    async def read(self) -> View:
        """The present state: never older than what an earlier call has seen."""

    async def compare_and_set(self, revision: int, record: Record) -> int | None:
        """Put the record if its revision is still this one. Returns the new revision; None: the
        record has changed, and nothing was put. A controller may elect another replica."""

    async def announce(self, alive: Alive) -> None:
        """Publish our announcement, until it expires."""

    async def renew(self) -> bool:
        """Renew the announcement; False: it has expired, announce again."""

    async def withdraw(self) -> None:
        """Remove the announcement."""

    async def changed(self) -> None:
        """Return once something may have changed since the last call."""

    async def close(self) -> None: ...


def _dump(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def _load(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"no object: {data[:200]!r}")
    return found
