# The facts of records that another broker wrote: a slave's, read from its log to be dispatched.

from aerobee.protocol.files.record import NOT_IN_QUEUE as _NOT_IN_QUEUE
from aerobee.protocol.files.record_layout import (
    BLANK_SIZE as _BLANK_SIZE,
    MAGIC_V2 as _MAGIC_V2,
    V6_HOSTS as _V6_HOSTS,
)

cdef Py_ssize_t BLANK_SIZE = _BLANK_SIZE
cdef int32_t MAGIC_V2 = <int32_t>_MAGIC_V2
cdef int64_t NOT_IN_QUEUE = _NOT_IN_QUEUE
cdef int64_t V6_HOSTS = _V6_HOSTS

cdef enum:  # in a record's head
    MAGIC_AT = 4
    QUEUE_ID_AT = 12
    QUEUE_OFFSET_AT = 20
    PLACE_AT = 28
    SYS_FLAG_AT = 36
    TIME_AT = 56
    BODY_SIZE_AT = 84


cdef struct Parts:
    Py_ssize_t topic
    Py_ssize_t topic_size
    Py_ssize_t text
    Py_ssize_t text_size


cdef Py_ssize_t measure(const uint8_t* record, Py_ssize_t room, Parts* parts) noexcept nogil:
    """The size of the plain, whole record that begins here, and where its parts are; 0: not plain,
    left to Python."""
    cdef Py_ssize_t size, body, end
    if room <= RECORD_SIZE_MIN:
        return 0
    size = <int32_t>load_int(record, 4)
    body = <int32_t>load_int(record + BODY_SIZE_AT, 4)
    if <int32_t>load_int(record + MAGIC_AT, 4) != MAGIC or size > room:
        return 0
    if load_int(record + SYS_FLAG_AT, 4) & V6_HOSTS:
        return 0
    if body < 0 or HEAD_SIZE + body + 3 > size:
        return 0
    parts.topic = HEAD_SIZE + body + 1
    parts.topic_size = record[HEAD_SIZE + body]
    end = parts.topic + parts.topic_size
    if parts.topic_size == 0 or end + 2 > size:
        return 0
    parts.text = end + 2
    parts.text_size = load_int(record + end, 2)
    return size if parts.text + parts.text_size == size else 0


def read_facts(view, int64_t base, Py_ssize_t position, Py_ssize_t end, Py_ssize_t count, queue_of):
    """The facts of the first records between two positions of a log file that begins at `base`:
    `count` at most, and none from the first on that is not plain. `queue_of` gives the queue of a
    topic, in bytes, and a queue id; None: the topic is not a valid name."""
    cdef Facts facts = Facts()
    cdef Parts parts
    cdef Py_buffer buffer
    cdef const uint8_t* record
    cdef const uint8_t* topic = NULL
    cdef Py_ssize_t size, topic_size = 0
    cdef int64_t sys_flag
    cdef FactRow* row
    cdef dict queues = {}
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    try:
        end = min(end, buffer.len)
        while 0 <= position < end and facts.end < count:
            record = <const uint8_t*>buffer.buf + position
            size = measure(record, end - position, &parts)
            if not size or <int64_t>load_int(record + PLACE_AT, 8) != base + position:
                break
            if parts.topic_size != topic_size or memcmp(record + parts.topic, topic, topic_size):
                topic, topic_size = record + parts.topic, parts.topic_size
                queues = {}
            queue_id = <int32_t>load_int(record + QUEUE_ID_AT, 4)
            queue = queues.get(queue_id)
            if queue is None:
                queue = queue_of(topic[:topic_size], queue_id)
                if queue is None:
                    break
                queues[queue_id] = queue
                facts.kept[queue] = None
            facts.grow(1)
            row = facts.rows + facts.end
            sys_flag = <int32_t>load_int(record + SYS_FLAG_AT, 4)
            row.queue = <PyObject*>queue
            row.queue_offset = <int64_t>load_int(record + QUEUE_OFFSET_AT, 8)
            if sys_flag & NOT_IN_QUEUE:
                row.queue_offset = -1
            row.offset, row.size = base + position, size
            row.time_ms = <int64_t>load_int(record + TIME_AT, 8)
            row.sys_flag = sys_flag
            row.text, row.text_size = facts.text.size, parts.text_size
            facts.text.add(record + parts.text, parts.text_size)
            facts.end += 1
            position += size
    finally:
        PyBuffer_Release(&buffer)
    return facts


def whole_records(data, int64_t base, Py_ssize_t file_end):
    """How many bytes of `data`, which follows `base`, are whole records in their places; the first
    other one is left to Python. The file ends at `file_end` in `data`, or after it."""
    cdef Py_buffer buffer
    cdef const uint8_t* record
    cdef Py_ssize_t size, position = 0
    cdef int32_t magic
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    while buffer.len - position > HEAD_SIZE:
        record = <const uint8_t*>buffer.buf + position
        size = <int32_t>load_int(record, 4)
        magic = <int32_t>load_int(record + MAGIC_AT, 4)
        if magic != MAGIC and magic != MAGIC_V2:
            break
        if not HEAD_SIZE < size <= min(buffer.len - position, file_end - position - BLANK_SIZE):
            break
        if <int64_t>load_int(record + PLACE_AT, 8) != base + position:
            break
        position += size
    PyBuffer_Release(&buffer)
    return position
