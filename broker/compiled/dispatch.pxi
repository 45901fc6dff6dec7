# Queue entries and keys of many appended records, from the facts of append.

from aerobee.protocol.files.queue_entry import ENTRY as _ENTRY
from aerobee.protocol.files.record import TRANSACTION_MASK as _TRANSACTION_MASK
from aerobee.protocol.files.record import TRANSACTION_ROLLBACK as _TRANSACTION_ROLLBACK

if _ENTRY.format != ">qiq":
    raise ImportError("this build does not know the layout of queue entries any more; install again")

cdef enum:
    ENTRY_SIZE = 20

cdef int64_t TRANSACTION_MASK = _TRANSACTION_MASK
cdef int64_t TRANSACTION_ROLLBACK = _TRANSACTION_ROLLBACK


cdef struct Span:
    Py_ssize_t start
    Py_ssize_t end


cdef struct Found:
    Span tag
    Span unique
    Span words


cdef Found find_values(const uint8_t* text, Py_ssize_t size) noexcept nogil:
    """Positions of the values of TAGS, UNIQ_KEY and KEYS; of duplicates, the last non-empty one."""
    cdef Found found
    cdef Py_ssize_t at = 0, name_end, end, length
    cdef Span* span
    cdef const void* pair_end
    memset(&found, 0, sizeof(found))
    while at < size:
        name_end = at
        while name_end < size and text[name_end] != NAME_END and text[name_end] != PAIR_END:
            name_end += 1
        pair_end = memchr(text + name_end, PAIR_END, size - name_end)
        end = size if pair_end == NULL else <const uint8_t*>pair_end - text
        if end > name_end + 1:  # it has a value
            length = name_end - at
            span = NULL
            if length == 4 and memcmp(text + at, b"TAGS", 4) == 0:
                span = &found.tag
            elif length == 4 and memcmp(text + at, b"KEYS", 4) == 0:
                span = &found.words
            elif length == 8 and memcmp(text + at, b"UNIQ_KEY", 8) == 0:
                span = &found.unique
            if span != NULL:
                span.start, span.end = name_end + 1, end
        at = end + 1
    return found


cdef inline uint32_t java_hash(
    uint32_t begun, const uint8_t* text, Py_ssize_t start, Py_ssize_t end
) noexcept nogil:
    """Java's hash, continued from the hash of the text before."""
    while end - start >= 4:  # four at once: else each multiplication waits for the previous one
        begun = (
            begun * (31 * 31 * 31 * 31)
            + (text[start] * <uint32_t>(31 * 31 * 31) + text[start + 1] * <uint32_t>(31 * 31))
            + (text[start + 2] * <uint32_t>31 + text[start + 3])
        )
        start += 4
    while start < end:
        begun = begun * 31 + text[start]
        start += 1
    return begun


@cython.final
cdef class Lane:
    """The entries of one queue."""

    cdef object queue
    cdef Space entries
    cdef int64_t next_offset
    cdef int64_t known_to
    cdef uint32_t key_hash


@cython.final
cdef class Keys:
    """Index hash, physical offset and store time of each key: 64-bit numbers, as numpy reads them."""

    cdef Space hashes
    cdef Space offsets
    cdef Space times

    def __cinit__(self):
        self.hashes = Space.__new__(Space)
        self.offsets = Space.__new__(Space)
        self.times = Space.__new__(Space)

    cdef int add(self, uint32_t java, int64_t offset, int64_t time_ms) except -1:
        cdef int64_t folded = <int32_t>java
        if folded < 0:
            folded = -folded
        if folded > 0x7FFFFFFF:
            folded = 0
        self.hashes.add(&folded, 8)
        self.offsets.add(&offset, 8)
        return self.times.add(&time_ms, 8)


cdef bytes bytes_of(Space space):
    return PyBytes_FromStringAndSize(<char*>space.data, space.size)


def derived(facts):
    """For each queue its entries in one piece, and of all keys the hashes, offsets and times. None:
    not all of these are plain, or there is a listener."""
    cdef dict lanes = {}
    cdef Keys keys = Keys()
    cdef Facts all_facts
    cdef FactRow* row
    cdef Lane lane = None
    cdef PyObject* last = NULL
    cdef Py_ssize_t number
    if isinstance(facts, Facts):
        all_facts = <Facts>facts
    else:
        all_facts = Facts()
        if not all_facts.extend(facts):
            return None
    for number in range(all_facts.first, all_facts.end):
        row = all_facts.rows + number
        if row.queue != last:
            last = row.queue
            queue = <object>last
            lane = lanes.get(queue)
            if lane is None:
                if queue.listened or not queue.plain_tags:
                    return None
                lane = lanes[queue] = new_lane(queue)
        if row.text + row.text_size > all_facts.text.size:
            raise AssertionError("a fact's text is not where it was")
        if not add_derived(lane, keys, row, all_facts.text.data + row.text):
            return None
    return (
        [((<Lane>each).queue, bytes_of((<Lane>each).entries)) for each in lanes.values()],
        (bytes_of(keys.hashes), bytes_of(keys.offsets), bytes_of(keys.times)),
    )


cdef Lane new_lane(object queue):
    cdef Lane lane = Lane.__new__(Lane)
    lane.queue = queue
    lane.entries = Space.__new__(Space)
    lane.next_offset = queue.max_offset
    lane.known_to = queue.max_physical_offset
    lane.key_hash = queue.key_hash
    return lane


cdef bint add_derived(Lane lane, Keys keys, FactRow* row, const uint8_t* data) except -1:
    """One record's entry and keys. False: it does not follow the queue's last entry, or its text,
    which begins at `data`, is not ASCII."""
    cdef Found found
    cdef int64_t offset = row.offset, size = row.size, time_ms = row.time_ms
    cdef Py_ssize_t start, end
    cdef uint8_t entry[20]
    if not is_ascii(data, row.text_size):
        return False
    found = find_values(data, row.text_size)
    if row.queue_offset >= 0 and offset + size > lane.known_to:
        if row.queue_offset != lane.next_offset:
            return False
        lane.next_offset += 1
        store_int(entry, offset, 8)
        store_int(entry + 8, size, 4)
        store_int(
            entry + 12,
            <uint64_t><int64_t><int32_t>java_hash(0, data, found.tag.start, found.tag.end),
            8,
        )
        lane.entries.add(entry, 20)
    if row.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return True
    if found.unique.end:
        keys.add(
            java_hash(lane.key_hash, data, found.unique.start, found.unique.end), offset, time_ms
        )
    start = found.words.start
    while start < found.words.end:
        end = start
        while end < found.words.end and data[end] != c' ':
            end += 1
        if end > start:
            keys.add(java_hash(lane.key_hash, data, start, end), offset, time_ms)
        start = end + 1
    return True


def keep_entries(list lanes not None, Py_ssize_t kept_max):
    """`ConsumeQueue.keep` for thousands of queues with an entry or two each."""
    cdef bytes entries, kept
    cdef const uint8_t* last
    cdef Py_ssize_t size
    cdef int64_t end, write_end
    for queue, run in lanes:
        entries = <bytes?>run
        size = PyBytes_GET_SIZE(entries)
        if size % ENTRY_SIZE:
            raise ValueError("not whole entries")
        if size:
            end, write_end = <int64_t>queue.write_position + size, queue.write_end
            if end > write_end:
                queue.put_run(entries)
            else:
                kept = <bytes?>queue.kept + entries
                last = <const uint8_t*>PyBytes_AS_STRING(entries) + size - ENTRY_SIZE
                queue.kept = kept
                queue.write_position = end
                queue.max_offset = <int64_t>queue.max_offset + size // ENTRY_SIZE
                queue.max_physical_offset = <int64_t>load_int(last, 8) + <int32_t>load_int(last + 8, 4)
                if PyBytes_GET_SIZE(kept) >= kept_max or end == write_end:
                    queue.write_kept()
        end = queue.max_offset
        if <int64_t>queue.assigned < end:
            queue.assigned = end
