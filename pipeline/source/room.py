"""Memory for the bodies of pulls, used again for the next ones.

A body of some MiB in memory of its own costs more by the kernel's clearing of fresh pages than by
the bytes that are copied into them.
"""

from collections.abc import Sequence
from operator import is_
from typing import Final

ROOM_MIN: Final = 16 * 1024 * 1024  # two of the largest answers; pages count once they are used


class Room:
    """Bodies lie behind each other, so those that came in order are one piece without a copy."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")
        self._given: list[memoryview] = []
        self._used = 0

    def __call__(self, size: int) -> memoryview:
        """Memory for a body; it stays that body's until `clear`."""
        if self._used + size > len(self._memory):
            self._memory = memoryview(bytearray(max(ROOM_MIN, 2 * size)))
            self._given, self._used = [], 0
        body = self._memory[self._used : self._used + size]
        self._used += size
        self._given.append(body)
        return body

    def joined(self, bodies: Sequence[bytes | memoryview]) -> bytes | memoryview:
        """All the bytes of these bodies."""
        if len(bodies) == 1:
            return bodies[0]
        return self._memory[: self._used] if self._holds(bodies) else b"".join(bodies)

    def clear(self, bodies: Sequence[bytes | memoryview]) -> None:
        """Nobody reads these bodies any more. If there are others, their memory stays too."""
        if self._holds(bodies):
            self._given, self._used = [], 0

    def _holds(self, bodies: Sequence[bytes | memoryview]) -> bool:
        """Whether these, in this order, are all that is here."""
        return len(bodies) == len(self._given) and all(map(is_, bodies, self._given))
