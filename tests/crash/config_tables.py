"""Power cuts and kills of a config table with its journal, on the simulated disk, by a seed.

A life changes entries of a table at random and saves them: by the journal, by the whole JSON file,
with syncs that fail in between. It is lived again for every operation of the disk, and ended there.
What was answered as saved must be there after that, and nothing that was never written.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from crash.sim_disk import PowerLoss, SimDisk
from crash.simulator import SimClock

from aerobee.broker.services.config_files.table_file import TableFile
from aerobee.protocol.files.config_journal import Change

PATH = "/store/config/table.json"
IMAGES = 2


class Broken(AssertionError):
    """A guarantee of the table that an image violates."""


class Table:
    """One life of a table, and what it must have kept."""

    def __init__(self, disk: SimDisk, owed: Table | None = None) -> None:
        self.disk = disk
        self.saved: dict[str, int] = {}  # as of the last save that was answered
        self.tried: dict[str, set[int | None]] = {}  # values since then
        self.file = TableFile(PATH, SimClock(), self._entries, self._value_of, disk)
        self.values: dict[str, int] = dict((self.file.load() or {}).get("table", {}))
        if owed is not None:
            owed.check(self.values)
        self.saved = dict(self.values)

    def _entries(self) -> Iterator[Change]:
        yield ("dataVersion",), {"counter": len(self.values)}
        for name in list(self.values):
            yield ("table", name), self.values[name]

    def _value_of(self, path: tuple[str, ...]) -> Any:
        return {"counter": len(self.values)} if len(path) == 1 else self.values.get(path[1])

    def check(self, found: dict[str, int]) -> None:
        for name in self.saved.keys() | self.tried.keys() | found.keys():
            allowed = {self.saved.get(name)} | self.tried.get(name, set())
            if found.get(name) not in allowed:
                raise Broken(f"{name} is {found.get(name)}, not one of {allowed}")

    def change(self, rng: random.Random) -> None:
        for _ in range(rng.choice((1, 1, 2, 5, 100))):
            name = f"n{rng.randrange(120)}"
            if name in self.values and rng.random() < 0.3:
                del self.values[name]
            else:
                self.values[name] = rng.randrange(1, 10**6)
            self.tried.setdefault(name, set()).add(self.values.get(name))
            self.file.changed_lazily(("table", name))

    def save(self, *, whole: bool) -> None:
        if whole:
            self.file._save_in_place()
        else:
            self.file.step()
        if self.file.is_saved:
            self.saved = dict(self.values)
            self.tried = {}

    def live(self, rng: random.Random) -> None:
        for _ in range(rng.randint(2, 8)):
            self.change(rng)
            if rng.random() < 0.15:
                self.disk.failing_syncs.add(self.disk.syncs + rng.randint(1, 2))
            self.save(whole=rng.random() < 0.3)
        if rng.random() < 0.2:
            self.disk.failing_syncs.clear()
            self.file.stop()


def run_seed(seed: int) -> int:
    """How many images were checked; Broken tells which one is wrong."""
    images = cut = 0
    while True:
        rng = random.Random(seed)
        disk = SimDisk()
        disk.makedirs("/store/config")
        disk.syncdir("/")
        disk.syncdir("/store")
        table = Table(disk)
        disk.power_left = cut
        try:
            table.live(rng)
        except PowerLoss:
            pass
        else:
            return images
        for image in range(IMAGES):
            chance = random.Random(f"{seed} {cut} {image}")
            check_image(table, chance, seed, cut)
            images += 1
        cut += 1


def check_image(table: Table, rng: random.Random, seed: int, cut: int) -> None:
    """The end of the life, a second life that ends anywhere, and a third one."""
    disk = table.disk.copy()
    kill = rng.random() < 0.3
    after = disk.stop_process() if kill else disk.lose_power(rng)
    try:
        second = Table(after, table)
        after.power_left = rng.randrange(12)
        try:
            second.change(rng)
            second.save(whole=False)
            second.change(rng)
            second.save(whole=False)
        except PowerLoss:
            pass
        after.power_left = None
        Table(after.lose_power(rng), second)
    except Broken as broken:
        raise Broken(f"seed {seed}, {'kill' if kill else 'cut'} at {cut}: {broken}") from None
