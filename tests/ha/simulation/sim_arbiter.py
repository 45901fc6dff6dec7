"""An arbiter that is linearizable and unkind: answers get lost, changes happen late, leases expire
under those who keep them. Its coroutines stop at each request and at each answer."""

from __future__ import annotations

import random
from collections.abc import Generator
from types import coroutine
from typing import Any

from aerobee.broker.ha.arbiter import Alive, ArbiterError, Record, View

LEASE_MS = 3000


@coroutine
def under_way() -> Generator[None, None, None]:
    """Others act before this continues."""
    yield


class SimArbiter:
    """What all of them see."""

    def __init__(self, rng: random.Random, clock: Any) -> None:
        self.rng = rng
        self.clock = clock
        self.record: Record | None = None
        self.revision = 0
        self._last_revision = 0
        self.alive: dict[int, Alive] = {}
        self.expires: dict[int, int] = {}
        self.late: list[tuple[int, Record]] = []  # changes that happen after their time-out
        self.is_kind = False

    def change(self, revision: int, record: Record) -> int | None:
        if revision != self.revision:
            return None
        self._last_revision += 1
        self.record, self.revision = record, self._last_revision
        return self.revision

    def step(self) -> None:
        """Time passes."""
        for number in [one for one, at in self.expires.items() if at < self.clock.ms]:
            self.expire(number)
        if self.late and (self.is_kind or self.rng.random() < 0.04):
            self.change(*self.late.pop(self.rng.randrange(len(self.late))))

    def expire(self, number: int) -> None:
        self.alive.pop(number, None)
        self.expires.pop(number, None)


class Handle:
    """One replica's way to it."""

    def __init__(self, shared: SimArbiter, number: int) -> None:
        self._shared = shared
        self._number = number
        self.is_cut_off = False

    @property
    def local(self) -> tuple[str, int]:
        return "127.0.0.1", 0

    async def _begin(self) -> None:
        await under_way()
        if self.is_cut_off or (not self._shared.is_kind and self._shared.rng.random() < 0.05):
            raise ArbiterError("nobody answers")

    async def _answer(self) -> None:
        await under_way()
        if self.is_cut_off or (not self._shared.is_kind and self._shared.rng.random() < 0.05):
            raise ArbiterError("the answer is lost")

    async def read(self) -> View:
        await self._begin()
        shared = self._shared
        found = View(shared.record, shared.revision, dict(shared.alive))
        await self._answer()
        return found

    async def compare_and_set(self, revision: int, record: Record) -> int | None:
        shared = self._shared
        if not shared.is_kind and shared.rng.random() < 0.15:
            shared.late.append((revision, record))
            await under_way()
            raise ArbiterError("it may happen yet")
        await self._begin()
        found = shared.change(revision, record)
        await self._answer()
        return found

    async def announce(self, alive: Alive) -> None:
        await self._begin()
        self._shared.alive[self._number] = alive
        self._shared.expires[self._number] = self._shared.clock.ms + LEASE_MS
        await self._answer()

    async def renew(self) -> bool:
        await self._begin()
        lives = self._number in self._shared.expires
        if lives:
            self._shared.expires[self._number] = self._shared.clock.ms + LEASE_MS
        await self._answer()
        return lives

    async def withdraw(self) -> None:
        self._shared.expire(self._number)

    async def changed(self) -> None:
        raise AssertionError("the simulation tells by itself")

    async def close(self) -> None: ...
