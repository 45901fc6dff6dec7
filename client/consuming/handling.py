"""`run`: calls a handler for each message, concurrently, in the event loop or in threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, Protocol

from aerobee.client.errors import Closed, Misuse, Reject
from aerobee.client.message import Message

log = logging.getLogger("aerobee.consumer")

Handler = Callable[[Message], object]
LOCAL_RETRY_SECONDS: Final = 5.0  # for a message that could not be handed back to the broker


class Redelivers(Protocol):
    """The membership of the consumer, as handlers need it."""

    broadcast: bool

    def again_here(self, message: Message, seconds: float) -> None: ...


class Handling:
    """One `run` of a consumer."""

    def __init__(
        self,
        member: Redelivers,
        get: Callable[[], Awaitable[Message]],
        handler: Handler,
        concurrency: int,
        time_limit: float | None,
    ) -> None:
        if concurrency < 1:
            raise Misuse("concurrency is at least 1")
        if time_limit is not None and not time_limit > 0:
            raise Misuse("time_limit is a positive number of seconds")
        self._member = member
        self._get = get
        self._time_limit = time_limit
        self._pool = None if is_async(handler) else ThreadPoolExecutor(concurrency, "aerobee-run")
        self._handler = handler
        self.workers = [asyncio.create_task(self._work()) for _ in range(concurrency)]

    async def join(self) -> None:
        """Wait until the consumer is closed; cancelling this cancels the handlers."""
        try:
            await asyncio.gather(*self.workers)
        finally:
            for worker in self.workers:
                worker.cancel()
            if self._pool is not None:
                self._pool.shutdown(wait=False)

    async def _work(self) -> None:
        while True:
            try:
                message = await self._get()
            except Closed:
                return
            try:
                async with asyncio.timeout(self._time_limit) as limit:
                    await self._call(message)
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                await self._failed(message, error)  # the handler awaited something cancelled
            except Reject as error:
                await self._hand_back(message, partial(message.reject, str(error)))
            except Exception as error:
                late = TimeoutError(f"the handler took longer than {self._time_limit} s")
                await self._failed(message, late if limit.expired() else error)
            else:
                await message.ack()

    async def _call(self, message: Message) -> None:
        if self._pool is None:
            result = self._handler(message)
        else:
            run = contextvars.copy_context().run
            loop = asyncio.get_running_loop()
            call = partial(run, _call_in_thread, self._handler, message)
            result = await loop.run_in_executor(self._pool, call)
        if inspect.isawaitable(result):
            await result

    async def _failed(self, message: Message, error: BaseException) -> None:
        log.error("the handler failed for %r", message, exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        await self._hand_back(message, lambda: message.retry(reason=reason))

    async def _hand_back(self, message: Message, how: Callable[[], Awaitable[None]]) -> None:
        if self._member.broadcast:
            await message.ack()
        if message.finished:
            return
        try:
            await how()
        except Exception:
            seconds = LOCAL_RETRY_SECONDS
            log.exception(
                "%r could not be handed back to the broker; redelivered locally in %g s",
                message,
                seconds,
            )
            self._member.again_here(message, seconds)


def _call_in_thread(handler: Handler, message: Message) -> object:
    """What is no plain error stays here: SystemExit would end the event loop, and a future cannot
    hold StopIteration, so that the message would never have an outcome."""
    try:
        return handler(message)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise RuntimeError(f"the handler raised {error!r}") from error


def traced(
    handler: Handler, processing: Callable[[Message], AbstractContextManager[object]]
) -> Handler:
    """The handler, wrapped in a span for each message."""

    async def call(message: Message) -> None:
        with processing(message):
            result = handler(message)
            if inspect.isawaitable(result):
                await result

    def call_in_thread(message: Message) -> object:
        with processing(message):
            return handler(message)

    return call if is_async(handler) else call_in_thread


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether it is a coroutine function; any other is called in a thread."""
    call = getattr(handler, "__call__", None)  # noqa: B004  # an object may have an async one
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
