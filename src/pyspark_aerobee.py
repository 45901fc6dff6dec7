"""Found by Spark through its name: `spark.read.format("aerobee")` works without a register call.

Imported by a driver before its session, it also makes the workers run the driver's Python, lets
the filters of queries through to the source, and has tasks start without a delay.
"""

from aerobee.pipeline.data_source import AerobeeDataSource as DefaultSource
from aerobee.pipeline.driver import end_with_our_sentence, set_up_sessions, use_this_python

__all__ = ["DefaultSource"]

use_this_python()
set_up_sessions()
end_with_our_sentence()
