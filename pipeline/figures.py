"""Metrics of streams: one table of names, for Prometheus and OpenTelemetry."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

_QUERY: Final = ("query",)
_QUEUE: Final = ("query", "topic", "queue")


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric: a sum that grows, or a value that is set."""

    text: str
    labels: tuple[str, ...] = _QUERY
    unit: str = "1"
    is_sum: bool = False


FIGURES: Final[dict[str, Figure]] = {
    "rows": Figure("Rows read.", is_sum=True),
    "read_bytes": Figure("Bytes pulled from brokers.", unit="By", is_sum=True),
    "retries": Figure("Requests sent again to servers that were away.", is_sum=True),
    "waited_seconds": Figure(
        "Waited for brokers that were away.", ("query", "address"), "s", is_sum=True
    ),
    "batch_seconds": Figure("How long the last batch took.", unit="s"),
    "rows_per_second": Figure("Rows per second of the last batch."),
    "next_offset": Figure("Where the next batch begins.", _QUEUE),
    "lag_messages": Figure("Stored, not read yet.", _QUEUE),
    "lag_seconds": Figure("How long the first message not read yet has waited.", _QUEUE, "s"),
}
PREFIX: Final = "aerobee_stream_"


class Exporter(Protocol):
    """Receives figures by name."""

    def add(self, name: str, amount: float, labels: Mapping[str, str]) -> None: ...

    def set(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...


class Prometheus:
    """Into a registry of prometheus_client."""

    def __init__(self, registry: Any) -> None:
        from prometheus_client import Counter, Gauge

        self._metrics: dict[str, Any] = {
            name: (Counter if one.is_sum else Gauge)(
                PREFIX + name, one.text, one.labels, registry=registry
            )
            for name, one in FIGURES.items()
        }

    def add(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        self._metrics[name].labels(**labels).inc(amount)

    def set(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._metrics[name].labels(**labels).set(value)


class OpenTelemetry:
    """By the process's meter provider, or one that is given; needs opentelemetry-api."""

    def __init__(self, provider: Any = None) -> None:
        from opentelemetry.metrics import get_meter

        meter = get_meter("aerobee.spark", meter_provider=provider)
        self._metrics: dict[str, Any] = {
            name: (meter.create_counter if one.is_sum else meter.create_gauge)(
                "aerobee.stream." + name, unit=one.unit, description=one.text
            )
            for name, one in FIGURES.items()
        }

    def add(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        self._metrics[name].add(amount, dict(labels))

    def set(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._metrics[name].set(value, dict(labels))
