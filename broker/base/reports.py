"""Disk errors, logged once per cause and minute: a full disk would fill the log as well.

Each line says what was tried (`call`) on which file (`path`), why it failed (`errno`, `reason`) and
what happens next (`then`). Lines that were left out are counted in the next one of their cause.

It also knows whether the device has failed lately. Then nothing is read through a map: a page that
cannot be read would kill the process.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable
from typing import Any, Final

import structlog

from aerobee.broker.base.clock import Clock

log = structlog.get_logger("aerobee.store")

INTERVAL_S: Final = 60.0
_CAUSES_MAX: Final = 1000  # remembered at most
_DEVICE: Final = frozenset(
    getattr(errno, name)
    for name in ("EIO", "ENODEV", "ENXIO", "EROFS", "EUCLEAN", "ESHUTDOWN", "ESTALE", "EREMOTEIO")
    if hasattr(errno, name)
)


class Reports:
    """The lines of one store or service."""

    __slots__ = ("_clock", "_device_failed_at", "_last", "device_failed")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[Hashable, tuple[float, int]] = {}  # logged at; suppressed since
        self.device_failed = False
        self._device_failed_at = 0.0

    def note_error(self, error: BaseException) -> None:
        """An error that is logged elsewhere."""
        if isinstance(error, OSError) and error.errno in _DEVICE:
            self.device_failed = True
            self._device_failed_at = self._clock.monotonic()

    def note_success(self) -> None:
        """A sync worked: after a minute without errors the device counts as sound again."""
        if self._clock.monotonic() - self._device_failed_at >= INTERVAL_S:
            self.device_failed = False

    def disk_error(
        self,
        event: str,
        error: Exception,
        *,
        call: str,
        then: str,
        path: str = "",
        **fields: Any,
    ) -> None:
        """A call to the disk failed."""
        self.note_error(error)
        number = error.errno if isinstance(error, OSError) else None
        name = errno.errorcode.get(number or 0, type(error).__name__)
        self.log(
            event,
            (call, name),
            path=path or getattr(error, "filename", None) or "",
            call=call,
            errno=name,
            reason=str(error),
            then=then,
            **fields,
        )

    def failed(self, event: str, error: Exception, *, then: str, **fields: Any) -> None:
        """Work that is retried has failed: a disk error, or a bug."""
        if isinstance(error, OSError):
            self.disk_error(event, error, call="write", then=then, **fields)
        else:
            self.log(event, type(error).__name__, exc_info=error, then=then, **fields)

    def log(
        self, event: str, cause: Hashable = None, *, level: str = "error", **fields: Any
    ) -> None:
        """The line, unless one of the same event and cause was written within the minute."""
        now = self._clock.monotonic()
        key = (event, cause)
        logged_at, left_out = self._last.get(key, (now - INTERVAL_S, 0))
        if now - logged_at < INTERVAL_S:
            self._last[key] = logged_at, left_out + 1
            return
        if len(self._last) >= _CAUSES_MAX:
            self._last.clear()
        self._last[key] = now, 0
        if left_out:
            fields["left_out"] = left_out
        getattr(log, level)(event, **fields)
