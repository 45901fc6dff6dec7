# The signatures of sends: HMAC-SHA1 over the values of all ext fields, in the order of their names,
# and the body. Users without the right, and other ways to sign, are left to the Python path.

cdef extern from "sha1.h":
    ctypedef struct Sha1:
        uint32_t state[5]
    void sha1_begin_module(int may_be_built_in) nogil
    void sha1_begin(Sha1* sha) nogil
    void sha1_add(Sha1* sha, const uint8_t* data, size_t size) nogil
    void sha1_end(Sha1* sha, uint8_t* digest) nogil
    size_t sha1_pad(uint8_t* end, uint64_t total) nogil
    void sha1_digest(const uint32_t* state, uint8_t* digest) nogil
    void sha1_blocks(uint32_t* state, const uint8_t* data, size_t blocks) nogil
    void sha1_blocks_of_two(uint32_t* state, const uint8_t* data, uint32_t* other_state,
                            const uint8_t* other_data, size_t blocks) nogil

cdef enum:
    SHA1_END_MAX = 72
    SECRETS_MAX = 4
    SHA1_BLOCK = 64
    SHA1_SIZE = 20
    SIGNATURE_SIZE = 28  # in base64

cdef const char* BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
sha1_begin_module(True)


def sha1(const uint8_t[::1] data, *, bint plainly=False):
    """For tests, which compare."""
    cdef Sha1 sha
    cdef uint8_t digest[SHA1_SIZE]
    sha1_begin_module(not plainly)
    sha1_begin(&sha)
    if data.shape[0]:
        sha1_add(&sha, &data[0], data.shape[0])
    sha1_end(&sha, digest)
    sha1_begin_module(True)
    return PyBytes_FromStringAndSize(<char*>digest, SHA1_SIZE)


cdef struct Secret:
    uint32_t inner[5]  # states after the key
    uint32_t outer[5]


cdef struct Claim:  # a send and its signature, still to be checked
    Py_ssize_t number  # in its run
    uint8_t* message  # what was signed, in whole blocks
    size_t room
    size_t blocks
    const uint8_t* signature


# Hashing two at a time is faster. Nothing else runs while some wait: they are of one call.
cdef Claim claims[2]


@cython.auto_pickle(False)
@cython.final
cdef class Signer:
    """A user who may send to a topic, and whose sends must be signed with one of its secrets."""

    cdef bytes _name
    cdef bytes _topic
    cdef Secret _secrets[SECRETS_MAX]
    cdef int _count
    cdef int _waiting  # of the claims
    # How the last send's pairs are put in order, and which of these are the name and the signature.
    cdef int _order[EXT_FIELDS_MAX]
    cdef int _ordered
    cdef int _name_at
    cdef int _signature_at

    def __init__(self, bytes name, bytes topic, secrets):
        cdef uint8_t block[SHA1_BLOCK]
        cdef bytes key
        cdef int k
        cdef Sha1 sha
        if not 0 < len(secrets) <= SECRETS_MAX:
            raise ValueError("no signature can be checked with these")
        self._name, self._topic = name, topic
        for secret in secrets:
            key = secret.encode()
            if len(key) > SHA1_BLOCK:
                key = sha1(key)
            memset(block, 0, SHA1_BLOCK)
            memcpy(block, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
            for k in range(SHA1_BLOCK):
                block[k] ^= 0x36
            sha1_begin(&sha)
            sha1_blocks(sha.state, block, 1)
            self._secrets[self._count].inner = sha.state
            for k in range(SHA1_BLOCK):
                block[k] ^= 0x36 ^ 0x5C
            sha1_begin(&sha)
            sha1_blocks(sha.state, block, 1)
            self._secrets[self._count].outer = sha.state
            self._count += 1

    cdef void forget(self) noexcept:
        self._waiting = 0

    cdef bint takes(self, Py_ssize_t number, Reader* reader, Send* send, const uint8_t* text,
                    const uint8_t* body, Py_ssize_t body_size) except -1:
        """Whether the send is this user's, to this topic, and signed. By whom, `first_forged`
        says: once there are two, and at the end of a run."""
        cdef Pair* pair
        cdef Pair* name
        cdef Pair* signature
        cdef int k, count = send.pair_count
        cdef size_t size = body_size
        cdef Claim* claim = claims + self._waiting
        cdef const uint8_t* end = body + body_size
        cdef const uint8_t* value
        cdef uint8_t* to
        if not (self._is_in_order(send.pairs, count, reader.data)
                or self._put_in_order(send.pairs, count, reader.data)):
            return False
        name, signature = send.pairs + self._name_at, send.pairs + self._signature_at
        if signature.size != SIGNATURE_SIZE:
            return False
        if not is_text(self._name, reader.data + name.at, name.size):
            return False
        if not is_text(self._topic, reader.data + send.topic_at, send.topic_size):
            return False
        for k in range(count):
            size += send.pairs[k].size
        make_room(claim, size + SHA1_END_MAX)
        to = claim.message
        for k in range(count):
            pair = send.pairs + self._order[k]
            if pair != signature:
                value = (text if pair.is_text else reader.data) + pair.at
                if pair.size <= 16 and not pair.is_text and end - value >= 16:
                    memcpy(to, value, 16)  # which is one instruction; the rest is written over
                else:
                    memcpy(to, value, pair.size)
                to += pair.size
        memcpy(to, body, body_size)
        to += body_size
        to += sha1_pad(to, SHA1_BLOCK + (to - claim.message))
        claim.blocks = (to - claim.message) // SHA1_BLOCK
        claim.number, claim.signature = number, reader.data + signature.at
        self._waiting += 1
        return True

    cdef bint _is_in_order(self, Pair* pairs, int count, const uint8_t* data) noexcept nogil:
        """Whether this send has the same order as the last one, as is usual for a client."""
        cdef int k
        if count != self._ordered:
            return False
        for k in range(1, count):
            if compared(pairs + self._order[k - 1], pairs + self._order[k], data) >= 0:
                return False
        return (
            is_named(pairs + self._name_at, data, b"AccessKey", 9)
            and is_named(pairs + self._signature_at, data, b"Signature", 9)
        )

    cdef bint _put_in_order(self, Pair* pairs, int count, const uint8_t* data) noexcept nogil:
        """Sort by name; False: a name appears twice, or the send is not signed."""
        cdef int k, at, which
        self._ordered, self._name_at, self._signature_at = 0, -1, -1
        for k in range(count):
            if is_named(pairs + k, data, b"AccessKey", 9):
                self._name_at = k
            elif is_named(pairs + k, data, b"Signature", 9):
                self._signature_at = k
            at = k
            while at:
                which = compared(pairs + self._order[at - 1], pairs + k, data)
                if which == 0:
                    return False
                if which < 0:
                    break
                self._order[at] = self._order[at - 1]
                at -= 1
            self._order[at] = k
        if self._name_at < 0 or self._signature_at < 0:
            return False
        self._ordered = count
        return True

    cdef bint is_full(self) noexcept:
        return self._waiting == 2

    cdef Py_ssize_t first_forged(self) noexcept:
        """The first pending claim that is signed with none of the secrets; -1: all are valid. None
        is pending then."""
        cdef int k, waiting = self._waiting
        cdef bint good[2]
        self._waiting = 0
        good[0] = good[1] = False
        if waiting == 2:
            are_made_by(self._secrets, claims, claims + 1, good)
        for k in range(waiting):
            if not good[k] and not self._is_made_by_any(claims + k):
                return claims[k].number
        return -1

    cdef bint _is_made_by_any(self, Claim* claim) noexcept nogil:
        cdef uint32_t state[5]
        cdef uint8_t block[SHA1_BLOCK]
        cdef int k
        for k in range(self._count):
            state = self._secrets[k].inner
            sha1_blocks(state, claim.message, claim.blocks)
            begin_outer(state, block)
            state = self._secrets[k].outer
            sha1_blocks(state, block, 1)
            if is_signature(state, claim.signature):
                return True
        return False


cdef void are_made_by(Secret* secret, Claim* one, Claim* other, bint* good) noexcept nogil:
    cdef uint32_t states[2][5]
    cdef uint8_t blocks[2][SHA1_BLOCK]
    cdef size_t both = min(one.blocks, other.blocks)
    states[0] = secret.inner
    states[1] = secret.inner
    sha1_blocks_of_two(states[0], one.message, states[1], other.message, both)
    sha1_blocks(states[0], one.message + both * SHA1_BLOCK, one.blocks - both)
    sha1_blocks(states[1], other.message + both * SHA1_BLOCK, other.blocks - both)
    begin_outer(states[0], blocks[0])
    begin_outer(states[1], blocks[1])
    states[0] = secret.outer
    states[1] = secret.outer
    sha1_blocks_of_two(states[0], blocks[0], states[1], blocks[1], 1)
    good[0] = is_signature(states[0], one.signature)
    good[1] = is_signature(states[1], other.signature)


cdef void begin_outer(const uint32_t* inner, uint8_t* block) noexcept nogil:
    """What the outer hash of an HMAC takes in behind the key."""
    sha1_digest(inner, block)
    sha1_pad(block + SHA1_SIZE, SHA1_BLOCK + SHA1_SIZE)


cdef bint is_signature(const uint32_t* state, const uint8_t* given) noexcept nogil:
    cdef uint8_t digest[SHA1_SIZE + 1]
    cdef uint8_t different = 0
    cdef uint32_t bits
    cdef int k
    sha1_digest(state, digest)
    digest[SHA1_SIZE] = 0
    for k in range(7):  # four characters each, in constant time
        bits = <uint32_t>digest[3 * k] << 16 | <uint32_t>digest[3 * k + 1] << 8 | digest[3 * k + 2]
        different |= given[4 * k] ^ <uint8_t>BASE64[bits >> 18]
        different |= given[4 * k + 1] ^ <uint8_t>BASE64[bits >> 12 & 63]
        different |= given[4 * k + 2] ^ <uint8_t>BASE64[bits >> 6 & 63]
        different |= given[4 * k + 3] ^ <uint8_t>(c'=' if k == 6 else BASE64[bits & 63])
    return different == 0


cdef int make_room(Claim* claim, size_t size) except -1:
    cdef uint8_t* message
    if size > claim.room:
        message = <uint8_t*>realloc(claim.message, size)
        if message == NULL:
            raise MemoryError
        claim.message, claim.room = message, size
    return 0


cdef bint is_text(bytes wanted, const uint8_t* text, Py_ssize_t size) noexcept:
    return PyBytes_GET_SIZE(wanted) == size and memcmp(PyBytes_AS_STRING(wanted), text, size) == 0


cdef inline bint is_named(
    Pair* pair, const uint8_t* data, const char* name, Py_ssize_t size
) noexcept nogil:
    return pair.name_size == size and memcmp(data + pair.name_at, name, size) == 0


cdef inline int compared(Pair* one, Pair* other, const uint8_t* data) noexcept nogil:
    """Their names, as bytes; most differ in the first one."""
    cdef int which = <int>data[one.name_at] - <int>data[other.name_at]
    if which and one.name_size and other.name_size:
        return which
    which = memcmp(
        data + one.name_at, data + other.name_at, <uint32_t>min(one.name_size, other.name_size)
    )
    return which if which else <int>(one.name_size - other.name_size)
