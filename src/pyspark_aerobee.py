"""Found by Spark through its name: `spark.read.format("aerobee")` works without a register call.

Imported by a driver before its session, it also makes the workers run the driver's Python, and lets
the filters of queries through to the source.
"""

from aerobee.pipeline.data_source import AerobeeDataSource as DefaultSource
from aerobee.pipeline.driver import end_with_our_sentence, let_filters_through, use_this_python

__all__ = ["DefaultSource"]

use_this_python()
let_filters_through()
end_with_our_sentence()
