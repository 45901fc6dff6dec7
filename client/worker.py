"""Handlers of topics declared in a module, which `aerobee worker module:app` runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

from aerobee.client.client import Client
from aerobee.client.consuming.consumer import Consumer
from aerobee.client.consuming.handling import Handler
from aerobee.client.consuming.options import ConsumerOptions, Start
from aerobee.client.errors import Closed, Misuse
from aerobee.client.serializers import Serializer

H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class _Declared:
    handler: Handler
    join: Callable[[Client], Consumer]
    concurrency: int
    time_limit: float | None


class Worker:
    """An application of handlers.

    app = Worker("mq://localhost:9876")

    @app.handler("orders", group="billing")
    async def bill(message: Message) -> None: ...
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout: float = 3.0,
        wait: float = 30.0,
        serializer: Serializer | None = None,
        telemetry: bool | None = None,
    ) -> None:
        """As `connect`; waits for a cluster that is not up yet."""
        self.url = url
        self._timeout = timeout
        self._wait = wait
        self._serializer = serializer
        self._telemetry = telemetry
        self._declared: list[_Declared] = []
        self._client: Client | None = None
        self._stop: asyncio.Event | None = None

    def handler(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        tags: str | Iterable[str] | None = None,
        sql: str | None = None,
        orderly: bool = False,
        broadcast: bool = False,
        start: Start | None = None,
        options: ConsumerOptions | None = None,
        concurrency: int = 16,
        time_limit: float | None = None,
    ) -> Callable[[H], H]:
        """Declare a handler: what it consumes as in `Client.consumer`, how as in `Consumer.run`."""

        def join(mq: Client) -> Consumer:
            return mq.consumer(
                topic,
                group=group,
                tags=tags,
                sql=sql,
                orderly=orderly,
                broadcast=broadcast,
                start=start,
                options=options,
            )

        def declare(handler: H) -> H:
            self._declared.append(_Declared(handler, join, concurrency, time_limit))
            return handler

        return declare

    @property
    def mq(self) -> Client:
        """The client, for handlers that send."""
        if self._client is None:
            raise Closed("the worker is not running")
        return self._client

    async def run(self, *, concurrency: int | None = None) -> None:
        """Run the handlers until `stop`; then let the running ones finish, and commit.

        `concurrency` overrides that of every handler.
        """
        if not self._declared:
            raise Misuse(
                "the worker has no handler: declare one with @app.handler(topic, group=...)"
            )
        self._stop = asyncio.Event()
        stopping = asyncio.create_task(self._stop.wait())
        try:
            client = await self._connected(stopping)
            if client is not None:
                await self._work(client, stopping, concurrency)
        finally:
            stopping.cancel()
            self._client = None

    async def _connected(self, stopping: asyncio.Task[bool]) -> Client | None:
        """The client; None when `stop` came first, as it may while there is no cluster."""
        client = Client(
            self.url,
            timeout=self._timeout,
            wait=self._wait,
            serializer=self._serializer,
            telemetry=self._telemetry,
        )
        opening = asyncio.create_task(client.open())
        is_tried = False
        try:
            await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
            is_tried = opening.done()
        finally:
            if not is_tried:
                opening.cancel()
                await asyncio.wait([opening])
                await client.close()
        return await opening if is_tried else None

    async def _work(
        self, client: Client, stopping: asyncio.Task[bool], concurrency: int | None
    ) -> None:
        async with client as self._client, AsyncExitStack() as consumers:
            runs = []
            for row in self._declared:
                inbox = await consumers.enter_async_context(row.join(self._client))
                handling = inbox.run(
                    row.handler,
                    concurrency=concurrency or row.concurrency,
                    time_limit=row.time_limit,
                )
                runs.append(asyncio.create_task(handling))
            await asyncio.wait([stopping, *runs], return_when=asyncio.FIRST_COMPLETED)
            await consumers.aclose()
            await asyncio.gather(*runs)

    def stop(self) -> None:
        """End `run` once the running handlers have finished."""
        if self._stop is not None:
            self._stop.set()
