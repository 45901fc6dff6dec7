"""A small file under config/ that is saved whole, by a thread; and how its values are read.

Tables that grow with topics, groups or keys are `table_file`'s.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

from aerobee.broker.base.clock import Clock
from aerobee.broker.base.reports import Reports
from aerobee.broker.services.config_files.json_file import load_json, save_json
from aerobee.broker.store.files.disk import Disk
from aerobee.broker.store.files.real_disk import RealDisk

_QUIET_S: Final = 0.2
_RETRY_S: Final = 2.0


class DataVersion:
    """How RocketMQ numbers the states of a table: readers compare all three parts."""

    __slots__ = ("counter", "state_version", "timestamp")

    def __init__(self, timestamp: int = 0, counter: int = 0, state_version: int = 0) -> None:
        self.timestamp = timestamp
        self.counter = counter
        self.state_version = state_version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataVersion) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def next(self, now_ms: int) -> None:
        """A change was made; the time never repeats, for readers that look only at it."""
        self.timestamp = max(now_ms, self.timestamp + 1)
        self.counter += 1

    def to_json(self) -> dict[str, int]:
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp,
        }

    def load(self, value: Any) -> None:
        """Take the values of a file or a request, as far as they are valid."""
        if isinstance(value, dict):
            self.counter = as_int(value.get("counter"), self.counter)
            self.state_version = as_int(value.get("stateVersion"), self.state_version)
            self.timestamp = as_int(value.get("timestamp"), self.timestamp)


def as_int(value: Any, default: int) -> int:
    """A number that JSON may hold as a number, a text or not at all."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return default


def as_bool(value: Any, default: bool) -> bool:
    if isinstance(value, str):
        return value.lower() == "true"
    return default if value is None else bool(value)


class ConfigFile:
    """Saves `snapshot()` to `path` after a change was reported."""

    def __init__(
        self,
        path: str,
        clock: Clock,
        snapshot: Callable[[], dict[Any, Any]],
        disk: Disk | None = None,
    ) -> None:
        self.path = path
        self._disk = disk if disk is not None else RealDisk()
        self._clock = clock
        self._snapshot = snapshot
        self._dirty = False
        self._wake = asyncio.Event()
        self._taken = 0  # snapshots taken so far
        self._written = 0  # the newest of them on disk
        self._writing = threading.Lock()
        self._reports = Reports(clock)

    def load(self) -> dict[Any, Any] | None:
        return load_json(self.path, disk=self._disk, strict=True)

    def changed_lazily(self) -> None:
        """Save with the next round of `run`."""
        self._dirty = True
        self._wake.set()

    def save(self) -> None:
        """Save now; OSError when the disk refuses."""
        try:
            self._write(self._take())
        except OSError:
            self._dirty = True
            raise

    def _take(self) -> tuple[int, dict[Any, Any]]:
        self._dirty = False
        self._taken += 1
        return self._taken, self._snapshot()

    def _write(self, taken: tuple[int, dict[Any, Any]]) -> None:
        number, value = taken
        with self._writing:
            if number > self._written:  # else a newer one is there already
                save_json(self.path, value, disk=self._disk)
                self._written = number

    async def run(self, pause_s: float = _QUIET_S) -> None:
        """Save deferred changes, `pause_s` after the first change; ends by cancellation."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._clock.sleep(pause_s)
            if self._dirty:
                await self._save_in_thread()

    async def _save_in_thread(self) -> None:
        try:
            await asyncio.to_thread(self._write, self._take())
        except asyncio.CancelledError:
            self._dirty = True  # a thread that had not started never will
            raise
        except OSError as error:
            self._reports.disk_error(
                "a config file cannot be saved",
                error,
                call="write",
                path=self.path,
                then=f"retried every {_RETRY_S:g} s",
            )
            self.changed_lazily()
            await self._clock.sleep(_RETRY_S)
