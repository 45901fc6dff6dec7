"""Found by Spark through its name: `spark.read.format("aerobee")` works without a register call."""

from aerobee.pipeline.source import AerobeeDataSource as DefaultSource

__all__ = ["DefaultSource"]
