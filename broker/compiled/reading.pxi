# The records of queue entries, in one file of the log or a few.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer


cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    Py_ssize_t writev(int descriptor, const iovec* pieces, int count)

cdef extern from "<unistd.h>" nogil:
    long sysconf(int name)
    const int _SC_PAGESIZE

cdef extern from "<sys/mman.h>" nogil:
    int mincore(void* address, size_t length, unsigned char* states)


cdef enum:
    PIECES_MAX = 1024  # limit of one system call
    COPIED_MAX = 64 << 10  # bytes of an answer up to which one buffer is cheaper than many pieces
    PIECE_MIN = 512  # bytes on average: copying smaller ones is faster than passing them to the kernel
    FILES_MAX = 4  # of one answer: a `Views` then fits into the small objects of the interpreter
    STATES = 256  # pages asked for at once


cdef struct Piece:
    Py_ssize_t start
    Py_ssize_t end
    int view


cdef size_t PAGE_SIZE = <size_t>sysconf(_SC_PAGESIZE)


@cython.final
cdef class Views:
    """The memory of a few views, while it is used."""

    cdef Py_buffer[FILES_MAX] _buffers
    cdef int _count

    def __dealloc__(self):
        cdef int number
        for number in range(self._count):
            PyBuffer_Release(&self._buffers[number])

    cdef int open(self, tuple views) except -1:
        for view in views:
            if self._count == FILES_MAX:
                raise AssertionError("records of too many files")
            PyObject_GetBuffer(view, &self._buffers[self._count], PyBUF_SIMPLE)
            self._count += 1
        return 0

    cdef char* find(self, Piece* piece) except NULL:
        if piece.view >= self._count or piece.end > self._buffers[piece.view].len:
            raise AssertionError("a record is not where it was")
        return <char*>self._buffers[piece.view].buf + piece.start


@cython.final
cdef class Records:
    """Pieces of mapped files, copied or turned into views on demand."""

    cdef tuple _views
    cdef Piece* _pieces
    cdef Py_ssize_t _room
    cdef Py_ssize_t _count
    cdef Py_ssize_t _size
    cdef Py_ssize_t _taken  # records
    cdef bint _full

    def __dealloc__(self):
        free(self._pieces)

    def __len__(self):
        return self._count

    def __iter__(self):
        return iter([self._view_of(number, 0) for number in range(self._count)])

    cdef object _view_of(self, Py_ssize_t number, Py_ssize_t skipped):
        cdef Piece* piece = &self._pieces[number]
        return self._views[piece.view][piece.start + skipped : piece.end]

    cdef Py_ssize_t take(
        self,
        const uint8_t* data,
        Py_ssize_t number,
        Py_ssize_t count,
        view,
        int64_t begin,
        int64_t readable,
        int64_t max_bytes,
    ) except -1:
        """Take the records from entry `number` on, up to the first that is outside the readable part
        of this file; its number, or `count`. Records beyond `max_bytes` are not taken, but must be in
        the file, too, as in Python."""
        cdef Py_ssize_t last = self._count - 1, total = self._size, taken = self._taken
        cdef Piece* pieces = self._pieces
        cdef bint full = self._full
        cdef int index = <int>len(self._views)
        cdef int64_t start, size
        self._views += (view,)
        while number < count:
            start = <int64_t>load_int(data + number * ENTRY_SIZE, 8)
            size = <int32_t><uint32_t>load_int(data + number * ENTRY_SIZE + 8, 4)
            if size <= 0 or start < begin or start - begin > readable - size:
                break
            number += 1
            if full or (taken and total + size > max_bytes):
                full = True
                continue
            start -= begin
            total += size
            taken += 1
            if last >= 0 and pieces[last].end == start and pieces[last].view == index:
                pieces[last].end += size
            else:
                last += 1
                if last >= self._room:
                    raise AssertionError("more records than entries")
                pieces[last].start, pieces[last].end, pieces[last].view = start, start + size, index
        self._count, self._size, self._taken, self._full = last + 1, total, taken, full
        return number

    def is_resident(self):
        """Whether every page of every piece can be read without the device."""
        cdef unsigned char states[STATES]
        cdef Py_ssize_t number
        cdef size_t at, end, length, page
        cdef Views views = Views.__new__(Views)
        views.open(self._views)
        for number in range(self._count):
            at = <size_t>views.find(&self._pieces[number])
            end = at + <size_t>(self._pieces[number].end - self._pieces[number].start)
            at -= at % PAGE_SIZE
            while at < end:
                length = min(end - at, STATES * PAGE_SIZE)
                if mincore(<void*>at, length, states):
                    return False
                for page in range((length + PAGE_SIZE - 1) // PAGE_SIZE):
                    if not states[page] & 1:
                        return False
                at += length
        return True

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
        cdef Views views = Views.__new__(Views)
        memcpy(to, PyBytes_AS_STRING(head), at)
        views.open(self._views)
        for number in range(self._count):
            size = self._pieces[number].end - self._pieces[number].start
            if size > room - at:
                raise AssertionError("a record is not where it was")
            memcpy(to + at, views.find(&self._pieces[number]), size)
            at += size
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
        cdef Py_ssize_t sent = -1
        if SPLICED_MIN <= self._records._size <= SPLICED_MAX:
            sent = splice_out(descriptor, self._head, self._records)
        return sent if sent >= 0 else self._copy_to(descriptor)

    cdef Py_ssize_t _copy_to(self, int descriptor) except -1:
        cdef Py_ssize_t number = 0, used = 1, sent = 0, wanted, total = 0
        cdef Py_ssize_t count = self._records._count
        cdef Piece* pieces = self._records._pieces
        cdef Views views = Views.__new__(Views)
        cdef iovec vectors[PIECES_MAX]
        wanted = PyBytes_GET_SIZE(self._head)
        vectors[0].iov_base, vectors[0].iov_len = PyBytes_AS_STRING(self._head), wanted
        views.open(self._records._views)
        while sent == wanted or not total:
            if total:
                used = wanted = 0
            while number < count and used < PIECES_MAX:
                vectors[used].iov_base = views.find(&pieces[number])
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
        return total

    def rest(self, Py_ssize_t sent):
        """The rest after these bytes: views if it is large, else one copy."""
        cdef Py_ssize_t number, size, skipped = sent - PyBytes_GET_SIZE(self._head)
        if len(self) <= COPIED_MAX:
            return [memoryview(self)[sent:]]
        left = [self._head[sent:]] if skipped < 0 else []
        skipped = max(skipped, 0)
        for number in range(self._records._count):
            size = self._records._pieces[number].end - self._records._pieces[number].start
            if skipped < size:
                left.append(self._records._view_of(number, skipped))
                skipped = 0
            else:
                skipped -= size
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
    cdef Py_ssize_t count = PyBytes_GET_SIZE(entries) // ENTRY_SIZE
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(entries)
    cdef Records records
    if not count:
        return None
    records = room_for(count)
    if records.take(data, 0, count, view, begin, readable, max_bytes) < count:
        return None
    return (
        records._pieces[0].start,
        records._pieces[records._count - 1].end,
        records,
        records._size,
        records._taken,
    )


cdef Records room_for(Py_ssize_t count):
    """No records yet, with room for those of `count` entries."""
    cdef Records records = Records.__new__(Records)
    records._pieces = <Piece*>malloc(count * sizeof(Piece))
    if records._pieces == NULL:
        raise MemoryError
    records._room, records._views = count, ()
    return records
