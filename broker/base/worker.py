"""One thread that runs one call at a time for a coroutine: where fdatasync waits."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Worker:
    """Like an executor of one thread, with less between the call and the answer."""

    __slots__ = ("_calls", "_name", "_thread")

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    under_way: ClassVar[int] = 0  # calls of all workers whose result is not delivered yet

    async def run(self, call: Callable[[Argument], Result], argument: Argument) -> Result:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put((loop, future, call, argument))
        Worker.under_way += 1
        try:
            return await future
        finally:
            Worker.under_way -= 1

    async def run_to_end(
        self,
        call: Callable[[Argument], Result],
        argument: Argument,
        complete: Callable[[Result], None],
    ) -> None:
        """Hand the result to `complete`, also when this is cancelled while the call is under way:
        a sync that fails during a stop must not be forgotten."""
        running = asyncio.ensure_future(self.run(call, argument))
        try:
            await asyncio.shield(running)
        finally:
            complete(await running)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            loop, future, call, argument = item
            result = failure = None
            try:
                result = call(argument)
            except BaseException as error:  # passed to the waiter
                failure = error
            if not loop.is_closed():  # else the waiter was cancelled
                loop.call_soon_threadsafe(_answer, future, result, failure)

    def stop(self) -> None:
        """Return when the current call has ended."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None


def _answer(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
