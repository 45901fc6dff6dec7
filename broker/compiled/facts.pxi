# Facts about appended records, until they are dispatched. Tuples are made only on request.

from cpython.object cimport PyObject


cdef struct FactRow:
    PyObject* queue  # `kept` holds it
    int64_t queue_offset
    int64_t offset
    int64_t size
    int64_t time_ms
    int64_t sys_flag
    Py_ssize_t text  # in the space
    Py_ssize_t text_size


@cython.final
cdef class Facts:
    """A sequence of facts, in the log's order. Slices are made of copies of the rows; texts stay
    where they are."""

    cdef FactRow* rows
    cdef Py_ssize_t first  # rows before this one are dropped
    cdef Py_ssize_t end
    cdef Py_ssize_t room
    cdef Space text
    cdef dict kept  # the queues, as keys
    cdef bint exact  # `kept` has exactly the queues of the rows

    def __cinit__(self):
        self.text = Space.__new__(Space)
        self.text.grow(0)
        self.kept = {}

    def __dealloc__(self):
        free(self.rows)

    def __len__(self):
        return self.end - self.first

    cdef int grow(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room
        cdef FactRow* moved
        if self.room - self.end < more:
            room = 2 * self.room + more
            moved = <FactRow*>realloc(self.rows, room * sizeof(FactRow))
            if moved == NULL:
                raise MemoryError
            self.rows, self.room = moved, room
        return 0

    cdef tuple fact(self, Py_ssize_t number):
        cdef FactRow* row = self.rows + number
        if row.text + row.text_size > self.text.size:
            raise AssertionError("a fact's text is not where it was")
        return (
            <object>row.queue,
            row.queue_offset,
            row.offset,
            row.size,
            row.time_ms,
            PyUnicode_DecodeUTF8(<char*>self.text.data + row.text, row.text_size, NULL),
            row.sys_flag,
        )

    def __getitem__(self, which):
        cdef Py_ssize_t number, start, stop
        cdef Facts part
        if isinstance(which, slice):
            start, stop, step = which.indices(self.end - self.first)
            if step != 1:
                raise ValueError("facts follow each other")
            part = Facts()
            part.text, part.kept = self.text, self.kept
            if stop > start:
                part.grow(stop - start)
                memcpy(part.rows, self.rows + self.first + start, (stop - start) * sizeof(FactRow))
                part.end = stop - start
            return part
        number = which
        if number < 0:
            number += self.end - self.first
        if not 0 <= number < self.end - self.first:
            raise IndexError("no such fact")
        return self.fact(self.first + number)

    # -- as a queue

    def extend(self, more):
        """Add facts. False, with nothing added: UTF-8 cannot encode a text of theirs."""
        cdef Facts other
        cdef Py_ssize_t number, before = self.end
        if not isinstance(more, Facts):
            other = Facts()
            for fact in more:
                if not other.add(fact):
                    return False
        else:
            other = <Facts>more
        if other.first == other.end:
            return True
        self.grow(other.end - other.first)
        memcpy(self.rows + before, other.rows + other.first,
               (other.end - other.first) * sizeof(FactRow))
        for number in range(before, before + other.end - other.first):
            self._take_text(self.rows + number, other.text)
        self.kept.update(other.kept)
        self.end = before + other.end - other.first
        self.exact = False
        return True

    cdef int _take_text(self, FactRow* row, Space source) except -1:
        cdef Py_ssize_t at = self.text.size
        if row.text + row.text_size > source.size:
            raise AssertionError("a fact's text is not where it was")
        self.text.add(source.data + row.text, row.text_size)
        row.text = at
        return 0

    cdef bint add(self, tuple fact) except -1:
        cdef FactRow* row
        cdef Py_ssize_t size = 0
        cdef const char* text
        self.grow(1)
        row = self.rows + self.end
        queue, row.queue_offset, row.offset, row.size, row.time_ms, words, row.sys_flag = fact
        try:
            text = PyUnicode_AsUTF8AndSize(words, &size)
        except UnicodeEncodeError:
            return False
        row.text, row.text_size = self.text.size, size
        self.text.add(text, size)
        self.kept[queue] = None
        row.queue = <PyObject*>queue
        self.end += 1
        return True

    def drop(self, Py_ssize_t count):
        """Drop the first ones."""
        cdef Facts rest
        if not 0 <= count <= self.end - self.first:
            raise ValueError("there are not so many")
        self.first += count
        if self.first * 2 >= self.end:  # drop their texts and queues, too
            rest = Facts()
            if self.first < self.end:
                rest.extend(self[:])
                rest.kept = {}
                rest._keep_own()
            self.rows, rest.rows = rest.rows, self.rows
            self.room, rest.room = rest.room, self.room
            self.first, self.end = 0, rest.end
            self.text, self.kept = rest.text, rest.kept

    cdef int _keep_own(self) except -1:
        cdef Py_ssize_t number
        for number in range(self.first, self.end):
            self.kept[<object>self.rows[number].queue] = None
        return 0

    def count_up_to(self, int64_t offset):
        """How many of the records end at `offset` or before."""
        cdef Py_ssize_t low = self.first, high = self.end, middle
        if low < high and self.rows[high - 1].offset + self.rows[high - 1].size <= offset:
            return high - low
        while low < high:
            middle = (low + high) // 2
            if self.rows[middle].offset + self.rows[middle].size <= offset:
                low = middle + 1
            else:
                high = middle
        return low - self.first

    def forget(self, topic):
        """Records of this topic get no queue entry."""
        cdef Py_ssize_t number
        for number in range(self.first, self.end):
            if (<object>self.rows[number].queue).topic == topic:
                self.rows[number].queue_offset = -1

    # -- about all of them

    cpdef int64_t begin_offset(self) noexcept:
        return self.rows[self.first].offset if self.first < self.end else 0

    cpdef int64_t end_offset(self) noexcept:
        if self.first == self.end:
            return 0
        return self.rows[self.end - 1].offset + self.rows[self.end - 1].size

    cpdef bint is_listened(self) except -1:
        """Whether one of their queues has a listener."""
        cdef Py_ssize_t number
        cdef PyObject* last = NULL
        if self.exact:
            for queue in self.kept:
                if queue.listened:
                    return True
            return False
        for number in range(self.first, self.end):
            if self.rows[number].queue != last:
                last = self.rows[number].queue
                if (<object>last).listened:
                    return True
        return False

    def spread(self):
        """Where the first record begins, where the last one ends, whether there is a listener."""
        return self.begin_offset(), self.end_offset(), self.is_listened()

    def offsets(self):
        cdef Py_ssize_t number
        return [self.rows[number].offset for number in range(self.first, self.end)]

    def size_if_alike(self):
        """Their topic and their bytes; None: they have several, or sizes of different bit lengths."""
        cdef int64_t total = 0, size, least = 0x7FFFFFFFFFFFFFFF, most = 0
        cdef Py_ssize_t number
        cdef PyObject* last = NULL
        topic = None
        for number in range(self.first, self.end):
            if self.rows[number].queue != last:
                last = self.rows[number].queue
                if topic is None:
                    topic = (<object>last).topic
                elif topic != (<object>last).topic:
                    return None
            size = self.rows[number].size
            least = min(least, size)
            most = max(most, size)
            total += size
        return None if least ^ most > least & most else (topic, total)
