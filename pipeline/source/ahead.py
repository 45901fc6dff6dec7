"""The next batch is made by a thread while Spark takes the one before it.

For reads over TCP: otherwise Spark waits while the worker receives and decodes, and the worker
waits while Spark takes the batch. Sockets, numpy and Arrow do their work without the interpreter's
lock, so both go on at once. Reads of files gain nothing by it: they never wait.
"""

from collections.abc import Generator
from contextlib import closing
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Final, TypeVar

T = TypeVar("T")

_MADE_MAX: Final = 2  # batches that wait to be taken, of some megabytes at most
_END_S: Final = 5.0  # for the thread to end; it may be waiting for a broker


class _End:
    """Marks the end of the batches."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def ahead(batches: Generator[T, None, None]) -> Generator[T, None, None]:
    """The same batches, followed by the same error."""
    made: SimpleQueue[T | _End] = SimpleQueue()
    room = Semaphore(_MADE_MAX)
    stopped = False

    def make() -> None:
        end = _End()
        try:
            with closing(batches):
                while room.acquire() and not stopped:
                    made.put(next(batches))
        except StopIteration:
            pass
        except BaseException as error:  # for the caller
            end = _End(error)
        made.put(end)

    thread = Thread(target=make, name="batches ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(batch := made.get(), _End):
            room.release()
            yield batch
        if batch.error is not None:
            raise batch.error
    finally:
        stopped = True
        room.release()
        thread.join(_END_S)
