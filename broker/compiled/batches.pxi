# Batches of messages that are not stored yet, checked only.


def sound_batch(const uint8_t[::1] body, bytes begin, Py_ssize_t properties_max):
    """How many messages are in a batch's body whose properties all begin with `begin`. 0: there is
    none, or something is wrong with one, which Python finds and names."""
    cdef Py_ssize_t at = 0, end = body.shape[0], size, length, text_at, count = 0
    cdef Py_ssize_t begin_size = len(begin)
    cdef const uint8_t* start = &body[0] if end else NULL
    while at < end:
        if end - at < BATCH_HEAD_SIZE + 2:
            return 0
        size = <int32_t>load_int(start + at, 4)
        length = <int32_t>load_int(start + at + BATCH_BODY_SIZE_AT, 4)
        if length < 0 or size > end - at or BATCH_HEAD_SIZE + length + 2 > size:
            return 0
        text_at = at + BATCH_HEAD_SIZE + length + 2
        at += size
        if <int64_t>load_int(start + text_at - 2, 2) != at - text_at:
            return 0
        length = at - text_at
        if length > properties_max or length < begin_size:
            return 0
        if memcmp(start + text_at, PyBytes_AS_STRING(begin), begin_size):
            return 0
        if not is_utf8(start + text_at, length):
            return 0
        count += 1
    return count
