"""What a Spark program imports: `from aerobee.spark import typed`. Needs aerobee[lake]."""

from aerobee.pipeline.functions import typed

__all__ = ["typed"]
