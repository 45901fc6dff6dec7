# The entries of an index file for many keys at once, and its slots.

from cpython.buffer cimport PyBUF_WRITABLE

from aerobee.protocol.files.index_layout import INDEX_ENTRY as _INDEX_ENTRY
from aerobee.protocol.files.index_layout import SECONDS_MAX as _SECONDS_MAX
from aerobee.protocol.files.index_layout import SLOT as _SLOT

if (_INDEX_ENTRY.format, _SLOT.format) != (">iqii", ">i"):
    raise ImportError("this build does not know the layout of the index any more; install again")

cdef int64_t SECONDS_MAX = _SECONDS_MAX


@cython.final
cdef class Numbers:
    """A column of 64-bit numbers, or bytes to be written to, for as long as this is there."""

    cdef Py_buffer buffer
    cdef bint held

    def __cinit__(self, column, bint writable=False):
        PyObject_GetBuffer(column, &self.buffer, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef struct Met:
    int64_t slot  # -1: none
    int64_t number


def index_entries(table, int64_t slots, int64_t count, int64_t begin_ms, hashes, offsets, times):
    """The entries from number `count` on, and how many slots they are the first of. Nothing is
    changed: `index_slots` is called once they are written."""
    cdef Numbers known = Numbers(table), keys = Numbers(hashes), places = Numbers(offsets)
    cdef Numbers moments = Numbers(times)
    cdef Py_ssize_t amount = keys.buffer.len // 8, number, room = 16, at
    cdef const int64_t* key_hashes = <const int64_t*>keys.buffer.buf
    cdef const uint8_t* newest = <const uint8_t*>known.buffer.buf
    cdef int64_t slot, previous, seconds, used = 0
    cdef Met* met
    cdef bytes entries
    cdef uint8_t* to
    if places.buffer.len != keys.buffer.len or moments.buffer.len != keys.buffer.len:
        raise ValueError("columns of different lengths")
    if slots <= 0 or known.buffer.len < slots * 4:
        raise ValueError("the table has not so many slots")
    while room < 2 * amount:
        room *= 2
    entries = PyBytes_FromStringAndSize(NULL, amount * 20)
    to = <uint8_t*>PyBytes_AS_STRING(entries)
    met = <Met*>malloc(room * sizeof(Met))  # the slots of this batch, by open addressing
    if met == NULL:
        raise MemoryError
    try:
        for at in range(room):
            met[at].slot = -1
        for number in range(amount):
            if key_hashes[number] < 0:
                raise ValueError("a hash is not folded")
            slot = key_hashes[number] % slots
            at = slot & (room - 1)
            while met[at].slot != slot and met[at].slot >= 0:
                at = (at + 1) & (room - 1)
            if met[at].slot == slot:
                previous = met[at].number
            else:
                previous = <int32_t><uint32_t>load_int(newest + slot * 4, 4)
                if not 0 < previous < count:
                    previous = 0
                    used += 1
            met[at].slot, met[at].number = slot, count + number
            seconds = 0
            if begin_ms > 0 and (<const int64_t*>moments.buffer.buf)[number] > begin_ms:
                seconds = ((<const int64_t*>moments.buffer.buf)[number] - begin_ms) // 1000
                seconds = min(seconds, SECONDS_MAX)
            store_int(to, <uint64_t>key_hashes[number], 4)
            store_int(to + 4, <uint64_t>(<const int64_t*>places.buffer.buf)[number], 8)
            store_int(to + 12, <uint64_t>seconds, 4)
            store_int(to + 16, <uint64_t>previous, 4)
            to += 20
    finally:
        free(met)
    return entries, used


def index_slots(table, changed, int64_t slots, int64_t slots_per_piece, int64_t count, hashes):
    """Set the entries from number `count` on, with these hashes, as the newest of their slots, and
    mark the changed pieces of the table."""
    cdef Numbers newest = Numbers(table, True), pieces = Numbers(changed, True)
    cdef Numbers keys = Numbers(hashes)
    cdef Py_ssize_t number
    cdef int64_t slot
    if slots <= 0 or newest.buffer.len < slots * 4 or slots_per_piece <= 0:
        raise ValueError("the table has not so many slots")
    if pieces.buffer.len * slots_per_piece < slots:
        raise ValueError("the table has more pieces")
    for number in range(keys.buffer.len // 8):
        slot = (<const int64_t*>keys.buffer.buf)[number] % slots
        if slot < 0:
            raise ValueError("a hash is not folded")
        store_int(<uint8_t*>newest.buffer.buf + slot * 4, <uint64_t>(count + number), 4)
        (<uint8_t*>pieces.buffer.buf)[slot // slots_per_piece] = 1
