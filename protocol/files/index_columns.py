"""The slots and entries of an index file in columns."""

from typing import Final

import numpy as np

from aerobee.protocol.files.index_layout import INDEX_ENTRY_SIZE, SLOT_SIZE

SLOT_TYPE: Final = np.dtype(">i4")
INDEX_ENTRY_TYPE: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("prev", ">i4")]
)
assert (SLOT_TYPE.itemsize, INDEX_ENTRY_TYPE.itemsize) == (SLOT_SIZE, INDEX_ENTRY_SIZE)
