# Records that go to a socket by reference: the client's core reads them, not ours.

import os

cdef extern from "splice.h" nogil:
    int open_pipe(int* ends)
    Py_ssize_t send_pages(int socket, const int* ends, const void* head, size_t head_size,
                          const iovec* pieces, size_t count, size_t size, int more)

cdef extern from "<unistd.h>" nogil:
    int close(int descriptor)


cdef enum:
    SPLICED_MIN = 16 << 10  # bytes of records: copying fewer is cheaper than two system calls
    SPLICED_MAX = 256 << 10  # what is larger waits for the client anyway: no gain was measured


@cython.final
cdef class Pipe:
    """Takes the pages of one answer at a time, on their way to its socket."""

    cdef int[2] _ends
    cdef int _pages  # that it has room for; 0: it could not be made

    def __cinit__(self):
        self._pages = open_pipe(self._ends)

    def __dealloc__(self):
        if self._pages:
            close(self._ends[0])
            close(self._ends[1])


# Empty ones that nobody uses. A thread takes one for as long as it sends: several may send at once.
cdef list _pipes = []
cdef bint _splices = True  # until the system refuses: some containers forbid it

os.register_at_fork(after_in_child=_pipes.clear)  # the parent uses them, too


cdef Pipe take_pipe():
    """None: send in another way."""
    global _splices
    cdef Pipe pipe
    if not _splices:
        return None
    if _pipes:
        return <Pipe>_pipes.pop()
    pipe = Pipe.__new__(Pipe)
    if not pipe._pages:
        _splices = False
        return None
    return pipe


cdef bint are_mapped(tuple views) except -1:
    """Whether these are views of mapped files. Other memory might be used again for something else
    before the client has read it: a page of a file keeps its bytes for as long as the socket has it,
    and records do not change."""
    for view in views:
        if not getattr(view.obj, "is_file_map", False):
            return False
    return True


cdef Py_ssize_t splice_out(int descriptor, bytes head, Records records) except -2:
    """Send head and records; how many bytes the socket took. -1: none, and the records have to be
    sent in another way."""
    global _splices
    cdef Pipe pipe
    cdef Views views
    cdef iovec vectors[PIECES_MAX]
    cdef Py_ssize_t number = 0, skipped = 0, total = 0, used, wanted, sent
    cdef size_t head_size = PyBytes_GET_SIZE(head), at, size, room
    cdef const char* head_bytes = PyBytes_AS_STRING(head)
    if not are_mapped(records._views):
        return -1
    pipe = take_pipe()
    if pipe is None:
        return -1
    views = Views.__new__(Views)
    views.open(records._views)
    while number < records._count:
        used, wanted, room = 0, 0, pipe._pages
        while number < records._count and room and used < PIECES_MAX:
            at = <size_t>views.find(&records._pieces[number]) + skipped
            size = records._pieces[number].end - records._pieces[number].start - skipped
            size = min(size, room * PAGE_SIZE - at % PAGE_SIZE)
            vectors[used].iov_base, vectors[used].iov_len = <void*>at, size
            used += 1
            wanted += size
            room -= (at % PAGE_SIZE + size + PAGE_SIZE - 1) // PAGE_SIZE
            skipped += size
            if skipped == records._pieces[number].end - records._pieces[number].start:
                number += 1
                skipped = 0
        with nogil:
            sent = send_pages(
                descriptor, pipe._ends, head_bytes, head_size, vectors, used, wanted,
                number < records._count,
            )
        if sent < 0:
            if not total:
                _splices = False
                return -1
            return total
        total += sent
        if sent < wanted + <Py_ssize_t>head_size:
            return total  # what is left in the pipe is dropped with it
        head_size = 0
    _pipes.append(pipe)
    return total
