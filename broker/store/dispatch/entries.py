"""The queue entries of a batch of facts, and the arrivals for listeners."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from aerobee.broker.store.dispatch.facts import count_up_to
from aerobee.broker.store.log.facts import Facts
from aerobee.broker.store.queues.consume_queue import ConsumeQueue
from aerobee.broker.store.results import Arrival
from aerobee.broker.store.settings import StoreSettings
from aerobee.protocol.files import properties as message_properties
from aerobee.protocol.files.java_hash import tags_code as code_of_tag
from aerobee.protocol.files.properties import NAME_END, PAIR_END, TAGS
from aerobee.protocol.files.queue_entry import ENTRY, ENTRY_SIZE

NO_MAX: Final = 1 << 62
MANY_QUEUES: Final = 64  # of a batch: from here on their entries are written with later ones
_TAGS_MAX: Final = 10_000  # cached; bounded, as clients can make up any number of tags
_TAGS_NAME: Final = TAGS + NAME_END
_TAGS_SIZE: Final = len(_TAGS_NAME)
_pack_entry = ENTRY.pack
_tag_codes: dict[str, int] = {}


def put_entries(
    settings: StoreSettings, batch: Facts, arrivals: list[Arrival], opened_max: int
) -> int:
    """Write a batch's queue entries, one call per queue; returns how many facts it took. It stops
    before the queue that would be the `opened_max`-th plus one to get a new file or blocks.
    OSError on a disk error: no arrival is noted, and the caller retries the whole batch."""
    touched: list[ConsumeQueue] = []
    known = len(arrivals)
    try:
        count = _collect(settings, batch, arrivals, touched, opened_max)
        are_many = len(touched) > MANY_QUEUES
        for queue in touched:
            queue.write_waiting(keep=are_many)
    except BaseException:
        del arrivals[known:]
        for queue in touched:  # one queue's failure does not hold up the others
            with suppress(OSError):
                queue.write_waiting()
        raise
    return count


def _collect(
    settings: StoreSettings,
    batch: Facts,
    arrivals: list[Arrival],
    touched: list[ConsumeQueue],
    opened_max: int,
) -> int:
    """The hot loop of dispatch; returns how many facts it took."""
    tag_codes = _tag_codes
    opened = 0
    for queue, queue_offset, offset, size, time_ms, text, _sys_flag in batch:
        at = text.rfind(_TAGS_NAME)  # the last of several wins, as in Java's map
        if at < 0 and queue.plain_tags:
            code = 0
        elif at >= 0 and queue.plain_tags and (at == 0 or text[at - 1] == PAIR_END):
            end = text.find(PAIR_END, at)
            tag = text[at + _TAGS_SIZE : end] if end >= 0 else text[at + _TAGS_SIZE :]
            tag = tag or message_properties.get(text, TAGS) or ""
            found = tag_codes.get(tag)
            code = _remember_tag(tag) if found is None else found
        elif opened >= opened_max:  # before a unit is written to the queue's extension
            return count_up_to(batch, offset)
        else:
            code = _unusual_code(settings, queue, offset + size, text, time_ms)
        if queue_offset >= 0:
            waiting = queue.waiting
            ahead = len(waiting)
            is_next = queue_offset == queue.max_offset + ahead
            if is_next and queue.write_position + ENTRY_SIZE * ahead < queue.write_end:
                if not ahead:
                    touched.append(queue)
                waiting.append(_pack_entry(offset, size, code))
            elif not ahead and offset + size <= queue.max_physical_offset:
                pass  # already written: this batch is a retry
            elif opened >= opened_max:
                return count_up_to(batch, offset)
            else:
                opened += 1
                queue.write_waiting()
                queue.put(queue_offset, offset, size, code)
            if queue.listened:
                arrivals.append(
                    Arrival(
                        queue.topic,
                        queue.queue_id,
                        queue_offset,
                        code if queue.plain_tags else queue.real_tags_code(code),
                        time_ms,
                        text,
                        offset,
                        size,
                    )
                )
    return len(batch)


def _unusual_code(
    settings: StoreSettings, queue: ConsumeQueue, end: int, text: str, time_ms: int
) -> int:
    """The tags code that is not just TAGS' hash: a deliver time, or an extension's address."""
    code = code_of_tag(message_properties.get(text, message_properties.TAGS))
    if queue.is_schedule:
        level = message_properties.get(text, message_properties.DELAY)
        if level is not None and level.isascii() and level.isdigit() and int(level) > 0:
            code = time_ms + settings.delay_ms_of_level(int(level))
    if queue.ext is not None and queue.ext_writable and end > queue.max_physical_offset:
        return queue.ext.put(code, time_ms)
    return code


def _remember_tag(tag: str) -> int:
    if len(_tag_codes) > _TAGS_MAX:
        _tag_codes.clear()
    code = _tag_codes[tag] = code_of_tag(tag)
    return code
