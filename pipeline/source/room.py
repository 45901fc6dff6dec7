"""Memory for the bodies of pulls, used again for the next ones.

With new memory for each body of some MiB, the kernel would spend more time on clearing pages than
we on copying bytes into them.
"""

from collections.abc import Sequence
from operator import is_
from typing import Final

ROOM_MIN: Final = 16 * 1024 * 1024  # two of the largest answers; pages count once they are used


class Room:
    """Bodies are placed one after the other, so those received in order are one piece, uncopied."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")
        self._given: list[memoryview] = []
        self._used = 0

    def __call__(self, size: int) -> memoryview:
        """Memory for a body, reserved until `clear`."""
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
        """Release these bodies' memory for new ones, unless there are other bodies in it."""
        if self._holds(bodies):
            self._given, self._used = [], 0

    def _holds(self, bodies: Sequence[bytes | memoryview]) -> bool:
        """Whether these, in this order, are all that is here."""
        return len(bodies) == len(self._given) and all(map(is_, bodies, self._given))
