"""What a Spark program imports: `from aerobee.spark import typed`. Needs aerobee[lake]."""

from aerobee.pipeline.functions import typed
from aerobee.pipeline.listener import MetricsListener, export_metrics

__all__ = ["MetricsListener", "export_metrics", "typed"]
