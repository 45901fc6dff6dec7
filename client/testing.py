"""A real broker inside a test: in this process, in a temporary folder, on free ports, started fast.

    async with EmbeddedBroker() as broker:
        async with connect(broker.url) as mq:
            await mq.send("reminders", b"...", delay=7200)
            await broker.advance(hours=2)          # and it is due

Time passes as usual, and by `advance`: what is due in the broker (delays, retries,
transaction checks, retention) happens then, in order. The pytest fixture is `aerobee_broker`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final, Self

from aerobee.broker.base.clock import VirtualClock
from aerobee.broker.base.logs import configure_logs_of_guest
from aerobee.broker.daemon.app import AppBroker
from aerobee.broker.settings import load_settings
from aerobee.client.client import connect

# Small files make a start cheap; the disk guard of a laptop's full disk must not fail a test.
DEFAULTS: Final[dict[str, object]] = {
    "listenPort": 0,
    "namesrvListenPort": 0,
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": 8 << 20,
    "mappedFileSizeConsumeQueue": 20 * 4096,
    "maxHashSlotNum": 4096,
    "maxIndexNum": 16384,
    "flushDiskType": "ASYNC_FLUSH",
    "metricsExporterType": "DISABLE",
    "shutdownWaitTimeSeconds": 0,
    # Frequent timers make `advance` slow: it stops at every one.
    "flushIntervalCommitLog": 60_000,
    "flushIntervalConsumeQueue": 60_000,
    "timerFlushIntervalMs": 60_000,
    "cleanResourceInterval": 60_000,
    "scanNotActiveBrokerInterval": 60_000,
    "channelExpiredTimeout": 2**31 - 1,  # clients send heartbeats by real time
    "diskGuardEnable": False,
}


class EmbeddedBroker:
    """A broker with its name service, running from entering the block until leaving it.

    Settings are those of broker.conf: `EmbeddedBroker(flushDiskType="SYNC_FLUSH")`. With a `folder`
    the store is kept there, so that a second broker can open it.
    """

    def __init__(self, folder: Path | None = None, **settings: object) -> None:
        self.clock = VirtualClock()
        self._folder = folder
        self._given = settings
        self._temporary: str | None = None
        self._app: AppBroker | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start it, or start it again on the same store and the same ports."""
        configure_logs_of_guest()
        if self._folder is None:
            self._temporary = tempfile.mkdtemp(prefix="aerobee-")
            self._folder = Path(self._temporary)
        settings: dict[str, object] = {
            **DEFAULTS,
            "storePathRootDir": str(self._folder / "store"),
            **self._given,
        }
        try:
            app = AppBroker(load_settings(None, settings, env={}), clock=self.clock)
            await app.start()
        except BaseException:
            await self.stop()
            raise
        self._app = app
        self.clock.is_thread_busy = lambda: app.is_thread_busy
        self._given = {
            **self._given,
            "listenPort": app.broker_port,
            "namesrvListenPort": app.namesrv_port,
        }

    async def stop(self) -> None:
        """A clean stop; a temporary folder is removed."""
        if self._app is not None:
            app, self._app = self._app, None
            await app.stop()
        if self._temporary is not None:
            folder, self._temporary, self._folder = self._temporary, None, None
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def restart(self) -> None:
        """Stop and start it on the same store, as an operator would."""
        assert self._app is not None, "the broker is not running"
        app, self._app = self._app, None
        await app.stop()
        await self.start()

    @property
    def app(self) -> AppBroker:
        """The broker object, for tests of its state."""
        assert self._app is not None, "the broker is not running"
        return self._app

    @property
    def folder(self) -> Path:
        """Where its store is."""
        assert self._folder is not None, "the broker is not running"
        return self._folder

    @property
    def namesrv(self) -> str:
        """host:port of its name service."""
        return f"127.0.0.1:{self.app.namesrv_port}"

    @property
    def address(self) -> str:
        """host:port of the broker itself."""
        return f"127.0.0.1:{self.app.broker_port}"

    @property
    def url(self) -> str:
        """For `connect`."""
        return f"mq://{self.namesrv}"

    def connect(self, **options: Any) -> connect:
        """`async with broker.connect() as mq`."""
        return connect(self.url, **options)

    async def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Move the broker's clock forward; everything that becomes due happens, in order."""
        await self.clock.advance(days * 86400 + hours * 3600 + minutes * 60 + seconds)
