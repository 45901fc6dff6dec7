"""One query to several servers: the next one gets it before the first has failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from aerobee.client.errors import AerobeeError

HEDGE_S: Final = 0.3  # without an answer for this long, the next server gets the query too

Answer = TypeVar("Answer")
_running: Final[set[asyncio.Task[object]]] = set()  # the loop itself holds tasks weakly


class Answered(NamedTuple, Generic[Answer]):
    """The first answer, and the server that gave it."""

    server: str
    answer: Answer


class NobodyAnswered(Exception):
    """Every server failed; the errors are in the order in which they came."""

    def __init__(self, errors: list[AerobeeError]) -> None:
        super().__init__(errors)
        self.errors = errors


async def first_answer(
    servers: Sequence[str], ask: Callable[[str], Awaitable[Answer]]
) -> Answered[Answer]:
    """Ask the servers in this order until one answers: the next one at once when one fails, or
    after HEDGE_S without an answer.

    Slower requests continue until they are answered or time out, so that `ask` can drop dead
    connections.
    """
    errors: list[AerobeeError] = []
    asked: dict[asyncio.Task[Answer], str] = {}
    following = iter(servers)
    try:
        while True:
            server = next(following, None)
            if server is not None:
                asked[_start(ask(server), server)] = server
            elif not asked:
                raise NobodyAnswered(errors)
            done, _ = await asyncio.wait(
                asked,
                timeout=HEDGE_S if server is not None else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in [task for task in asked if task in done]:
                try:
                    return Answered(asked.pop(task), task.result())
                except AerobeeError as error:
                    errors.append(error)
    except asyncio.CancelledError:
        for task in asked:
            task.cancel()
        raise


def _start(work: Awaitable[Answer], server: str) -> asyncio.Task[Answer]:
    async def run() -> Answer:
        return await work

    task = asyncio.create_task(run(), name=f"ask {server}")
    _running.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[object]) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # mark it as retrieved: another may have answered first
