# The headers of sends in the three codecs. Each reader accepts what clients usually write. For
# everything else it returns False ("unusual") and the Python path decodes it: nothing is refused here.
#
# Every byte is read by `peek` or after a bounds check; texts are copied by `keep`.

cdef enum:
    VARYING_MAX = 4  # opaque, queue, born timestamp, properties


cdef struct Reader:
    const uint8_t* data
    Py_ssize_t at
    Py_ssize_t end


cdef struct Pair:
    Py_ssize_t name_at  # in the reader's data
    Py_ssize_t name_size
    Py_ssize_t at  # of the value: there, or in the properties' text
    Py_ssize_t size
    bint is_text


cdef struct Send:
    Pair* pairs  # all ext fields, only if a signature has to be checked
    int pair_count
    Py_ssize_t topic_at  # in the reader's data
    Py_ssize_t topic_size
    Py_ssize_t text_size  # of the properties, unescaped in the caller's buffer
    int64_t numbers[10]  # by field
    uint32_t seen  # bits by field
    # JSON: the fields whose values usually differ from send to send, and their positions.
    int varying[VARYING_MAX]
    int varying_count
    Py_ssize_t varying_begin[VARYING_MAX]
    Py_ssize_t varying_end[VARYING_MAX]


cdef enum:
    OPAQUE, FRAME_FLAG, TOPIC_QUEUES, QUEUE_ID, SYS_FLAG, BORN, FLAG, RECONSUMED, RETRIES_MAX, BATCH
    TOPIC, PROPERTIES, EXT, IGNORED


cdef enum:
    EXT_FIELDS_MAX = 64
    REQUIRED = 1 << OPAQUE | 1 << TOPIC_QUEUES | 1 << QUEUE_ID | 1 << SYS_FLAG | 1 << BORN | 1 << TOPIC
    # SEND_MESSAGE, with the long names, needs only these.
    REQUIRED_LONG = 1 << OPAQUE | 1 << TOPIC_QUEUES | 1 << QUEUE_ID | 1 << TOPIC


cdef inline int peek(Reader* reader) noexcept nogil:
    return reader.data[reader.at] if reader.at < reader.end else -1


cdef inline bint take(Reader* reader, int wanted) noexcept nogil:
    if reader.at < reader.end and reader.data[reader.at] == wanted:
        reader.at += 1
        return True
    return False


cdef inline bint is_fresh(Send* send, int field) noexcept nogil:
    """False: the header has had this field already."""
    if send.seen >> field & 1:
        return False
    send.seen |= <uint32_t>1 << field
    return True


cdef inline void note_pair(
    Send* send, int field, Py_ssize_t name_at, Py_ssize_t name_size, Py_ssize_t at, Py_ssize_t size
) noexcept nogil:
    """No bounds check: the callers' loops end at EXT_FIELDS_MAX."""
    cdef Pair* pair = send.pairs + send.pair_count
    pair.name_at, pair.name_size, pair.is_text = name_at, name_size, field == PROPERTIES
    if field == PROPERTIES:
        pair.at, pair.size = 0, send.text_size
    else:
        pair.at, pair.size = at, size
    send.pair_count += 1


cdef inline bint note_number(Send* send, int field, int64_t number) noexcept nogil:
    if field != BORN and not -0x80000000 <= number <= 0x7FFFFFFF:
        return False
    send.numbers[field] = number
    return True


cdef bint decimal(const uint8_t* text, Py_ssize_t size, int64_t* number) noexcept nogil:
    """An integer in its usual form: no plus sign, no leading zero, at most 18 digits."""
    cdef Py_ssize_t at = 0
    cdef bint negative = False
    cdef int64_t value = 0
    if size and text[0] == c'-':
        negative = True
        at = 1
    if size - at < 1 or size - at > 18 or (text[at] == c'0' and (size - at > 1 or negative)):
        return False
    while at < size:
        if not c'0' <= text[at] <= c'9':
            return False
        value = value * 10 + (text[at] - c'0')
        at += 1
    number[0] = -value if negative else value
    return True


cdef inline bint is_plain_text(const uint8_t* text, Py_ssize_t size) noexcept nogil:
    """Printable ASCII that JSON does not escape."""
    return <Py_ssize_t>same_bytes(text, size, True) == size


cdef int field_of(const uint8_t* name, Py_ssize_t size, bint is_long) noexcept nogil:
    if not is_long:
        if size == 1:
            if name[0] == c'b':
                return TOPIC
            if name[0] == c'd':
                return TOPIC_QUEUES
            if name[0] == c'e':
                return QUEUE_ID
            if name[0] == c'f':
                return SYS_FLAG
            if name[0] == c'g':
                return BORN
            if name[0] == c'h':
                return FLAG
            if name[0] == c'i':
                return PROPERTIES
            if name[0] == c'j':
                return RECONSUMED
            if name[0] == c'l':
                return RETRIES_MAX
            if name[0] == c'm':
                return BATCH
        return IGNORED
    if size == 5 and memcmp(name, b"topic", 5) == 0:
        return TOPIC
    if size == 21 and memcmp(name, b"defaultTopicQueueNums", 21) == 0:
        return TOPIC_QUEUES
    if size == 7 and memcmp(name, b"queueId", 7) == 0:
        return QUEUE_ID
    if size == 7 and memcmp(name, b"sysFlag", 7) == 0:
        return SYS_FLAG
    if size == 13 and memcmp(name, b"bornTimestamp", 13) == 0:
        return BORN
    if size == 4 and memcmp(name, b"flag", 4) == 0:
        return FLAG
    if size == 10 and memcmp(name, b"properties", 10) == 0:
        return PROPERTIES
    if size == 14 and memcmp(name, b"reconsumeTimes", 14) == 0:
        return RECONSUMED
    if size == 17 and memcmp(name, b"maxReconsumeTimes", 17) == 0:
        return RETRIES_MAX
    if size == 5 and memcmp(name, b"batch", 5) == 0:
        return BATCH
    return IGNORED


cdef bint note_text(
    Reader* reader, Send* send, int field, Py_ssize_t at, Py_ssize_t size, uint8_t* space
) noexcept nogil:
    """Note a field whose value is the text at `at`, without escapes."""
    cdef int64_t number = 0
    if field == PROPERTIES:
        memcpy(space, reader.data + at, size)
        send.text_size = size
        return True
    if field == TOPIC:
        send.topic_at = at
        send.topic_size = size
        return is_plain_text(reader.data + at, size)
    if field == BATCH:
        if size == 4 and memcmp(reader.data + at, b"true", 4) == 0:
            send.numbers[BATCH] = 1
            return True
        return size == 5 and memcmp(reader.data + at, b"false", 5) == 0
    return decimal(reader.data + at, size, &number) and note_number(send, field, number)


# --- JSON


cdef bint json_plain(Reader* reader, Py_ssize_t* at, Py_ssize_t* size) noexcept nogil:
    """A string without escapes, in ASCII; its bytes are at `at`."""
    if not take(reader, c'"'):
        return False
    at[0] = reader.at
    size[0] = same_bytes(reader.data + reader.at, reader.end - reader.at, True)
    reader.at += size[0]
    return take(reader, c'"')


cdef bint json_number(Reader* reader, int64_t* number) noexcept nogil:
    cdef Py_ssize_t start = reader.at
    if peek(reader) == c'-':
        reader.at += 1
    while c'0' <= peek(reader) <= c'9':
        reader.at += 1
    return decimal(reader.data + start, reader.at - start, number)


cdef bint json_word(Reader* reader, const char* word, Py_ssize_t size) noexcept nogil:
    if reader.end - reader.at < size or memcmp(reader.data + reader.at, word, size) != 0:
        return False
    reader.at += size
    return True


cdef bint json_ignored(Reader* reader) noexcept nogil:
    cdef Py_ssize_t at = 0, size = 0
    cdef int64_t number = 0
    cdef int first = peek(reader)
    if first == c'"':
        return json_plain(reader, &at, &size)
    if first == c'n':
        return json_word(reader, b"null", 4)
    if first == c't':
        return json_word(reader, b"true", 4)
    if first == c'f':
        return json_word(reader, b"false", 5)
    return json_number(reader, &number)


cdef int hex_digit(int byte) noexcept nogil:
    if c'0' <= byte <= c'9':
        return byte - c'0'
    if c'a' <= byte <= c'f':
        return byte - c'a' + 10
    if c'A' <= byte <= c'F':
        return byte - c'A' + 10
    return -1


cdef Py_ssize_t json_escape(Reader* reader, uint8_t* space) noexcept nogil:
    """Write the character of an escape, at most three bytes; how many. -1: unusual. One byte takes
    at least two bytes of the header, more take six."""
    cdef int byte, digit, number, k
    reader.at += 1
    byte = peek(reader)
    reader.at += 1
    if byte == c'u':
        number = 0
        for k in range(4):
            digit = hex_digit(peek(reader))
            if digit < 0:
                return -1
            number = number << 4 | digit
            reader.at += 1
        if number < 0x80:
            space[0] = number
            return 1
        if number < 0x800:
            space[0] = 0xC0 | number >> 6
            space[1] = 0x80 | (number & 0x3F)
            return 2
        if 0xD800 <= number < 0xE000:  # half of a surrogate pair
            return -1
        space[0] = 0xE0 | number >> 12
        space[1] = 0x80 | (number >> 6 & 0x3F)
        space[2] = 0x80 | (number & 0x3F)
        return 3
    if byte == c'"' or byte == c'\\' or byte == c'/':
        space[0] = byte
    elif byte == c'n':
        space[0] = 10
    elif byte == c't':
        space[0] = 9
    elif byte == c'r':
        space[0] = 13
    elif byte == c'b':
        space[0] = 8
    elif byte == c'f':
        space[0] = 12
    else:
        return -1
    return 1


cdef bint json_properties(Reader* reader, Send* send, uint8_t* space) noexcept nogil:
    """A string with escapes. Unescaped it is never longer than in the header, and the buffer is as
    large as the header."""
    cdef Py_ssize_t size = 0, same, written
    if not take(reader, c'"'):
        return False
    while True:
        same = same_bytes(reader.data + reader.at, reader.end - reader.at, False)
        memcpy(space + size, reader.data + reader.at, same)
        size += same
        reader.at += same
        if take(reader, c'"'):
            send.text_size = size
            return True
        if peek(reader) != c'\\':
            return False
        written = json_escape(reader, space + size)
        if written < 0:
            return False
        size += written


include "alike.pxi"


cdef bint json_field(Reader* reader, Send* send, int field, uint8_t* space) noexcept nogil:
    cdef Py_ssize_t begin = reader.at
    if field == IGNORED:
        return json_ignored(reader)
    if not is_fresh(send, field) or not json_value(reader, send, field, space):
        return False
    if field == QUEUE_ID or field == BORN or field == PROPERTIES:
        note_varying(send, field, begin, reader.at)
    return True


cdef bint json_value(Reader* reader, Send* send, int field, uint8_t* space) noexcept nogil:
    cdef Py_ssize_t at = 0, size = 0
    cdef int64_t number = 0
    if field == PROPERTIES:
        return json_properties(reader, send, space)
    if peek(reader) == c'"':
        return json_plain(reader, &at, &size) and note_text(reader, send, field, at, size, space)
    if field == TOPIC:
        return False
    if field == BATCH:
        return json_word(reader, b"false", 5)
    return json_number(reader, &number) and note_number(send, field, number)


cdef bint json_ext(Reader* reader, Send* send, bint is_long, uint8_t* space) noexcept nogil:
    cdef Py_ssize_t at = 0, size = 0, begin
    cdef int k, field
    if not take(reader, c'{'):
        return False
    for k in range(EXT_FIELDS_MAX):
        if not json_plain(reader, &at, &size) or not take(reader, c':'):
            return False
        begin = reader.at
        field = field_of(reader.data + at, size, is_long)
        if send.pairs != NULL and peek(reader) != c'"':
            return False  # the Python path knows how a bare number is signed
        if not json_field(reader, send, field, space):
            return False
        if send.pairs != NULL:  # between the quotes
            note_pair(send, field, at, size, begin + 1, reader.at - begin - 2)
        if take(reader, c'}'):
            return True
        if not take(reader, c','):
            return False
    return False


cdef bint json_frame_number(Reader* reader, Send* send, int field) noexcept nogil:
    cdef Py_ssize_t begin = reader.at
    cdef int64_t number = 0
    if not is_fresh(send, field) or not json_number(reader, &number):
        return False
    if field == OPAQUE:
        note_varying(send, field, begin, reader.at)
    return note_number(send, field, number)


cdef bint json_members(Reader* reader, Send* send, bint is_long, uint8_t* space) noexcept nogil:
    cdef Py_ssize_t at = 0, size = 0
    cdef const uint8_t* name
    while True:
        if not json_plain(reader, &at, &size) or not take(reader, c':'):
            return False
        name = reader.data + at
        if size == 9 and memcmp(name, b"extFields", 9) == 0:
            if not is_fresh(send, EXT) or not json_ext(reader, send, is_long, space):
                return False
        elif (size == 6 and memcmp(name, b"opaque", 6) == 0) or (
            size == 4 and memcmp(name, b"flag", 4) == 0
        ):
            if not json_frame_number(reader, send, OPAQUE if size == 6 else FRAME_FLAG):
                return False
        elif not json_ignored(reader):
            return False
        if take(reader, c'}'):
            take(reader, c'\n')  # the C++ client ends its header so
            return reader.at == reader.end
        if not take(reader, c','):
            return False


# --- ROCKETMQ


cdef inline bint big_endian(Reader* reader, int width, int64_t* number) noexcept nogil:
    """A signed integer of `width` bytes."""
    cdef uint64_t value = 0
    cdef int k
    if reader.end - reader.at < width:
        return False
    for k in range(width):
        value = value << 8 | reader.data[reader.at + k]
    reader.at += width
    if width < 8 and value >> (8 * width - 1):
        value -= <uint64_t>1 << (8 * width)
    number[0] = <int64_t>value
    return True


cdef bint binary_send(Reader* reader, Send* send, uint8_t* space) noexcept nogil:
    """What follows the code: language, version, opaque, flag, remark, ext fields."""
    cdef int64_t size = 0, number = 0
    cdef Py_ssize_t name_at, name_size
    cdef int field, k
    if reader.end - reader.at < 3:
        return False
    reader.at += 3
    for k in range(2):
        field = FRAME_FLAG if k else OPAQUE
        if not big_endian(reader, 4, &number):
            return False
        send.numbers[field] = number
        send.seen |= <uint32_t>1 << field
    if not big_endian(reader, 4, &size) or size != 0:
        return False
    if not big_endian(reader, 4, &size) or size != reader.end - reader.at:
        return False
    for k in range(EXT_FIELDS_MAX):
        if reader.at == reader.end:
            return True
        if not big_endian(reader, 2, &size) or size < 0 or size > reader.end - reader.at:
            return False
        name_at, name_size = reader.at, size
        if not is_plain_text(reader.data + name_at, name_size):
            return False
        reader.at += size
        if not big_endian(reader, 4, &size) or size < 0 or size > reader.end - reader.at:
            return False
        field = field_of(reader.data + name_at, name_size, False)
        if field == IGNORED:
            if not is_plain_text(reader.data + reader.at, size):
                return False
        elif size == 0 and field != PROPERTIES:  # a null
            return False
        elif not is_fresh(send, field) or not note_text(
            reader, send, field, reader.at, size, space
        ):
            return False
        if send.pairs != NULL:
            note_pair(send, field, name_at, name_size, reader.at, size)
        reader.at += size
    return False


# --- MessagePack


cdef bint packed_number(Reader* reader, int64_t* number) noexcept nogil:
    cdef int first = peek(reader)
    reader.at += 1
    if first < 0:
        return False
    if first < 0x80:
        number[0] = first
        return True
    if first >= 0xE0:
        number[0] = first - 0x100
        return True
    if 0xCC <= first <= 0xCE:  # unsigned, of 1, 2 or 4 bytes
        if not big_endian(reader, 1 << (first - 0xCC), number):
            return False
        if number[0] < 0:
            number[0] += <int64_t>1 << (8 << (first - 0xCC))
        return True
    if first == 0xCF:
        return big_endian(reader, 8, number) and number[0] >= 0
    if 0xD0 <= first <= 0xD3:
        return big_endian(reader, 1 << (first - 0xD0), number)
    return False


cdef bint packed_text(Reader* reader, Py_ssize_t* at, Py_ssize_t* size) noexcept nogil:
    cdef int first = peek(reader)
    cdef int64_t length = 0
    reader.at += 1
    if 0xA0 <= first < 0xC0:
        length = first - 0xA0
    elif 0xD9 <= first <= 0xDB:
        if not big_endian(reader, 1 << (first - 0xD9), &length):
            return False
        if length < 0:
            length += <int64_t>1 << (8 << (first - 0xD9))
    else:
        return False
    if length > reader.end - reader.at:
        return False
    at[0], size[0] = reader.at, length
    reader.at += length
    return True


cdef bint packed_send(Reader* reader, Send* send, uint8_t* space) noexcept nogil:
    """What follows the code: flag, opaque, language, version, remark, ext fields."""
    cdef int64_t number = 0
    cdef Py_ssize_t at = 0, size = 0, name_at, name_size
    cdef int field, first, fields, k
    for k in range(4):
        field = FRAME_FLAG if k == 0 else OPAQUE if k == 1 else IGNORED
        if not packed_number(reader, &number) or not -0x80000000 <= number <= 0x7FFFFFFF:
            return False
        if field != IGNORED:
            send.numbers[field] = number
            send.seen |= <uint32_t>1 << field
    if not take(reader, 0xC0):  # no remark
        return False
    first = peek(reader)
    reader.at += 1
    if 0x80 <= first < 0x90:
        number = first - 0x80
    elif first != 0xDE or not big_endian(reader, 2, &number):
        return False
    if not 0 <= number <= EXT_FIELDS_MAX:
        return False
    fields = <int>number
    for k in range(fields):
        if not packed_text(reader, &at, &size) or not is_plain_text(reader.data + at, size):
            return False
        name_at, name_size = at, size
        field = field_of(reader.data + at, size, False)
        if field != IGNORED and not is_fresh(send, field):
            return False
        first = peek(reader)
        if 0xA0 <= first < 0xC0 or 0xD9 <= first <= 0xDB:
            if not packed_text(reader, &at, &size):
                return False
            if field == IGNORED:
                if not is_plain_text(reader.data + at, size):
                    return False
            elif not note_text(reader, send, field, at, size, space):
                return False
            if send.pairs != NULL:
                note_pair(send, field, name_at, name_size, at, size)
        elif send.pairs != NULL:
            return False
        elif field == BATCH:
            if not take(reader, 0xC2):  # false
                return False
        elif field == IGNORED and (first == 0xC0 or first == 0xC2 or first == 0xC3):
            reader.at += 1
        elif field == TOPIC or field == PROPERTIES or not packed_number(reader, &number):
            return False
        elif field != IGNORED and not note_number(send, field, number):
            return False
    return reader.at == reader.end
