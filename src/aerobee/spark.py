"""What a Spark program imports: `from aerobee.spark import typed`. Needs aerobee[lake]."""

from aerobee.pipeline.catalog.register import catalog
from aerobee.pipeline.figures import OpenTelemetry, Prometheus
from aerobee.pipeline.functions import typed
from aerobee.pipeline.listener import MetricsListener, export_metrics

__all__ = ["MetricsListener", "OpenTelemetry", "Prometheus", "catalog", "export_metrics", "typed"]
