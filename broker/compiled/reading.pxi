# The records of queue entries, in one file of the log.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer


cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    Py_ssize_t writev(int descriptor, const iovec* pieces, int count)


cdef enum:
    PIECES_MAX = 1024  # limit of one system call
    COPIED_MAX = 64 << 10  # bytes of an answer up to which one buffer is cheaper than many pieces
    PIECE_MIN = 512  # bytes on average: copying smaller ones is faster than passing them to the kernel


cdef struct Piece:
    Py_ssize_t start
    Py_ssize_t end


@cython.final
cdef class Records:
    """Pieces of a mapped file, copied or turned into views on demand."""

    cdef object _view
    cdef Piece* _pieces
    cdef Py_ssize_t _count
    cdef Py_ssize_t _size

    def __dealloc__(self):
        free(self._pieces)

    def __len__(self):
        return self._count

    def __iter__(self):
        cdef Py_ssize_t number
        return iter(
            [
                self._view[self._pieces[number].start : self._pieces[number].end]
                for number in range(self._count)
            ]
        )

    def answer(self, bytes head):
        """`head` and all pieces, for one write."""
        cdef Gathered gathered
        if self._size < self._count * PIECE_MIN:
            return self.joined(head)
        gathered = Gathered.__new__(Gathered)
        gathered._head, gathered._records = head, self
        return gathered

    def joined(self, bytes head):
        """`head` and all pieces in one."""
        cdef Py_ssize_t number, size, at = PyBytes_GET_SIZE(head), room = at + self._size
        cdef bytes whole = PyBytes_FromStringAndSize(NULL, room)
        cdef char* to = PyBytes_AS_STRING(whole)
        cdef Py_buffer buffer
        memcpy(to, PyBytes_AS_STRING(head), at)
        PyObject_GetBuffer(self._view, &buffer, PyBUF_SIMPLE)
        try:
            for number in range(self._count):
                size = self._pieces[number].end - self._pieces[number].start
                if self._pieces[number].end > buffer.len or size > room - at:
                    raise AssertionError("a record is not where it was")
                memcpy(to + at, <char*>buffer.buf + self._pieces[number].start, size)
                at += size
        finally:
            PyBuffer_Release(&buffer)
        if at != room:
            raise AssertionError("records are shorter than was summed up")
        return whole


@cython.final
cdef class Gathered:
    """A head and records, sent from the mapped file without a copy; behaves like bytes."""

    cdef bytes _head
    cdef Records _records
    cdef bytes _whole

    def __len__(self):
        return PyBytes_GET_SIZE(self._head) + self._records._size

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if self._whole is None:
            self._whole = self._records.joined(self._head)
        PyBuffer_FillInfo(
            buffer, self, PyBytes_AS_STRING(self._whole), PyBytes_GET_SIZE(self._whole), True, flags
        )

    def write_to(self, int descriptor):
        """How many bytes the socket took; 0 also for an error."""
        cdef Py_ssize_t number = 0, used = 1, sent = 0, wanted, total = 0
        cdef Py_ssize_t count = self._records._count
        cdef Piece* pieces = self._records._pieces
        cdef Py_buffer buffer
        cdef iovec vectors[PIECES_MAX]
        wanted = PyBytes_GET_SIZE(self._head)
        vectors[0].iov_base, vectors[0].iov_len = PyBytes_AS_STRING(self._head), wanted
        PyObject_GetBuffer(self._records._view, &buffer, PyBUF_SIMPLE)
        try:
            while sent == wanted or not total:
                if total:
                    used = wanted = 0
                while number < count and used < PIECES_MAX:
                    if pieces[number].end > buffer.len:
                        raise AssertionError("a record is not where it was")
                    vectors[used].iov_base = <char*>buffer.buf + pieces[number].start
                    vectors[used].iov_len = pieces[number].end - pieces[number].start
                    wanted += vectors[used].iov_len
                    used += 1
                    number += 1
                if not used:
                    break
                with nogil:
                    sent = writev(descriptor, vectors, <int>used)
                if sent <= 0:
                    break
                total += sent
        finally:
            PyBuffer_Release(&buffer)
        return total

    def rest(self, Py_ssize_t sent):
        """The rest after these bytes: views if it is large, else one copy."""
        cdef Py_ssize_t number, start, skipped = sent - PyBytes_GET_SIZE(self._head)
        if len(self) <= COPIED_MAX:
            return [memoryview(self)[sent:]]
        left = [self._head[sent:]] if skipped < 0 else []
        skipped = max(skipped, 0)
        for number in range(self._records._count):
            start = self._records._pieces[number].start + skipped
            if start < self._records._pieces[number].end:
                left.append(self._records._view[start : self._records._pieces[number].end])
                skipped = 0
            else:
                skipped = start - self._records._pieces[number].end
        return left


cdef inline uint64_t load_int(const uint8_t* data, int width) noexcept nogil:
    """Big-endian."""
    cdef uint64_t number = 0
    cdef int k
    for k in range(width):
        number = number << 8 | data[k]
    return number


def take_records(bytes entries, view, int64_t begin, int64_t readable, int64_t max_bytes):
    """For a file that begins at `begin`: the range with the records of all entries, the records,
    their bytes and their number. As many as fit `max_bytes`, at least one. None: some are outside
    the readable part of this file."""
    return records_of(
        <const uint8_t*>PyBytes_AS_STRING(entries),
        PyBytes_GET_SIZE(entries) // ENTRY_SIZE,
        view,
        begin,
        readable,
        max_bytes,
    )


cdef tuple records_of(
    const uint8_t* data, Py_ssize_t count, view, int64_t begin, int64_t readable, int64_t max_bytes
):
    """The same for `count` entries at `data`."""
    cdef Py_ssize_t number, taken = 0, last = -1
    cdef Py_ssize_t total = 0
    cdef int64_t start, size
    cdef bint full = False
    cdef Records records = Records.__new__(Records)
    if not count:
        return None
    records._pieces = <Piece*>malloc(count * sizeof(Piece))
    if records._pieces == NULL:
        raise MemoryError
    for number in range(count):
        start = <int64_t>load_int(data + number * ENTRY_SIZE, 8)
        size = <int32_t><uint32_t>load_int(data + number * ENTRY_SIZE + 8, 4)
        if size <= 0 or start < begin or start - begin > readable - size:
            return None
        if full or (number and total + size > max_bytes):
            full = True  # the other records must be in the file too, as in Python
            continue
        start -= begin
        total += size
        taken += 1
        if last >= 0 and records._pieces[last].end == start:
            records._pieces[last].end += size
        else:
            last += 1
            records._pieces[last].start, records._pieces[last].end = start, start + size
    records._view, records._count, records._size = view, last + 1, total
    return (
        records._pieces[0].start,
        records._pieces[last].end,
        records,
        total,
        taken,
    )
