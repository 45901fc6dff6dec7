"""What pages are built from: a client, the cache shared between viewers, earlier samples."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from aerobee.client.admin.admin import Admin
from aerobee.client.admin.types import Broker
from aerobee.client.client import Client
from aerobee.client.console.cache import Shared
from aerobee.client.console.history import History
from aerobee.client.console.jobs import Jobs
from aerobee.client.console.options import ConsoleOptions
from aerobee.client.errors import AerobeeError, Misuse, NotFound

T = TypeVar("T")
Params = dict[str, Any]  # of a request
TOGETHER: Final = 8  # requests in flight
CLUSTER_SECONDS: Final = 2.0


class View:
    """A cluster with the rights of one user."""

    def __init__(self, mq: Client, options: ConsoleOptions) -> None:
        self.mq = mq
        self.options = options
        self.shared = Shared()
        self.history = History()
        self.jobs = Jobs()

    @property
    def admin(self) -> Admin:
        return self.mq.admin

    async def brokers(self) -> list[Broker]:
        found: list[Broker] = await self.shared.get("brokers", CLUSTER_SECONDS, self.admin.brokers)
        return found

    async def masters(self) -> list[Broker]:
        return [row for row in await self.brokers() if row.number == 0]

    async def leading(self) -> list[Broker]:
        """The masters, and where one is gone, its first slave."""
        return list({row.name: row for row in reversed(await self.brokers())}.values())

    async def master(self, name: str) -> Broker:
        for row in await self.masters():
            if row.name == name:
                return row
        raise NotFound(f"no master {name!r} is known")

    async def runtime(self, address: str) -> dict[str, str]:
        found: dict[str, str] = await self.shared.get(
            ("runtime", address), 1.5, lambda: self.admin.runtime(address)
        )
        return found

    async def settings(self, address: str) -> dict[str, str]:
        found: dict[str, str] = await self.shared.get(
            ("settings", address), 10.0, lambda: self.admin.settings(address)
        )
        return found

    async def all_topics(self) -> list[str]:
        found: list[str] = await self.shared.get(
            "topics", CLUSTER_SECONDS, lambda: self.admin.topics(system=True)
        )
        return found

    async def user_topics(self) -> list[str]:
        found: list[str] = await self.shared.get("user topics", CLUSTER_SECONDS, self.admin.topics)
        return found


async def gather(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order, a few requests at a time."""
    turn = asyncio.Semaphore(TOGETHER)

    async def one(item: Coroutine[Any, Any, T]) -> T:
        async with turn:
            return await item

    return await asyncio.gather(*(one(item) for item in work))


async def attempt(asked: Awaitable[T], otherwise: T) -> T:
    """The result, or `otherwise` where the broker refuses."""
    try:
        return await asked
    except AerobeeError:
        return otherwise


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def need(params: Params, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise Misuse(f"{name!r} is missing")
    return value


def number(params: Params, name: str, default: int, low: int, high: int) -> int:
    value = params.get(name)
    if value in (None, ""):
        return default
    try:
        found = int(str(value))
    except ValueError:
        raise Misuse(f"{name} is a whole number, not {value!r}") from None
    if not low <= found <= high:
        raise Misuse(f"{name} is between {low} and {high}, not {found}")
    return found


def moment(params: Params, name: str) -> float | None:
    """A time as milliseconds, in seconds."""
    value = params.get(name)
    if value in (None, ""):
        return None
    try:
        return int(str(value)) / 1000
    except ValueError:
        raise Misuse(f"{name} is a time in milliseconds, not {value!r}") from None
