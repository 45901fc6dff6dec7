# A plain pull from its queue to its answer. The Python path (`handlers.pull.plain`) decides what may
# be read, and how much, and counts it; here the records are found and the answer is built.

cdef enum:
    HEAD_NUMBERS = 4
    AHEAD = 4  # pulls whose entries are read at once
    AHEAD_MAX = 256  # entries
    READ_AHEAD_MAX = 16  # queues of one connection whose entries are kept


@cython.final
cdef class Ready:
    """The pulls of one group and queue: their fields, their queue's key, and entries of the queue
    that were read ahead for the previous pull."""

    cdef readonly object fields
    cdef readonly tuple key
    cdef object _queue
    cdef bytes _entries
    cdef int64_t _first  # the queue offset of the first of them
    cdef int64_t _cuts  # of the queue when they were read

    def __init__(self, fields, tuple key not None):
        self.fields, self.key = fields, key

    cdef Py_ssize_t place_of(self, queue, int64_t queue_offset, int64_t count) except -2:
        """Where the entries of a range begin in `_entries`; -1: they are not all there."""
        if self._entries is None or self._queue is not queue or queue_offset < self._first:
            return -1
        if queue_offset - self._first > PyBytes_GET_SIZE(self._entries) // ENTRY_SIZE - count:
            return -1
        if <int64_t>queue.cuts != self._cuts:
            return -1
        return (queue_offset - self._first) * ENTRY_SIZE

    cdef int keep(self, queue, int64_t queue_offset, bytes entries) except -1:
        self._queue, self._first, self._entries = queue, queue_offset, entries
        self._cuts = queue.cuts
        return 0

    cdef void drop(self):
        self._queue = self._entries = None


@cython.final
cdef class PlainPulls:
    """The plain JSON pulls of one connection. `hot_bytes`: records farther from the log's end are
    left to Python; `bounds`: how many messages and bytes a pull may have, or None; `takes`: whether
    it gets these records, and counts them; `head`: the pieces of the answer's header between the
    queue's end, its beginning, the next offset and the opaque."""

    cdef dict _queues
    cdef object _visible_end
    cdef object _log_files
    cdef int64_t _hot_bytes
    cdef object _bounds
    cdef object _takes
    cdef tuple _head
    cdef Space _space
    cdef list _kept  # of type Ready
    cdef int _oldest

    def __init__(self, dict queues, log_files, int64_t hot_bytes, visible_end, bounds, takes, tuple head):
        if len(head) != HEAD_NUMBERS + 1 or any(type(piece) is not bytes for piece in head):
            raise ValueError("five pieces")
        self._queues, self._log_files, self._visible_end = queues, log_files, visible_end
        self._bounds, self._takes, self._head = bounds, takes, head
        self._hot_bytes = hot_bytes
        self._space = Space()
        self._kept = []

    cdef object answer(
        self, Ready ready, int64_t opaque, int64_t queue_offset, int64_t commit_offset
    ):
        """The answer; None: the Python path has to make it."""
        cdef int64_t behind, high, count
        cdef Py_ssize_t place
        cdef const uint8_t* data
        cdef bytes entries
        cdef tuple bounds
        cdef tuple files
        cdef Records records
        queue = self._queues.get(ready.key)
        if queue is None:
            return None
        high = queue.max_offset
        if queue_offset >= high:
            return None
        asked = self._bounds(ready.fields, queue, queue_offset, commit_offset)
        if asked is None:
            return None
        bounds = <tuple?>asked
        count = min(<int64_t>bounds[0], high - queue_offset)
        place = ready.place_of(queue, queue_offset, count)
        if place < 0:
            entries = <bytes?>queue.entries(queue_offset, max(count, min(AHEAD * count, AHEAD_MAX)))
            self._keep(ready, queue, queue_offset, entries)
            count = min(count, PyBytes_GET_SIZE(entries) // ENTRY_SIZE)
            place = 0
        else:
            entries = ready._entries
        if count < 1:
            return None
        data = <const uint8_t*>PyBytes_AS_STRING(entries) + place
        records = room_for(count)
        files = self._take(records, data, count, <int64_t>bounds[1], &behind)
        if files is None:
            return None
        if high < <int64_t>queue.assigned:
            high = self._visible_end(queue)
        if not self._takes(
            ready.fields,
            files,
            records._pieces[0].start,
            records._pieces[records._count - 1].end,
            records,
            records._size,
            records._taken,
            behind,
        ):
            return None
        return records.answer(
            self._head_of(
                high, queue.min_offset, queue_offset + records._taken, opaque, records._size
            )
        )

    cdef tuple _take(
        self,
        Records records,
        const uint8_t* data,
        int64_t count,
        int64_t max_bytes,
        int64_t* behind,
    ):
        """Take the records of these entries; the files that they are in, or None: they are too far
        from the log's end, in too many files, or not all there."""
        cdef Py_ssize_t number = 0, taken
        cdef int64_t distance
        cdef tuple files = ()
        while number < count:
            file = self._file_at(<int64_t>load_int(data + number * ENTRY_SIZE, 8), &distance)
            if file is None or not file.usable or len(files) == FILES_MAX:
                return None
            if not number:
                behind[0] = distance
                if distance > self._hot_bytes:
                    return None
            readable = file.wrote if file.buffer is None else file.committed
            taken = records.take(data, number, count, file.view, file.start, readable, max_bytes)
            if taken == number:
                return None
            files += (file,)
            number = taken
        return files

    cdef int _keep(self, Ready ready, queue, int64_t queue_offset, bytes entries) except -1:
        """Keep entries for the next pulls; drops those of the queue that was added first."""
        if ready._entries is None:
            if len(self._kept) < READ_AHEAD_MAX:
                self._kept.append(ready)
            else:
                (<Ready>self._kept[self._oldest]).drop()
                self._kept[self._oldest] = ready
                self._oldest = (self._oldest + 1) % READ_AHEAD_MAX
        return ready.keep(queue, queue_offset, entries)

    cdef object _file_at(self, int64_t physical_offset, int64_t* behind):
        """The log's file that has this byte, and how far before the log's end it is."""
        cdef list files = <list?>self._log_files.files
        cdef int64_t begin, file_size = self._log_files.file_size
        if not files or file_size <= 0:
            return None
        begin = files[0].start
        if physical_offset < begin or (physical_offset - begin) // file_size >= len(files):
            return None
        last = files[len(files) - 1]
        behind[0] = <int64_t>last.start + <int64_t>last.wrote - physical_offset
        return files[(physical_offset - begin) // file_size]

    cdef bytes _head_of(
        self, int64_t high, int64_t low, int64_t following, int64_t opaque, Py_ssize_t body_size
    ):
        cdef Space space = self._space
        cdef int64_t[HEAD_NUMBERS] numbers = [high, low, following, opaque]
        cdef int number
        space.size = 0
        space.add_int(0, 8)
        for number in range(HEAD_NUMBERS):
            space.add_bytes(<bytes>self._head[number])
            space.add_decimal(numbers[number])
        space.add_bytes(<bytes>self._head[HEAD_NUMBERS])
        store_int(space.data, <uint64_t>(space.size - 4 + body_size), 4)
        store_int(space.data + 4, <uint64_t>(space.size - 8), 4)  # the codec byte of JSON is 0
        return PyBytes_FromStringAndSize(<char*>space.data, space.size)
