"""The entries of a consume queue in columns."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aerobee.protocol.files.queue_entry import BLANK_ENTRY_SIZE, ENTRY_SIZE

ENTRY_TYPE: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
assert ENTRY_TYPE.itemsize == ENTRY_SIZE


def is_entry(entries: NDArray[Any]) -> NDArray[Any]:
    """Which slots point to a record: those neither unused nor blank."""
    found: NDArray[Any] = (entries["size"] > 0) & (entries["size"] != BLANK_ENTRY_SIZE)
    return found
