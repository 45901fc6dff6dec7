"""Long searches: each in turn gets a slice of a turn of the loop, so that a short one need not wait
for the end of a long one.

However many results are wanted and however many records are read for them, other requests are
served in between.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

from aerobee.broker.store.index.key_search import Search
from aerobee.broker.store.results import QueryResult

PIECE_S: Final = 0.001  # of searching, then a pause of the same length for other work

Done = Callable[[QueryResult | Exception], None]


class Searches:
    def __init__(self) -> None:
        self._waiting: deque[tuple[Search, Done, Callable[[], bool]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self, search: Search, done: Done, is_wanted: Callable[[], bool]) -> None:
        """Call `done` with the result or the error of the search, before returning if the search is
        short. Dropped when its client is gone."""
        self._waiting.append((search, done, is_wanted))
        if len(self._waiting) == 1:
            self._resume()

    def _resume(self) -> None:
        search, done, is_wanted = self._waiting[0]
        outcome: QueryResult | Exception | None = None
        if is_wanted():
            outcome = _piece(search)
            if outcome is None:
                self._waiting.rotate(-1)
                asyncio.get_running_loop().call_later(PIECE_S, self._resume)
                return
        self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._resume)
        if outcome is not None:
            done(outcome)


def _piece(search: Search) -> QueryResult | Exception | None:
    """Continue the search for `PIECE_S`; returns its result or error, None if it goes on."""
    until = perf_counter() + PIECE_S
    try:
        while perf_counter() < until:
            next(search)
    except StopIteration as end:
        found: QueryResult = end.value
        return found
    except Exception as error:  # the caller gets it
        return error
    return None
