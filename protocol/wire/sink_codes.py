"""The request codes of the exactly-once Spark sink: ours, docs/protocol-extensions.md has them."""

from typing import Final

SINK_STATE: Final = 20100
SINK_PREPARE: Final = 20101
SINK_COMMIT: Final = 20102
SINK_LIST: Final = 20103
SINK_FORGET: Final = 20104
SINK_HOME: Final = 20105
