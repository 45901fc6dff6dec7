"""Spans and metrics of this process, in memory. OpenTelemetry allows one provider of each."""

from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

EXPORTER, READER = InMemorySpanExporter(), InMemoryMetricReader()

_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
trace.set_tracer_provider(_provider)
metrics.set_meter_provider(MeterProvider(metric_readers=[READER]))


def spans(name: str) -> list[ReadableSpan]:
    """Those that have ended."""
    return [span for span in EXPORTER.get_finished_spans() if span.name == name]


def parent(span: ReadableSpan) -> int:
    """The id of the span that it is part of."""
    assert span.parent is not None
    return span.parent.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})
