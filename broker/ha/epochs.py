"""The epochs of a log: which master wrote which part of it. No I/O but the file's.

Every change of masters begins an epoch at the end of the new master's log. Two logs agree up to the
end of the last epoch that both have with the same start; beyond that they may differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aerobee.broker.store.errors import StoreError
from aerobee.broker.store.files.disk import Disk
from aerobee.protocol.files.epoch_file import Epoch, decode_epochs, encode_epochs

ENTRIES_MAX: Final = 1000  # the most that a Java replica accepts
FOREVER: Final = 1 << 62


class Epochs:
    """An immutable list, oldest first."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[Epoch] = ()) -> None:
        self.entries = tuple(entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Epochs) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __repr__(self) -> str:
        return "Epochs(" + " ".join(f"{epoch.number}@{epoch.start}" for epoch in self.entries) + ")"

    @property
    def last(self) -> int:
        """The newest epoch's number; 0 without any."""
        return self.entries[-1].number if self.entries else 0

    def begun(self, number: int, start: int) -> Epochs:
        """A copy with a new epoch. It replaces one with the same start, which has no bytes: else
        two masters could have written under one number."""
        assert number > self.last, f"epoch {number} after {self.last}"
        kept = [epoch for epoch in self.entries if epoch.start < start]
        return Epochs([*kept, Epoch(number, start)][-ENTRIES_MAX:])

    def cut(self, log_end: int) -> Epochs:
        """The epochs that have bytes below this offset."""
        return Epochs(epoch for epoch in self.entries if epoch.start < log_end)

    def within(self, log_end: int) -> Epochs:
        """Those of a log that ends here, including one that starts at its end. Entries beyond the
        end are left by a kill between an entry and its first byte, or by a lost write."""
        return Epochs(epoch for epoch in self.entries if epoch.start <= log_end)

    def at(self, offset: int) -> tuple[Epoch, int]:
        """The epoch of the byte at this offset, and where it ends; the last has no end yet."""
        end = FOREVER
        for epoch in reversed(self.entries):
            if epoch.start <= offset:
                return epoch, end
            end = epoch.start
        return Epoch(0, 0), end

    def ends(self, log_end: int) -> list[tuple[Epoch, int]]:
        """Each epoch with its end."""
        starts = [epoch.start for epoch in self.entries[1:]]
        return list(zip(self.entries, [*starts, log_end], strict=False))


def common_end(ours: Epochs, our_end: int, theirs: Epochs, their_end: int) -> int | None:
    """The offset up to which two logs are certainly the same; None: no epoch in common."""
    known = {epoch: end for epoch, end in theirs.ends(their_end)}
    for epoch, end in reversed(ours.ends(our_end)):
        if epoch in known:
            return min(end, known[epoch])
    return None


class EpochFile:
    """The list on disk; a change is durable before it takes effect."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self.epochs = Epochs()

    def load(self) -> None:
        """StoreError when the file exists but cannot be used."""
        try:
            if self._disk.exists(self._path):
                self.epochs = Epochs(decode_epochs(self._disk.read_small(self._path)))
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{self._path} cannot be read: {error}; without it it is unknown which part of "
                f"this log is its master's: start with an empty folder as a slave, or remove the "
                f"file if this broker is the master"
            ) from error

    def save(self, epochs: Epochs) -> None:
        """OSError on a disk error; the old list then stays in force."""
        if epochs == self.epochs and self._disk.exists(self._path):
            return
        folder = self._path.rpartition("/")[0]
        self._disk.write_small(self._path + ".tmp", encode_epochs(epochs.entries))
        self._disk.rename(self._path + ".tmp", self._path)
        self._disk.syncdir(folder)
        self.epochs = epochs
