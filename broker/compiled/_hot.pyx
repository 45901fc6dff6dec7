# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True
# cython: binding=False, embedsignature=False
"""The plain sends of a read in one pass of C: from a frame's bytes to its record and its answer.

It does the same as `fast.hot_path` and `store.log.commitlog`, for the plain case only: every other
frame is left to the Python path. Names, layout and templates come from there; the import fails if
the layout has changed.

Memory: frames are read in place, from the bytes that the socket gave, within bounds that were
checked when the frame was cut. Texts are copied to a buffer that `_grow` has enlarged before. The
bytes of a record are allocated with exactly its computed size.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from aerobee.protocol.files.batch import BATCH_HEAD as _BATCH_HEAD
from aerobee.protocol.files.record_layout import (
    CRC_MASK as _CRC_MASK,
    CRC_NAME as _CRC_NAME,
    CRC_PROPERTY_SIZE as _CRC_PROPERTY_SIZE,
    HEAD_V4 as _HEAD_V4,
    MAGIC_V1 as _MAGIC_V1,
)

cdef extern from "crc.h":
    void crc_begin(int may_use_lanes) nogil
    uint32_t crc_of(uint32_t crc, const uint8_t* data, size_t size) nogil
    uint32_t crc_by_tables(uint32_t crc, const uint8_t* data, size_t size) nogil
    uint32_t crc_power(uint64_t n) nogil
    uint32_t crc_join(uint32_t first, uint32_t second, uint32_t shift) nogil

cdef extern from "text.h":
    size_t same_bytes(const uint8_t* text, size_t size, int ascii) nogil

include "headers.pxi"
include "signing.pxi"

if (_HEAD_V4.format, _BATCH_HEAD.format) != (">iiiiiqqiq8sq8siqi", ">iiiii") or (
    len(_CRC_NAME) != 9 or _CRC_PROPERTY_SIZE != 20
):
    raise ImportError("this build does not know the layout of records any more; install again")

cdef enum:
    HEAD_SIZE = 88
    RECORD_SIZE_MIN = 90  # including the length of the properties
    CRC_SIZE = 20
    BATCH_HEAD_SIZE = 20
    BATCH_BODY_SIZE_AT = 16
    CRC_MASK = 0x7FFFFFFF
    NAME_END = 1
    PAIR_END = 2
    KEY_MAX = 256
    BATCH_ROOM = 64  # messages; it grows
    BATCH_CODE = 320
    PLACES = 32
    JSON = 0
    ROCKETMQ = 1
    MSGPACK = 2
    RESPONSE_FLAG = 1
    ONEWAY_FLAG = 2
    FORMS_MAX = 4096

cdef int32_t MAGIC = _MAGIC_V1
cdef bytes CRC_NAME = _CRC_NAME
assert _CRC_MASK == CRC_MASK
crc_begin(True)


def crc32(const uint8_t[::1] data, uint32_t crc=0, *, bint by_tables=False):
    """zlib's CRC-32; for tests."""
    cdef const uint8_t* start = &data[0] if data.shape[0] else NULL
    if by_tables:
        return crc_by_tables(crc, start, data.shape[0])
    return crc_of(crc, start, data.shape[0])


def crc32_joined(uint32_t first, uint32_t second, uint64_t second_size):
    """The CRC-32 of two pieces from the CRC-32 of each."""
    return crc_join(first, second, crc_power(8 * second_size))


# --- shared by all connections


@cython.final
cdef class Rules:
    """What makes a property text unusual, and what is added to it. `names`: a text that holds one
    of them, anywhere, is unusual; `no_wait` only where answers wait for the disk. `sys_flags`: the
    bits that are unusual."""

    cdef tuple _names
    # By byte: the names that have it first, and second, as bits; bit 0: the unique key's name.
    cdef uint16_t _first[256]
    cdef uint16_t _second[256]
    cdef readonly bytes added
    cdef int64_t _sys_flags

    def __init__(self, bytes unique, bytes no_wait, names, int64_t sys_flags, bytes added):
        if not added or added[len(added) - 1] != PAIR_END or len(names) > 14:
            raise ValueError("no plain send with these")
        self.added = added
        self._sys_flags = sys_flags
        self._names = (unique, no_wait, *names)
        memset(self._first, 0, sizeof(self._first))
        memset(self._second, 0, sizeof(self._second))
        for number, name in enumerate(self._names):
            if not isinstance(name, bytes) or len(name) < 2:
                raise ValueError("a name has two bytes at least")
            self._first[<uint8_t>name[0]] |= 1 << number
            self._second[<uint8_t>name[1]] |= 1 << number

    cdef Py_ssize_t unique_key(self, const uint8_t* text, Py_ssize_t size, bint waits) except -2:
        """Where the unique key begins: after its last name. -1: the text is unusual."""
        cdef Py_ssize_t name_at = self.scan(text, size, waits)
        if name_at < 0 or (name_at and text[name_at - 1] != PAIR_END):
            return -1  # there is none, or this is the end of another name
        return name_at + PyBytes_GET_SIZE(<bytes>self._names[0])

    cdef Py_ssize_t scan(self, const uint8_t* text, Py_ssize_t size, bint waits) except -3:
        """Position of the last name of a unique key; -1: none, -2: the text is unusual."""
        cdef Py_ssize_t at, length, name_at = -1
        cdef uint16_t which
        cdef int number
        cdef bytes name
        for at in range(size - 1):
            which = self._first[text[at]] & self._second[text[at + 1]]
            if not which:
                continue
            number = 0
            while which:
                if which & 1 and (waits or number != 1):
                    name = <bytes>self._names[number]
                    length = PyBytes_GET_SIZE(name)
                    if length <= size - at and memcmp(text + at, PyBytes_AS_STRING(name), length) == 0:
                        if number:
                            return -2
                        name_at = at
                which >>= 1
                number += 1
        return name_at


@cython.final
cdef class Answers:
    """The answers to stored messages. `json`: the pieces between physical offset, queue id, queue
    offset, unique key and opaque; `form` gives those for the other codecs, by the values that
    determine their lengths."""

    cdef tuple _json
    cdef object _form
    cdef dict _forms

    def __init__(self, tuple json, form):
        if len(json) != 6 or any(type(piece) is not bytes for piece in json):
            raise ValueError("six pieces")
        self._json = json
        self._form = form
        self._forms = {}

    cdef tuple form(self, int codec, int64_t opaque, int opaque_size, int64_t queue_id,
                    int64_t queue_offset, int digits, Py_ssize_t key_size):
        cdef object which = (
            <int64_t>codec << 60 | <int64_t>opaque_size << 56 | <int64_t>digits << 48
            | <int64_t>key_size << 36 | queue_id
        )
        found = self._forms.get(which)
        if found is None:
            if len(self._forms) >= FORMS_MAX:
                self._forms.clear()
            found = self._form(codec, opaque, queue_id, queue_offset, key_size)
            if len(found) != 5 or any(type(piece) is not bytes for piece in found):
                raise ValueError("five pieces")
            self._forms[which] = found
        return <tuple>found


# --- bytes that grow


@cython.final
cdef class Space:
    """A growing buffer; call `_grow` with the most that is going to be written first."""

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t room

    def __dealloc__(self):
        free(self.data)

    cdef int grow(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room
        cdef uint8_t* moved
        if self.room - self.size < more or self.data == NULL:
            room = 2 * self.room + more + 64
            moved = <uint8_t*>realloc(self.data, room)
            if moved == NULL:
                raise MemoryError
            self.data, self.room = moved, room
        return 0

    cdef int add(self, const void* data, Py_ssize_t size) except -1:
        self.grow(size)
        memcpy(self.data + self.size, data, size)
        self.size += size
        return 0

    cdef int add_bytes(self, bytes data) except -1:
        return self.add(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef int add_decimal(self, int64_t number) except -1:
        cdef char digits[24]
        cdef int at = 24
        cdef uint64_t rest = <uint64_t>number if number >= 0 else 0 - <uint64_t>number
        while True:
            at -= 1
            digits[at] = <char>(c'0' + <char>(rest % 10))
            rest = rest // 10
            if not rest:
                break
        if number < 0:
            at -= 1
            digits[at] = c'-'
        return self.add(digits + at, 24 - at)

    cdef int add_hexadecimal(self, uint64_t number) except -1:
        """Sixteen digits."""
        cdef char digits[16]
        cdef int k, digit
        for k in range(16):
            digit = <int>(number >> (60 - 4 * k)) & 15
            digits[k] = <char>(digit + (c'0' if digit < 10 else c'A' - 10))
        return self.add(digits, 16)

    cdef int add_int(self, uint64_t number, int width) except -1:
        """Big-endian."""
        cdef uint8_t written[8]
        store_int(written, number, width)
        return self.add(written, width)

    cdef int add_packed(self, int64_t number) except -1:
        """The shortest form that MessagePack has for an integer of 32 bits."""
        cdef int width = packed_size(number) - 1
        if not width:
            return self.add_int(<uint64_t>number, 1)
        if number >= 0:
            self.add_int(0xCC if width == 1 else 0xCD if width == 2 else 0xCE, 1)
        else:
            self.add_int(0xD0 if width == 1 else 0xD1 if width == 2 else 0xD2, 1)
        return self.add_int(<uint64_t>number, width)


cdef inline int packed_size(int64_t number) noexcept nogil:
    if -32 <= number < 128:
        return 1
    if number >= 0:
        return 2 if number < 1 << 8 else 3 if number < 1 << 16 else 5
    return 2 if number >= -(1 << 7) else 3 if number >= -(1 << 15) else 5


cdef inline void store_int(uint8_t* to, uint64_t number, int width) noexcept nogil:
    cdef int k
    for k in range(width):
        to[width - 1 - k] = <uint8_t>(number >> (8 * k))


cdef inline int digits_of(int64_t number) noexcept nogil:
    cdef int digits = 1
    while number > 9:
        number = number // 10
        digits += 1
    return digits


include "facts.pxi"


cdef inline bint is_ascii(const uint8_t* text, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t at
    cdef uint8_t bits = 0
    for at in range(size):
        bits |= text[at]
    return bits < 0x80


cdef bint is_utf8(const uint8_t* text, Py_ssize_t size) except -1:
    if is_ascii(text, size):
        return True
    try:
        PyUnicode_DecodeUTF8(<const char*>text, size, NULL)
    except UnicodeDecodeError:
        return False
    return True


# --- frames


cdef struct Bounds:
    Py_ssize_t header
    Py_ssize_t body
    Py_ssize_t end
    int codec


@cython.final
cdef class Frames:
    """The complete frames at the start of `data`, or of its first `size` bytes, cut lazily. `stop`:
    where the first incomplete one begins; `bad`: that is not a frame."""

    cdef bytes _data
    cdef Py_ssize_t _size
    cdef Bounds* _bounds
    cdef Py_ssize_t _count
    cdef readonly Py_ssize_t stop
    cdef readonly Py_ssize_t wanted  # bytes from `stop` on without which no frame can be cut
    cdef readonly bint bad

    def __cinit__(self, bytes data not None, Py_ssize_t length_max, Py_ssize_t size=-1):
        cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t at = 0, room = 0, header_end, end
        cdef Bounds* moved
        cdef int64_t length
        cdef int codec
        if size < 0:
            size = PyBytes_GET_SIZE(data)
        elif size > PyBytes_GET_SIZE(data):
            raise ValueError("there are not so many bytes")
        self._data, self._size = data, size
        self.wanted = 8
        while size - at >= 8:
            length = <int32_t>(
                <uint32_t>start[at] << 24 | <uint32_t>start[at + 1] << 16
                | <uint32_t>start[at + 2] << 8 | start[at + 3]
            )
            codec = start[at + 4]
            header_end = at + 8 + (
                <Py_ssize_t>start[at + 5] << 16 | <Py_ssize_t>start[at + 6] << 8 | start[at + 7]
            )
            end = at + 4 + length
            if header_end > end or not 4 <= length <= length_max or codec > MSGPACK:
                self.bad = True
                break
            if end > size:
                self.wanted = end - at
                break
            if self._count == room:
                room = 2 * room + 16
                moved = <Bounds*>realloc(self._bounds, room * sizeof(Bounds))
                if moved == NULL:
                    raise MemoryError
                self._bounds = moved
            self._bounds[self._count].header = at + 8
            self._bounds[self._count].body = header_end
            self._bounds[self._count].end = end
            self._bounds[self._count].codec = codec
            self._count += 1
            at = end
        self.stop = at

    def __dealloc__(self):
        free(self._bounds)

    def __len__(self):
        return self._count

    def __iter__(self):
        cdef Cursor cursor = Cursor.__new__(Cursor)
        cursor._frames = self
        return cursor

    def rest(self):
        """The bytes from `stop` on."""
        return PyBytes_FromStringAndSize(
            PyBytes_AS_STRING(self._data) + self.stop, self._size - self.stop
        )

    cdef tuple cut(self, Py_ssize_t number):
        cdef Bounds* bounds = self._bounds + number
        return (
            bounds.codec,
            self._data[bounds.header : bounds.body],
            self._data[bounds.body : bounds.end],
        )

    cdef int code_of(self, Py_ssize_t number) noexcept:
        """310 or 10 for a possible plain send; else 0."""
        cdef Bounds* bounds = self._bounds + number
        cdef const uint8_t* header = <const uint8_t*>PyBytes_AS_STRING(self._data) + bounds.header
        cdef Py_ssize_t size = bounds.body - bounds.header
        if bounds.codec == JSON:
            if size < 12:
                return 0
            if memcmp(header, b'{"code":310,', 12) == 0:
                return 310
            return 10 if memcmp(header, b'{"code":10,"', 12) == 0 else 0
        if bounds.codec == ROCKETMQ:
            return 310 if size > 2 and header[0] == 1 and header[1] == 0x36 else 0
        return 310 if size > 4 and memcmp(header, b"\x97\xcd\x01\x36", 4) == 0 else 0

    cdef bint is_batch(self, Py_ssize_t number) noexcept:
        """Whether it begins as SEND_BATCH_MESSAGE does."""
        cdef Bounds* bounds = self._bounds + number
        cdef const uint8_t* header = <const uint8_t*>PyBytes_AS_STRING(self._data) + bounds.header
        cdef Py_ssize_t size = bounds.body - bounds.header
        if bounds.codec == JSON:
            return size >= 12 and memcmp(header, b'{"code":320,', 12) == 0
        if bounds.codec == ROCKETMQ:
            return size > 2 and header[0] == 1 and header[1] == 0x40
        return size > 4 and memcmp(header, b"\x97\xcd\x01\x40", 4) == 0


@cython.final
cdef class Cursor:
    """Iterates over frames, one by one or by runs of plain sends."""

    cdef Frames _frames
    cdef Py_ssize_t _next

    def __length_hint__(self):
        return self._frames._count - self._next

    def __iter__(self):
        return self

    def __next__(self):
        if self._next >= self._frames._count:
            raise StopIteration
        self._next += 1
        return self._frames.cut(self._next - 1)

    def next_kind(self):
        """1: the next frame begins as sends do that may be plain; 2: as batches do; else 0; -1:
        there is none."""
        if self._next >= self._frames._count:
            return -1
        if self._frames.code_of(self._next):
            return 1
        return 2 if self._frames.is_batch(self._next) else 0

    def skip(self, Py_ssize_t count):
        """Skip the next frames, which were handled."""
        if not 0 <= count <= self._frames._count - self._next:
            raise ValueError("there are not so many")
        self._next += count

    def batches(self, dict plain, Rules rules, bytes born_host, bytes store_host,
                Py_ssize_t body_size_max, is_unusual, Py_ssize_t most):
        """The next frames, `most` at most, as batches of plain messages to one topic; they stay the
        next ones. `is_unusual` checks the properties of a request. None: the next frame is no batch,
        or unusual."""
        cdef Run run
        cdef Bounds* bounds
        cdef Frames frames = self._frames
        cdef Py_ssize_t number
        if len(born_host) != 8 or len(store_host) != 8:
            return None
        run = Run.__new__(Run)
        run.begin(frames._data, BATCH_ROOM, plain, rules, born_host, store_host, True)
        for number in range(self._next, min(frames._count, self._next + most)):
            bounds = frames._bounds + number
            if not frames.is_batch(number) or bounds.end - bounds.body > body_size_max:
                break
            if not run.take_batch_frame(bounds, is_unusual):
                break
        return run if run._requests else None

    cpdef Run sends(self, dict plain, Rules rules, bytes born_host, bytes store_host, bint waits,
                    Signer signer=None):
        """Take the plain sends that come next: of one codec and code, and if a signer is given, only
        those with its valid signature. None: there is none."""
        cdef Run run
        cdef Frames frames = self._frames
        cdef int codec, code, run_codec = -1, run_code = 0
        cdef Py_ssize_t dropped
        if len(born_host) != 8 or len(store_host) != 8 or self._next >= frames._count:
            return None
        run = Run.__new__(Run)
        run.begin(
            frames._data, frames._count - self._next, plain, rules, born_host, store_host, waits
        )
        run._signer = signer
        if signer is not None:
            signer.forget()  # state left by an exception
        while self._next < frames._count:
            codec = frames._bounds[self._next].codec
            code = frames.code_of(self._next)
            if not code or (run._count and (codec != run_codec or code != run_code)):
                break
            run_codec, run_code = codec, code
            if not run.take(frames._bounds + self._next, code):
                break
            self._next += 1
            if signer is not None and signer.is_full() and (dropped := run.drop_forged()):
                self._next -= dropped
                break
        if signer is not None:
            self._next -= run.drop_forged()
        if not run._count:
            return None
        run.codec, run.code = run_codec, run_code
        return run


include "inbox.pxi"


def sends_of(data, Py_ssize_t length_max, dict plain, Rules rules, bytes born_host,
             bytes store_host, bint waits):
    """The sends of a read that has only complete frames with plain sends, which `Cursor` would take
    in one run. None: it has to be parsed frame by frame."""
    cdef Frames frames
    cdef Cursor cursor
    cdef Py_ssize_t number
    if type(data) is not bytes:
        return None
    frames = Frames(data, length_max)
    if frames.stop != PyBytes_GET_SIZE(frames._data):
        return None
    for number in range(frames._count):
        if not frames.code_of(number):
            return None
    cursor = Cursor.__new__(Cursor)
    cursor._frames = frames
    run = cursor.sends(plain, rules, born_host, store_host, waits, None)
    return run if cursor._next == frames._count else None


# --- a run of sends


cdef struct Entry:
    Py_ssize_t body
    Py_ssize_t body_end
    Py_ssize_t text  # in the run's space
    Py_ssize_t text_size
    Py_ssize_t key  # in the run's space
    Py_ssize_t key_size
    Py_ssize_t queue  # index in the run's queues
    int open_pair  # 1: the text needs a separator before another pair
    int64_t numbers[10]
    int64_t queue_offset
    int64_t offset
    Py_ssize_t size


@cython.final
cdef class Run:
    """Plain sends of one codec and code. A sequence of rows for `append_rows`, which encodes them
    here, and of what their answers need."""

    cdef bytes _data
    cdef Entry* _entries
    cdef Py_ssize_t _room
    cdef Py_ssize_t _count
    cdef readonly Py_ssize_t encoded  # how many the last `encode` encoded
    cdef Space _space
    cdef dict _plain
    cdef Rules _rules
    cdef bytes _born_host
    cdef bytes _store_host
    cdef readonly bint waits
    cdef Signer _signer
    cdef list _queues
    cdef bytes _topic
    cdef dict _topic_queues
    cdef uint8_t _places[PLACES]  # by queue id: index in the run's queues plus 1; 0: none
    cdef readonly int codec
    cdef readonly int code
    cdef Layout _layout  # of the last JSON header
    cdef bint _is_settled
    cdef list _requests  # of batches: codec, opaque, flag, properties, first message, end

    @property
    def topic(self):
        """That of the first message."""
        return self._queues[0].topic

    def __dealloc__(self):
        free(self._entries)

    def __len__(self):
        return self._count

    cdef int begin(self, bytes data, Py_ssize_t most, dict plain, Rules rules, bytes born_host,
                   bytes store_host, bint waits) except -1:
        self._data = data
        self._plain, self._rules = plain, rules
        self._born_host, self._store_host = born_host, store_host
        self.waits = waits
        self._space = Space.__new__(Space)
        self._space.grow(0)  # even an empty text needs an address
        self._queues = []
        self._requests = []
        self._entries = <Entry*>malloc(most * sizeof(Entry))
        if self._entries == NULL:
            raise MemoryError
        self._room = most
        return 0

    # -- parsing

    cdef bint take(self, Bounds* bounds, int code) except -1:
        """Add the next frame; False: it is unusual."""
        cdef Reader reader
        cdef Send send
        cdef Entry* entry
        cdef Space space = self._space
        cdef uint8_t* text
        cdef Pair pairs[EXT_FIELDS_MAX]
        cdef Py_ssize_t key, key_end, header_size = bounds.body - bounds.header
        if self._count >= self._room:
            return False
        space.grow(header_size + 1 + PyBytes_GET_SIZE(self._rules.added))
        text = space.data + space.size
        memset(&send, 0, sizeof(send))
        if self._signer is not None:
            send.pairs = pairs
        if not self._read(&reader, bounds, code, &send, text) or not self._is_plain(&send, code):
            return False
        key = self._rules.unique_key(text, send.text_size, self.waits)
        if key < 0:
            return False
        key_end = key
        while key_end < send.text_size and text[key_end] != PAIR_END:
            key_end += 1
        if not 0 < key_end - key < KEY_MAX or not is_plain_text(text + key, key_end - key):
            return False
        entry = self._entries + self._count
        memset(entry, 0, sizeof(Entry))
        entry.queue = self._queue(&reader, &send)
        if entry.queue < 0:
            return False
        memcpy(entry.numbers, send.numbers, sizeof(send.numbers))
        entry.body, entry.body_end = bounds.body, bounds.end
        entry.text = space.size
        entry.key, entry.key_size = space.size + key, key_end - key
        entry.text_size = send.text_size
        if text[send.text_size - 1] != PAIR_END:
            text[send.text_size] = PAIR_END
            entry.text_size += 1
        memcpy(
            text + entry.text_size,
            PyBytes_AS_STRING(self._rules.added),
            PyBytes_GET_SIZE(self._rules.added),
        )
        entry.text_size += PyBytes_GET_SIZE(self._rules.added)
        if not is_utf8(text, entry.text_size):
            return False
        # The last check; the text is unchanged except for what was appended to it.
        if self._signer is not None and not self._signer.takes(
            self._count, &reader, &send, text, reader.data + bounds.body, bounds.end - bounds.body
        ):
            return False
        space.size += entry.text_size
        self._count += 1
        return True

    cdef bint _read(self, Reader* reader, Bounds* bounds, int code, Send* send,
                    uint8_t* text) noexcept:
        """Decode the header, whose code is known; False: it is unusual."""
        reader.data = <const uint8_t*>PyBytes_AS_STRING(self._data)
        reader.at, reader.end = bounds.header, bounds.body
        if bounds.codec == JSON:
            reader.at += 11 if code == 10 else 12
            return json_send(reader, send, &self._layout, code == 10, text)
        if bounds.codec == ROCKETMQ:
            reader.at += 2
            return binary_send(reader, send, text)
        reader.at += 4
        return packed_send(reader, send, text)

    cdef Py_ssize_t drop_forged(self) noexcept:
        """Drop the first send with a wrong signature and all after it; how many were dropped."""
        cdef Py_ssize_t count = self._count, first = self._signer.first_forged()
        if first < 0:
            return 0
        self._count = first
        return count - first

    cdef bint _is_plain(self, Send* send, int code) noexcept:
        cdef uint32_t required = REQUIRED if code == 310 else REQUIRED_LONG
        return (
            send.seen & required == required
            and not send.numbers[SYS_FLAG] & self._rules._sys_flags
            and not send.numbers[FRAME_FLAG] & RESPONSE_FLAG
            and send.numbers[QUEUE_ID] >= 0
            and send.text_size > 0
            and not send.numbers[BATCH]
        )

    cdef bint _is_topic(self, Reader* reader, Send* send) noexcept:
        """Whether it goes to the same topic as the previous one."""
        return (
            self._topic is not None
            and PyBytes_GET_SIZE(self._topic) == send.topic_size
            and memcmp(
                PyBytes_AS_STRING(self._topic), reader.data + send.topic_at, send.topic_size
            ) == 0
        )

    cdef Py_ssize_t _queue(self, Reader* reader, Send* send) except -2:
        """Index of its queue in the run's queues; -1: the queue needs more checks."""
        cdef const char* topic = <const char*>reader.data + send.topic_at
        cdef Py_ssize_t number
        if not self._is_topic(reader, send):
            self._topic = PyBytes_FromStringAndSize(topic, send.topic_size)
            self._topic_queues = self._plain.get(self._topic.decode("ascii"))
            memset(self._places, 0, sizeof(self._places))
        if self._topic_queues is None:
            return -1
        if send.numbers[QUEUE_ID] < PLACES and self._places[send.numbers[QUEUE_ID]]:
            return self._places[send.numbers[QUEUE_ID]] - 1
        queue = self._topic_queues.get(send.numbers[QUEUE_ID])
        if queue is None:
            return -1
        for number in range(len(self._queues)):
            if self._queues[number] is queue:
                break
        else:
            number = len(self._queues)
            self._queues.append(queue)
        if send.numbers[QUEUE_ID] < PLACES and number < 255:
            self._places[send.numbers[QUEUE_ID]] = <uint8_t>(number + 1)
        return number

    # -- in the form of the Python path

    def __getitem__(self, slice which):
        """Rows."""
        return [self._row(number) for number in range(*which.indices(self._count))]

    cdef tuple _row(self, Py_ssize_t number):
        cdef Entry* entry = self._entries + number
        if self._is_settled:
            raise ValueError("their bytes are gone")
        return (
            self._queues[entry.queue],
            self._data[entry.body : entry.body_end],
            PyUnicode_DecodeUTF8(<char*>self._space.data + entry.text, entry.text_size, NULL),
            entry.numbers[FLAG],
            entry.numbers[SYS_FLAG],
            entry.numbers[BORN],
            self._born_host,
            self._store_host,
            entry.numbers[RECONSUMED],
            0,
        )

    def marks(self):
        return [self._mark(number) for number in range(self._count)]

    cdef tuple _mark(self, Py_ssize_t number):
        cdef Entry* entry = self._entries + number
        cdef const char* key = <const char*>self._space.data + entry.key
        return (
            entry.numbers[OPAQUE],
            entry.numbers[QUEUE_ID],
            entry.numbers[FRAME_FLAG],
            self.waits,
            key[: entry.key_size].decode("ascii"),
        )

    def stored(self):
        """The pending answers of stored messages."""
        cdef Py_ssize_t number
        cdef Entry* entry
        waiting = []
        for number in range(self.encoded):
            entry = self._entries + number
            waiting.append(
                (self._mark(number), entry.offset, entry.queue_offset, entry.offset + entry.size)
            )
        return waiting

    def settle(self):
        """All are stored and only the answers are pending: release the bytes of the requests, which
        may be many."""
        if self.encoded != self._count:
            raise ValueError("not all are stored")
        self._data = b""
        self._is_settled = True

    # -- encoding

    def encode(self, int64_t base, int64_t position, int64_t limit, int64_t now_ms,
               bint append_crc, int64_t body_size_max, int64_t properties_size_max):
        """Facts and bytes of the records that fit; assigns their queue offsets."""
        cdef Py_ssize_t number, total = 0, count = 0
        cdef Entry* entry
        cdef int64_t size, extra
        cdef bytes topic
        cdef bytes records
        cdef list topics = [queue.topic_field for queue in self._queues]
        cdef list assigned = [queue.assigned for queue in self._queues]
        cdef list facts_queues = [None] * len(self._queues)
        cdef Facts facts = Facts()
        cdef FactRow* fact
        cdef uint8_t* to
        if self._is_settled:
            raise ValueError("they are stored already")
        for number in range(self._count):
            entry = self._entries + number
            topic = topics[entry.queue]
            size = entry.body_end - entry.body
            if size > body_size_max or entry.text_size > properties_size_max:
                break
            if not append_crc and memchr(self._space.data + entry.text, 0, entry.text_size) != NULL:
                break
            extra = CRC_SIZE + entry.open_pair if append_crc else 0
            if entry.text_size + extra > 0x7FFF:
                break
            size += RECORD_SIZE_MIN + PyBytes_GET_SIZE(topic) + entry.text_size + extra
            if position + total + size > limit:
                break
            entry.size = size
            total += size
            count += 1
        self.encoded = count
        if not count:
            return facts, b""
        records = PyBytes_FromStringAndSize(NULL, total)
        to = <uint8_t*>PyBytes_AS_STRING(records)
        total = 0
        facts.grow(count)
        facts.text, facts.exact = self._space, True
        for number in range(count):
            entry = self._entries + number
            entry.offset = base + position + total
            entry.queue_offset = assigned[entry.queue]
            assigned[entry.queue] = entry.queue_offset + 1
            if total + entry.size > PyBytes_GET_SIZE(records):
                raise AssertionError("a record is longer than was summed up")
            self._write_record(to + total, entry, topics[entry.queue], now_ms, append_crc)
            total += entry.size
            fact = facts.rows + number
            queue = self._queues[entry.queue]
            if facts_queues[entry.queue] is None:
                facts_queues[entry.queue] = queue
                facts.kept[queue] = None
            fact.queue = <PyObject*>queue
            fact.queue_offset, fact.offset, fact.size = entry.queue_offset, entry.offset, entry.size
            fact.time_ms, fact.sys_flag = now_ms, entry.numbers[SYS_FLAG]
            fact.text, fact.text_size = entry.text, entry.text_size
        facts.end = count
        for number, queue in enumerate(self._queues):
            queue.assigned = assigned[number]
        return facts, records

    cdef int _write_record(self, uint8_t* to, Entry* entry, bytes topic, int64_t now_ms,
                           bint append_crc) except -1:
        """All `entry.size` bytes of it."""
        cdef const uint8_t* body = <const uint8_t*>PyBytes_AS_STRING(self._data) + entry.body
        cdef Py_ssize_t body_size = entry.body_end - entry.body
        cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(topic)
        cdef uint32_t body_crc = crc_of(0, body, body_size)
        cdef uint32_t crc
        cdef uint8_t* tail = to + HEAD_SIZE + body_size
        cdef int k
        store_int(to, entry.size, 4)
        store_int(to + 4, <uint64_t>MAGIC, 4)
        store_int(to + 8, body_crc & CRC_MASK, 4)
        store_int(to + 12, entry.numbers[QUEUE_ID], 4)
        store_int(to + 16, <uint64_t>entry.numbers[FLAG], 4)
        store_int(to + 20, entry.queue_offset, 8)
        store_int(to + 28, entry.offset, 8)
        store_int(to + 36, <uint64_t>entry.numbers[SYS_FLAG], 4)
        store_int(to + 40, <uint64_t>entry.numbers[BORN], 8)
        memcpy(to + 48, PyBytes_AS_STRING(self._born_host), 8)
        store_int(to + 56, now_ms, 8)
        memcpy(to + 64, PyBytes_AS_STRING(self._store_host), 8)
        store_int(to + 72, <uint64_t>entry.numbers[RECONSUMED], 4)
        store_int(to + 76, 0, 8)
        store_int(to + 84, body_size, 4)
        memcpy(to + HEAD_SIZE, body, body_size)
        memcpy(tail, PyBytes_AS_STRING(topic), topic_size)
        tail += topic_size + 2
        memcpy(tail, self._space.data + entry.text, entry.text_size)
        tail += entry.text_size
        if not append_crc:
            store_int(tail - entry.text_size - 2, entry.text_size, 2)
        else:
            store_int(tail - entry.text_size - 2, entry.text_size + entry.open_pair + CRC_SIZE, 2)
            if entry.open_pair:
                tail[0] = PAIR_END
                tail += 1
            crc = crc_join(crc_of(0, to, HEAD_SIZE), body_crc, crc_shift(body_size))
            crc = crc_of(crc, to + HEAD_SIZE + body_size, tail - to - HEAD_SIZE - body_size)
            crc &= CRC_MASK
            memcpy(tail, PyBytes_AS_STRING(CRC_NAME), 9)
            for k in range(10):
                tail[9 + k] = <uint8_t>(c'0' + crc % 10)
                crc = crc // 10
            tail[19] = PAIR_END
        return 0

    # -- batches

    cdef bint take_batch_frame(self, Bounds* bounds, is_unusual) except -1:
        """Add a request with a batch; False: it is unusual, or to another topic than the previous
        ones."""
        cdef Py_ssize_t size = self._space.size, count = self._count
        if self._take_batch_frame(bounds, is_unusual):
            return True
        self._space.size, self._count = size, count
        return False

    cdef bint _take_batch_frame(self, Bounds* bounds, is_unusual) except -1:
        cdef Reader reader
        cdef Send send
        cdef Space space = self._space
        cdef uint8_t* text
        cdef Py_ssize_t first = self._count, queue
        cdef str words
        space.grow(bounds.body - bounds.header)
        text = space.data + space.size  # not kept there
        memset(&send, 0, sizeof(send))
        if not self._read(&reader, bounds, BATCH_CODE, &send, text):
            return False
        if not send.numbers[BATCH] or send.seen & REQUIRED != REQUIRED:
            return False
        if send.numbers[SYS_FLAG] & self._rules._sys_flags or send.numbers[QUEUE_ID] < 0:
            return False
        if send.numbers[FRAME_FLAG] & RESPONSE_FLAG or not is_utf8(text, send.text_size):
            return False
        words = PyUnicode_DecodeUTF8(<char*>text, send.text_size, NULL)
        if is_unusual(words):
            return False
        if self._requests and not self._is_topic(&reader, &send):
            return False
        queue = self._queue(&reader, &send)
        if queue < 0 or not self.take_batch(
            bounds.body, bounds.end, queue, send.numbers[SYS_FLAG], send.numbers[BORN],
            send.numbers[RECONSUMED],
        ):
            return False
        self._requests.append(
            (bounds.codec, send.numbers[OPAQUE], send.numbers[FRAME_FLAG], words, first, self._count)
        )
        return True

    cdef bint take_batch(self, Py_ssize_t begin, Py_ssize_t end, Py_ssize_t queue, int64_t sys_flag,
                         int64_t born, int64_t times) except -1:
        """Add all messages of a batch to one of the run's queues; False: one of them, or the
        batch, is unusual."""
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(self._data)
        cdef Reader reader
        cdef Entry* entry
        cdef Space space = self._space
        cdef int64_t size, number = 0, flag = 0, body_size = 0, text_size = 0
        cdef int64_t queue_id = self._queues[queue].queue_id
        cdef Py_ssize_t start, before = self._count
        reader.data, reader.at, reader.end = data, begin, end
        while reader.at < reader.end:
            start = reader.at
            if self._count >= self._room:
                self._make_room()
            if not big_endian(&reader, 4, &number):
                return False
            size = number
            if not big_endian(&reader, 8, &number) or not big_endian(&reader, 4, &flag):
                return False
            if not big_endian(&reader, 4, &body_size) or body_size < 0:
                return False
            if body_size > reader.end - reader.at:
                return False
            entry = self._entries + self._count
            memset(entry, 0, sizeof(Entry))
            entry.body, entry.body_end = reader.at, reader.at + body_size
            reader.at += body_size
            if not big_endian(&reader, 2, &text_size) or text_size < 0:
                return False
            if text_size > reader.end - reader.at or reader.at + text_size != start + size:
                return False
            if self._rules.scan(data + reader.at, text_size, True) == -2:
                return False
            if not is_utf8(data + reader.at, text_size):
                return False
            entry.text, entry.text_size = space.size, text_size
            entry.open_pair = text_size > 0 and data[reader.at + text_size - 1] != PAIR_END
            space.add(data + reader.at, text_size)
            reader.at += text_size
            entry.queue = queue
            entry.numbers[FLAG] = flag
            entry.numbers[QUEUE_ID] = queue_id
            entry.numbers[SYS_FLAG] = sys_flag
            entry.numbers[BORN] = born
            entry.numbers[RECONSUMED] = times
            self._count += 1
        return self._count > before

    cdef int _make_room(self) except -1:
        cdef Entry* moved = <Entry*>realloc(self._entries, 2 * self._room * sizeof(Entry))
        if moved == NULL:
            raise MemoryError
        self._entries, self._room = moved, 2 * self._room
        return 0

    def size_bound(self, Py_ssize_t each):
        """More than the bytes of its records, if `each` is more than an empty message takes."""
        cdef Py_ssize_t number, total = 0
        cdef Entry* entry
        for number in range(self._count):
            entry = self._entries + number
            total += each + entry.body_end - entry.body + 4 * entry.text_size
        return total

    def message_ids(self, bytes id_head):
        """The ids of the encoded messages, in the form of the answer to a batch."""
        return self._ids(id_head, 0, self.encoded).decode("ascii")

    cdef bytes _ids(self, bytes id_head, Py_ssize_t first, Py_ssize_t end):
        cdef Space out = Space.__new__(Space)
        cdef Py_ssize_t number
        out.grow((end - first) * (PyBytes_GET_SIZE(id_head) + 17))
        for number in range(first, end):
            if number > first:
                out.add(b",", 1)
            out.add_bytes(id_head)
            out.add_hexadecimal(self._entries[number].offset)
        return PyBytes_FromStringAndSize(<char*>out.data, out.size)

    def requests(self, bytes id_head):
        """For the answer to each batch: codec, opaque, flag, properties, queue, queue offset, message
        ids, their number and the bytes of their records."""
        cdef Py_ssize_t first, end, number, size
        cdef Entry* entry
        told = []
        for codec, opaque, flag, words, first, end in self._requests:
            entry = self._entries + first
            size = 0
            for number in range(first, end):
                size += self._entries[number].size
            told.append(
                (codec, opaque, flag, words, self._queues[entry.queue], entry.queue_offset,
                 self._ids(id_head, first, end), end - first, size)
            )
        return told

    # -- answers

    def answers(self, Answers answers):
        """The frames that answer the stored messages, in one piece."""
        cdef Py_ssize_t number
        cdef Entry* entry
        cdef Space out = Space.__new__(Space)
        out.grow(384 * self.encoded)
        for number in range(self.encoded):
            entry = self._entries + number
            if not entry.numbers[FRAME_FLAG] & ONEWAY_FLAG:
                add_answer(
                    out, answers, self.codec, entry.numbers[OPAQUE], entry.numbers[QUEUE_ID],
                    entry.offset, entry.queue_offset, self._space.data + entry.key, entry.key_size,
                )
        return PyBytes_FromStringAndSize(<char*>out.data, out.size)


def batch(bytes body, queue, Rules rules, int64_t sys_flag, int64_t born, int64_t times,
          bytes born_host, bytes store_host):
    """The messages of a batch to one queue, as rows. None: one of them, or the batch, is
    unusual."""
    cdef Run run = Run.__new__(Run)
    if len(born_host) != 8 or len(store_host) != 8 or sys_flag & rules._sys_flags:
        return None
    run.begin(body, BATCH_ROOM, None, rules, born_host, store_host, True)
    run._queues.append(queue)
    return run if run.take_batch(0, len(body), 0, sys_flag, born, times) else None


cdef Py_ssize_t _shift_size = -1
cdef uint32_t _shift = 0


cdef uint32_t crc_shift(Py_ssize_t size) noexcept:
    """The factor for a second piece of this size; cached, as most messages are equally long."""
    global _shift_size, _shift
    if size != _shift_size:
        _shift_size, _shift = size, crc_power(8 * <uint64_t>size)
    return _shift


cdef int add_answer(Space out, Answers answers, int codec, int64_t opaque, int64_t queue_id,
                    int64_t offset, int64_t queue_offset, const uint8_t* key,
                    Py_ssize_t key_size) except -1:
    cdef tuple pieces
    cdef Py_ssize_t start = out.size, size
    if codec == JSON:
        pieces = answers._json
        out.add_int(0, 8)
        out.add_bytes(pieces[0])
        out.add_hexadecimal(offset)
        out.add_bytes(pieces[1])
        out.add_decimal(queue_id)
        out.add_bytes(pieces[2])
        out.add_decimal(queue_offset)
        out.add_bytes(pieces[3])
        out.add(b'"', 1)
        out.add(key, key_size)
        out.add(b'"', 1)
        out.add_bytes(pieces[4])
        out.add_decimal(opaque)
        out.add_bytes(pieces[5])
        size = out.size - start - 8
        store_int(out.data + start, 4 + size, 4)
        store_int(out.data + start + 4, size, 4)
        return 0
    pieces = answers.form(
        codec, opaque, 4 if codec == ROCKETMQ else packed_size(opaque), queue_id, queue_offset,
        digits_of(queue_offset), key_size,
    )
    out.add_bytes(pieces[0])
    if codec == ROCKETMQ:
        out.add_int(<uint64_t>opaque, 4)
    else:
        out.add_packed(opaque)
    out.add_bytes(pieces[1])
    out.add_hexadecimal(offset)
    out.add_bytes(pieces[2])
    out.add_decimal(queue_offset)
    out.add_bytes(pieces[3])
    out.add(key, key_size)
    out.add_bytes(pieces[4])
    return 0


def answers_of(int codec, list waiting, Answers answers):
    """The frames of pending answers; None: one has an unusual key."""
    cdef Space out = Space.__new__(Space)
    cdef const char* key
    cdef Py_ssize_t key_size = 0
    for mark, offset, queue_offset, _ in waiting:
        opaque, queue_id, flag, _, text = mark
        if flag & ONEWAY_FLAG:
            continue
        key = PyUnicode_AsUTF8AndSize(text, &key_size)
        if key_size >= KEY_MAX or not is_plain_text(<const uint8_t*>key, key_size):
            return None
        add_answer(
            out, answers, codec, opaque, queue_id, offset, queue_offset, <const uint8_t*>key,
            key_size,
        )
    return PyBytes_FromStringAndSize(<char*>out.data, out.size)


include "dispatch.pxi"
include "reading.pxi"
include "splicing.pxi"
include "batches.pxi"
include "plain_pulls.pxi"
include "repeats.pxi"
include "log_facts.pxi"
include "index.pxi"
include "syncing.pxi"
include "storing.pxi"
