"""What a pull needs from disk: a thread reads it, because the loop must not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from aerobee.broker.broker import Broker
from aerobee.broker.connection import Part
from aerobee.broker.store.consume_queue import ENTRY_SIZE
from aerobee.broker.store.page_cache import Residence

if TYPE_CHECKING:
    from aerobee.broker.handlers.pull import Pull
    from aerobee.broker.store.mapped_file import MappedFile

T = TypeVar("T")


class OldEntries:
    """Entries of queues that were not written lately. A consumer that reads a topic from its
    beginning needs a page of them for every 200 messages, and all clients would wait for each."""

    def __init__(self, broker: Broker) -> None:
        self._store = broker.store
        self._residence = Residence(whole_files=True)
        self._scanned = broker.settings.max_filter_message_size // ENTRY_SIZE  # at once

    def to_read(self, pull: Pull) -> tuple[MappedFile, int, int] | None:
        """Those that the pull looks at, if they are not in memory: file, begin and end."""
        count = max(pull.fields.max_msg_nums, self._scanned)
        found = self._store.old_entries(pull.topic, pull.queue_id, pull.queue_offset, count)
        return None if found is None or self._residence.holds_range(*found) else found

    def bring_in(self, file: MappedFile, position: int, end: int) -> None:
        """For a thread: read these entries, and many around them that are needed next."""
        self._residence.bring_in(file, position, end)


def in_thread(
    pull: Pull,
    size: int,
    work: Callable[[], T],
    go_on: Callable[[T], Sequence[Part]],
    failed: Callable[[Pull, Exception], Sequence[Part]],
) -> None:
    """Do the work beside the loop and write the answer that `go_on` or `failed` makes of it;
    `size` bytes of answer are under way meanwhile."""
    connection = pull.connection
    connection.waits_begin(1, size)
    reading = asyncio.get_running_loop().run_in_executor(None, work)

    def done(future: asyncio.Future[T]) -> None:
        connection.waits_end(1, size)
        try:
            parts = go_on(future.result())
        except Exception as error:
            parts = failed(pull, error)
        if parts:
            connection.write(parts)

    reading.add_done_callback(done)
