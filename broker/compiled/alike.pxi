# JSON headers that repeat the one before, except for the values that differ from send to send. The
# bytes between these values are compared, not parsed again: a third of the time.

cdef struct Layout:
    Py_ssize_t begin  # of the header that was read last, in the same data; behind its code
    Py_ssize_t end  # 0: none was read yet
    Send send


cdef inline void note_varying(Send* send, int field, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Each of the fields comes once at most: there is room."""
    send.varying[send.varying_count] = field
    send.varying_begin[send.varying_count] = begin
    send.varying_end[send.varying_count] = end
    send.varying_count += 1


cdef bint json_send(
    Reader* reader, Send* send, Layout* layout, bint is_long, uint8_t* space
) noexcept nogil:
    """From behind the code, which is the first field."""
    cdef Py_ssize_t begin = reader.at
    if send.pairs == NULL and layout.end:
        if json_alike(reader, send, layout, space):
            return True
        reader.at = begin
        memset(send, 0, sizeof(Send))
    if not json_members(reader, send, is_long, space):
        return False
    layout.begin, layout.end, layout.send = begin, reader.end, send[0]
    return True


cdef bint json_alike(Reader* reader, Send* send, Layout* layout, uint8_t* space) noexcept nogil:
    """Match the header before: `send` gets its fields, and the varying values are parsed here."""
    cdef Py_ssize_t known = layout.begin
    cdef int k
    send[0] = layout.send
    send.varying_count = 0
    for k in range(layout.send.varying_count):
        send.seen &= ~(<uint32_t>1 << layout.send.varying[k])
    for k in range(layout.send.varying_count):
        if not is_same(reader, known, layout.send.varying_begin[k]):
            return False
        if layout.send.varying[k] == OPAQUE:
            if not json_frame_number(reader, send, OPAQUE):
                return False
        elif not json_field(reader, send, layout.send.varying[k], space):
            return False
        known = layout.send.varying_end[k]
    return is_same(reader, known, layout.end) and reader.at == reader.end


cdef inline bint is_same(Reader* reader, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Whether the next bytes repeat those from `begin` to `end`; if so they are consumed."""
    if reader.end - reader.at < end - begin:
        return False
    if memcmp(reader.data + reader.at, reader.data + begin, end - begin) != 0:
        return False
    reader.at += end - begin
    return True
