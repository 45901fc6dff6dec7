"""For programs without asyncio: a loop in a thread, and blocking twins of the objects in it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from aerobee.client.errors import Closed

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")
ENDING_SECONDS: Final = 1.0  # grace for calls of other threads on closing
OWN_CALLBACK: Final = "the synchronous client cannot be called from its own callbacks"


class LoopThread:
    """A loop in a daemon thread; `run` waits for a coroutine there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()  # serialises calls and closing
        self._closed = False
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._handled: dict[int, object] = {}  # thread -> the consumer whose handler runs there
        self._thread = threading.Thread(target=self._loop.run_forever, name="aerobee", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(OWN_CALLBACK)
        future = self._call(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Closed("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    @contextmanager
    def handling(self, owner: object) -> Iterator[None]:
        """Around a handler in this thread: closing its owner waits until it has returned."""
        thread = threading.get_ident()
        self._handled[thread] = owner
        try:
            yield
        finally:
            del self._handled[thread]

    @property
    def handled_here(self) -> object | None:
        """The owner of the handler that runs in this thread."""
        return self._handled.get(threading.get_ident())

    @property
    def is_alive(self) -> bool:
        """Not closed, and not the copy that a fork makes, which has no thread."""
        return self._thread.is_alive() and not self._closed

    def _call(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self.is_alive:  # else, after a fork, the lock may be held for ever
            with self._lock:
                if not self._closed:
                    future = asyncio.run_coroutine_threadsafe(work, self._loop)
                    self._calls.add(future)
                    future.add_done_callback(self._calls.discard)
                    return future
        work.close()
        raise Closed("this client is closed, or was made before a fork", hint="connect again")

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> tuple[bool, Any]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        while True:
            more, item = self.run(following())
            if not more:
                return
            yield item

    def close(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError(OWN_CALLBACK)  # it would wait for itself
        with self._lock:
            if self._closed:
                return
            self._closed = True
        concurrent.futures.wait(list(self._calls), timeout=ENDING_SECONDS)
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_all(self) -> None:
        """Cancel what is pending: its callers would wait for ever."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


class Twin(Generic[A_co]):
    """A blocking facade of an SDK object that lives in the loop."""

    def __init__(self, loop: LoopThread, made: A_co) -> None:
        self._loop = loop
        self._made = made

    def _there(self, work: Callable[[], T]) -> T:
        """Run it in the loop's thread, which owns the state."""

        async def there() -> T:
            return work()

        return self._loop.run(there())


class _AsyncBlock(Protocol):
    async def __aenter__(self) -> object: ...

    async def __aexit__(self, kind: Any, error: Any, trace: Any, /) -> object: ...


B_co = TypeVar("B_co", bound=_AsyncBlock, covariant=True)


class Block(Twin[B_co]):
    """The twin of an object for `async with`."""

    def __enter__(self) -> Self:
        self._loop.run(self._made.__aenter__())
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._loop.run(self._made.__aexit__(kind, error, trace))


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Twin[A], P], T]:
    """A coroutine method of the SDK, with its own parameters, as a blocking one."""

    @functools.wraps(method)
    def call(self: Twin[A], /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._loop.run(method(self._made, *arguments, **options))

    return call
