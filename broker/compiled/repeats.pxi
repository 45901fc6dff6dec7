# Pulls that repeat an earlier one: the same bytes except for the numbers in which pulls of one
# consumer differ. The Python path has decoded the first one.

cdef enum:
    REPEATS_MAX = 4  # templates per connection: further topics are decoded in Python
    NUMBERS = 4
    OFFSET_DIGITS = 18  # always less than 2**63
    NUMBER_DIGITS = 9


@cython.final
cdef class Repeats:
    """The JSON pulls of one connection. A header is cut at its numbers; `which` says what they are:
    0 the opaque, 1 the queue's id, 2 its offset, 3 the committed offset."""

    cdef list _known  # (the pieces between numbers, the decoded pull)
    cdef list _ready  # of each, by the queue's id: what `PlainPulls` needs
    cdef PlainPulls _plain
    cdef object _make
    cdef int _which[REPEATS_MAX][NUMBERS]
    cdef Py_ssize_t _size_max
    cdef int _next

    def __init__(self, Py_ssize_t size_max):
        self._known = []
        self._ready = []
        self._size_max = size_max

    def answer_with(self, PlainPulls plain not None, make):
        """Answer plain ones. `make` gives the `Ready` of a decoded pull and its queue's id; None: it
        is not plain."""
        self._plain, self._make = plain, make

    def learn(self, tuple pieces, tuple which, said):
        """`said`: the decoded pull, returned by `match` for such a header."""
        cdef int number
        if len(pieces) != NUMBERS + 1 or any(type(piece) is not bytes for piece in pieces):
            raise ValueError("five pieces")
        if sorted(which) != [0, 1, 2, 3]:
            raise ValueError("four numbers")
        if len(self._known) < REPEATS_MAX:
            self._next = len(self._known)
            self._known.append(None)
            self._ready.append(None)
        else:
            self._next = (self._next + 1) % REPEATS_MAX
        for number in range(NUMBERS):
            self._which[self._next][number] = which[number]
        self._known[self._next] = (pieces, said)
        self._ready[self._next] = {}

    def match(self, data):
        """If `data` is one frame that repeats a learned pull: that pull and the numbers. Else None."""
        cdef int64_t numbers[NUMBERS]
        cdef int index = self._find(data, numbers)
        return None if index < 0 else self._found(index, numbers)

    def answer(self, data):
        """The answer if `data` is one plain pull: bytes, or an object for one write. Else the result
        of `match`: the Python path has to answer, nothing was done or counted yet."""
        cdef int64_t numbers[NUMBERS]
        cdef int index = self._find(data, numbers)
        cdef dict ready
        if index < 0:
            return None
        if self._plain is not None:
            ready = <dict>self._ready[index]
            prepared = ready.get(numbers[1])
            if prepared is None:
                prepared = self._make((<tuple>self._known[index])[1], numbers[1])
                if prepared is not None:
                    ready[numbers[1]] = prepared
            if prepared is not None:
                try:
                    made = self._plain.answer(<Ready?>prepared, numbers[0], numbers[2], numbers[3])
                except Exception:  # the Python path meets it, too, and reports it
                    made = None
                if made is not None:
                    return made
        return self._found(index, numbers)

    cdef tuple _found(self, int index, int64_t* numbers):
        said = (<tuple>self._known[index])[1]
        return said, numbers[0], numbers[1], numbers[2], numbers[3]

    cdef int _find(self, data, int64_t* numbers) except -2:
        """Index of the pull that the frame repeats; -1: none."""
        if not isinstance(data, bytes):
            raise TypeError(f"bytes are compared, not {type(data).__name__}")
        cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef int index
        if size < 8 or size > self._size_max or <Py_ssize_t>load_int(start, 4) != size - 4:
            return -1
        if load_int(start + 4, 4) != <uint64_t>(size - 8):  # JSON, and no body
            return -1
        for index in range(len(self._known)):
            if self._is_like(index, start + 8, size - 8, numbers):
                return index
        return -1

    cdef bint _is_like(
        self, int index, const uint8_t* header, Py_ssize_t size, int64_t* numbers
    ) except -1:
        cdef tuple pieces = <tuple>(<tuple>self._known[index])[0]
        cdef Py_ssize_t at = 0, length, begin, digits_max
        cdef int number, which
        cdef int64_t value
        cdef bytes piece
        for number in range(NUMBERS + 1):
            piece = <bytes>pieces[number]
            length = PyBytes_GET_SIZE(piece)
            if length > size - at or memcmp(header + at, PyBytes_AS_STRING(piece), length):
                return False
            at += length
            if number == NUMBERS:
                return at == size
            which = self._which[index][number]
            digits_max = OFFSET_DIGITS if which >= 2 else NUMBER_DIGITS
            begin, value = at, 0
            while at < size and at - begin <= digits_max and c'0' <= header[at] <= c'9':
                value = 10 * value + header[at] - c'0'
                at += 1
            length = at - begin
            if not 1 <= length <= digits_max or (length > 1 and header[begin] == c'0'):
                return False
            numbers[which] = value
        return False
