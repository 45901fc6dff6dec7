"""One thread that runs one call at a time for a coroutine: where fdatasync waits."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Worker:
    """Like an executor of one thread, with less between the call and the answer."""

    __slots__ = ("_calls", "_name", "_thread")

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[[Argument], Result], argument: Argument) -> Result:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put((loop, future, call, argument))
        return await future

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            loop, future, call, argument = item
            try:
                result = call(argument)
            except BaseException as error:  # handed to the one who waits
                loop.call_soon_threadsafe(_fail, future, error)
            else:
                loop.call_soon_threadsafe(_answer, future, result)

    def stop(self) -> None:
        """Return when the call under way has ended."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None


def _answer(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
