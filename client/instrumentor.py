"""For `opentelemetry-instrument`: every client of the program makes spans and metrics.

An entry point; needs `opentelemetry-instrumentation`, which that command comes with.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from aerobee.client.client import Client


class AerobeeInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Telemetry for all clients without `telemetry=False`."""

    def instrumentation_dependencies(self) -> Collection[str]:
        return ("aerobee >= 0.1",)

    def _instrument(self, **_: Any) -> None:
        Client.telemetry_default = True

    def _uninstrument(self, **_: Any) -> None:
        Client.telemetry_default = False
