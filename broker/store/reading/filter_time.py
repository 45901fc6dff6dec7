"""How long one read may filter records on the loop: an expression of many terms takes milliseconds
for each, and hundreds of records may not match."""

from __future__ import annotations

from time import monotonic, thread_time
from typing import Final

FILTER_S: Final = 0.01  # CPU time: a busy machine makes no read shorter


class FilterTime:
    """The time of one read, from its creation."""

    __slots__ = ("_until", "_until_used")

    def __init__(self) -> None:
        self._until = monotonic() + FILTER_S
        self._until_used = thread_time() + FILTER_S

    @property
    def is_over(self) -> bool:
        """Whether the reader has to come again for the records that were not tested."""
        return monotonic() > self._until and thread_time() > self._until_used
