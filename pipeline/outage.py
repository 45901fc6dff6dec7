"""Waits for servers that do not answer: with backoff, up to a deadline, with log lines."""

import logging
import time
from collections.abc import Callable
from typing import Final

log: Final = logging.getLogger("aerobee.pipeline")

PAUSE_MAX: Final = 3.0  # seconds
LOG_EVERY: Final = 15.0


class Unreachable(ConnectionError):
    """None of the addresses answers."""


class Outage:
    """One server's outage, from its first failure to its next answer."""

    def __init__(
        self, patience: float, first_pause: float, retried: Callable[[], None] = lambda: None
    ) -> None:
        self._patience = patience
        self._retried = retried
        self._first_pause = self._pause = first_pause
        self._began: float | None = None
        self._logged_at = 0.0

    def wait(self, what: str, error: Exception) -> None:
        """Sleeps before the next attempt; raises once the patience is used up."""
        self._retried()
        now = time.monotonic()
        if self._began is None:
            self._began = now
            self._pause = self._first_pause
            self._logged_at = now - LOG_EVERY
        left = self._began + self._patience - now
        if left <= 0:
            waited = f" for {now - self._began:.0f} s" if self._patience > 10 else ""
            raise Unreachable(
                f"{what} cannot be reached{waited}: {error}; is it up, and can this host reach "
                "that address?"
            ) from error
        if now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            log.warning("%s: %s; waiting up to %.0f s (timeout.broker)", what, error, left)
        time.sleep(min(self._pause, left))
        self._pause = min(2 * self._pause, PAUSE_MAX)

    def over(self, what: str) -> float:
        """It answered; returns how long the outage lasted."""
        if self._began is None:
            return 0.0
        waited = time.monotonic() - self._began
        self._began = None
        log.warning("%s: answered again after %.1f s", what, waited)
        return waited
