"""Filters records by their content, after they have been fetched.

The store could test each record in the mapped log, but the loop would wait for the disk at each
record that is not in memory.
"""

from collections.abc import Callable, Sequence
from typing import Final

from aerobee.broker.net.outbox import Part
from aerobee.broker.store.reading.filter_time import FilterTime
from aerobee.broker.store.results import ReadResult, ReadStatus
from aerobee.protocol.files.record import split_records
from aerobee.protocol.files.record_layout import head_part

_QUEUE_OFFSET: Final = head_part("queue_offset")


def select(
    result: ReadResult,
    fetched: Sequence[Part],
    matches: Callable[[memoryview], bool],
    count_max: int,
    bytes_max: int,
) -> list[memoryview]:
    """The matching records, at least one however large, as far as its time allows to test them;
    updates `result` accordingly."""
    taken: list[memoryview] = []
    size = tested = 0
    time = FilterTime()
    try:
        for record in (each for part in fetched for each in split_records(memoryview(part))):
            if tested and time.is_over:
                result.next_offset = _QUEUE_OFFSET.unpack_from(record)[0]
                break
            tested += 1
            if not matches(record):
                continue
            if taken and (len(taken) >= count_max or size + len(record) > bytes_max):
                result.next_offset = _QUEUE_OFFSET.unpack_from(record)[0]
                break
            taken.append(record)
            size += len(record)
    except BaseException:
        result.release()
        raise
    result.count, result.size = len(taken), size
    if not taken:
        result.status = ReadStatus.NO_MATCHED_MESSAGE
        result.release()
    return taken
