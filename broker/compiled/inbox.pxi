# Reads of many requests: received where they are parsed.

from cpython.object cimport PyObject

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* of)


cdef enum:
    BEGUN_MAX = 64 << 10  # bytes of an incomplete frame that are copied before each read


@cython.final
cdef class Inbox:
    """Memory that sockets are read into, behind the frame that has begun. One serves all connections
    of a loop: each takes what was received before the next one reads. Frames refer to the memory; as
    long as some do, the next read gets other memory."""

    cdef bytes _memory
    cdef Py_ssize_t _size
    cdef Py_ssize_t _exports
    cdef readonly Py_ssize_t begun  # bytes of the incomplete frame before those that are received

    def __init__(self, Py_ssize_t size):
        if size < 2 * BEGUN_MAX:
            raise ValueError("too small")
        self._size = size

    def room(self, bytearray begun not None):
        """Where to receive: this object, as a buffer. `begun`: what the connection has of a frame."""
        cdef Py_ssize_t size = len(begun)
        if self._exports:
            raise BufferError("another connection is reading")
        # No other reference: nobody can see that these bytes change.
        if self._memory is None or Py_REFCNT(<PyObject*>self._memory) > 1:
            self._memory = PyBytes_FromStringAndSize(NULL, self._size)
        self.begun = 0
        if size <= BEGUN_MAX:
            memcpy(PyBytes_AS_STRING(self._memory), <char*>begun, size)
            self.begun = size
        return self

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if self._memory is None:
            raise BufferError("no room was asked for")
        PyBuffer_FillInfo(
            buffer,
            self,
            PyBytes_AS_STRING(self._memory) + self.begun,
            self._size - self.begun,
            False,
            flags,
        )
        self._exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self._exports -= 1

    cdef int _check(self, Py_ssize_t count) except -1:
        if self._memory is None or not 0 <= count <= self._size - self.begun:
            raise ValueError("there are not so many bytes")
        return 0

    def received(self, Py_ssize_t count):
        """A copy of the last read."""
        self._check(count)
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(self._memory) + self.begun, count)

    def frames(self, Py_ssize_t count, Py_ssize_t length_max):
        """The frames of the last read, the first of which may have begun before."""
        self._check(count)
        return Frames(self._memory, length_max, self.begun + count)
