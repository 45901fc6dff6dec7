# Writes bytes to a mapped file.

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)


def store(view, Py_ssize_t position, data):
    """Without the GIL: a page fault may wait for the disk."""
    cdef Py_buffer into, given
    PyObject_GetBuffer(view, &into, PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(data, &given, PyBUF_SIMPLE)
        try:
            if position < 0 or given.len > into.len - position:
                raise ValueError(f"{given.len} bytes at {position} of a map of {into.len}")
            with nogil:
                memcpy(<char*> into.buf + position, given.buf, given.len)
        finally:
            PyBuffer_Release(&given)
    finally:
        PyBuffer_Release(&into)
