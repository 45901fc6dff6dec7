"""Reads what a pull needs from disk in a thread, because the loop must not wait."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from aerobee.broker.handlers.context import Broker
from aerobee.broker.net.connection import Connection
from aerobee.broker.net.outbox import Part
from aerobee.broker.store.files.mapped_file import MappedFile
from aerobee.broker.store.files.residence import Residence
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.protocol.files.queue_entry import ENTRY_SIZE
from aerobee.protocol.wire.headers import PullRequest

T = TypeVar("T")


class OldEntries:
    """Queue entries that were not written lately. A consumer that reads a topic from its beginning
    needs a page of them for every 200 messages, and each page fault would stop all clients."""

    def __init__(self, broker: Broker) -> None:
        self._residence = Residence(whole_files=True)
        self._scanned = broker.settings.max_filter_message_size // ENTRY_SIZE  # at once

    def to_read(self, pull: PullRequest, queue: ConsumeQueue) -> tuple[MappedFile, int, int] | None:
        """The entries that the pull scans, if they are not in memory: file, begin and end."""
        byte = pull.queue_offset * ENTRY_SIZE
        file = queue.files.find(byte)
        if file is None or pull.queue_offset < queue.min_offset:
            return None
        position = byte - file.start
        count = max(pull.max_msg_nums, self._scanned)
        end = min(position + count * ENTRY_SIZE, file.size)
        return None if self._residence.holds_range(file, position, end) else (file, position, end)

    def bring_in(self, file: MappedFile, position: int, end: int) -> None:
        """In a thread: read these entries, and many around them that are needed next."""
        self._residence.bring_in(file, position, end)


def in_thread(
    connection: Connection,
    size: int,
    work: Callable[[], T],
    then: Callable[[T], Sequence[Part]],
    failed: Callable[[Exception], Sequence[Part]],
) -> None:
    """Do the work in a thread, then write the answer of `then` or `failed`. Until then `size` bytes
    count as pending."""
    connection.waits_begin(1, size)
    reading = asyncio.get_running_loop().run_in_executor(None, work)

    def done(future: "asyncio.Future[T]") -> None:
        connection.waits_end(1, size)
        try:
            parts = then(future.result())
        except Exception as error:
            parts = failed(error)
        if parts:
            connection.write(parts)

    reading.add_done_callback(done)
