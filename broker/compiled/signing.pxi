# The signatures of sends: HMAC-SHA1 over the values of all ext fields, in the order of their names,
# and the body. Whoever has no right, or signs in another way, is left to the path in Python.

cdef extern from "sha1.h":
    ctypedef struct Sha1:
        pass
    void sha1_begin_module(int may_be_built_in) nogil
    void sha1_begin(Sha1* sha) nogil
    void sha1_add(Sha1* sha, const uint8_t* data, size_t size) nogil
    void sha1_end(Sha1* sha, uint8_t* digest) nogil

cdef enum:
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
    Sha1 inner  # that has taken in the key
    Sha1 outer


@cython.auto_pickle(False)
cdef class Signer:
    """A user who may send to a topic, and whose sends have to be signed with one of his secrets."""

    cdef bytes _name
    cdef bytes _topic
    cdef Secret _secrets[SECRETS_MAX]
    cdef int _count

    def __init__(self, bytes name, bytes topic, secrets):
        cdef uint8_t block[SHA1_BLOCK]
        cdef bytes key
        cdef int k
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
            sha1_begin(&self._secrets[self._count].inner)
            sha1_add(&self._secrets[self._count].inner, block, SHA1_BLOCK)
            for k in range(SHA1_BLOCK):
                block[k] ^= 0x36 ^ 0x5C
            sha1_begin(&self._secrets[self._count].outer)
            sha1_add(&self._secrets[self._count].outer, block, SHA1_BLOCK)
            self._count += 1

    cdef bint admits(self, Reader* reader, Send* send, const uint8_t* text, const uint8_t* body,
                     Py_ssize_t body_size) noexcept:
        """Whether the send is this user's, to this topic, and signed with one of the secrets."""
        cdef Pair ordered[EXT_FIELDS_MAX]
        cdef Pair* name = NULL
        cdef Pair* signature = NULL
        cdef int k, count = send.pair_count
        if not in_order(send.pairs, count, ordered, reader.data):
            return False
        for k in range(count):
            if is_named(ordered + k, reader.data, b"AccessKey", 9):
                name = ordered + k
            elif is_named(ordered + k, reader.data, b"Signature", 9):
                signature = ordered + k
        if name == NULL or signature == NULL or signature.size != SIGNATURE_SIZE:
            return False
        if not is_text(self._name, reader.data + name.at, name.size):
            return False
        if not is_text(self._topic, reader.data + send.topic_at, send.topic_size):
            return False
        for k in range(self._count):
            if self._is_made_by(
                self._secrets + k, ordered, count, signature, reader.data, text, body, body_size
            ):
                return True
        return False

    cdef bint _is_made_by(self, Secret* secret, Pair* ordered, int count, Pair* signature,
                          const uint8_t* data, const uint8_t* text, const uint8_t* body,
                          Py_ssize_t body_size) noexcept nogil:
        cdef Sha1 inner = secret.inner
        cdef Sha1 outer = secret.outer
        cdef uint8_t digest[SHA1_SIZE + 1]
        cdef uint8_t different = 0
        cdef const uint8_t* given = data + signature.at
        cdef uint32_t bits
        cdef int k
        for k in range(count):
            if ordered + k != signature and ordered[k].size:
                sha1_add(&inner, (text if ordered[k].is_text else data) + ordered[k].at,
                         ordered[k].size)
        if body_size:
            sha1_add(&inner, body, body_size)
        sha1_end(&inner, digest)
        sha1_add(&outer, digest, SHA1_SIZE)
        sha1_end(&outer, digest)
        digest[SHA1_SIZE] = 0
        for k in range(7):  # each four characters; how many are right is not to be told by the time
            bits = <uint32_t>digest[3 * k] << 16 | <uint32_t>digest[3 * k + 1] << 8 | digest[3 * k + 2]
            different |= given[4 * k] ^ <uint8_t>BASE64[bits >> 18]
            different |= given[4 * k + 1] ^ <uint8_t>BASE64[bits >> 12 & 63]
            different |= given[4 * k + 2] ^ <uint8_t>BASE64[bits >> 6 & 63]
            different |= given[4 * k + 3] ^ <uint8_t>(c'=' if k == 6 else BASE64[bits & 63])
        return different == 0


cdef bint is_text(bytes wanted, const uint8_t* text, Py_ssize_t size) noexcept:
    return PyBytes_GET_SIZE(wanted) == size and memcmp(PyBytes_AS_STRING(wanted), text, size) == 0


cdef inline bint is_named(
    Pair* pair, const uint8_t* data, const char* name, Py_ssize_t size
) noexcept nogil:
    return pair.name_size == size and memcmp(data + pair.name_at, name, size) == 0


cdef bint in_order(Pair* pairs, int count, Pair* ordered, const uint8_t* data) noexcept nogil:
    """Sort by name; False: one is there twice. Clients write them nearly in order."""
    cdef int k, at, which
    cdef Py_ssize_t size
    for k in range(count):
        at = k
        while at:
            size = min(pairs[k].name_size, ordered[at - 1].name_size)
            which = memcmp(data + ordered[at - 1].name_at, data + pairs[k].name_at, size)
            if which == 0:
                if ordered[at - 1].name_size == pairs[k].name_size:
                    return False
                which = 1 if ordered[at - 1].name_size > size else -1
            if which < 0:
                break
            ordered[at] = ordered[at - 1]
            at -= 1
        ordered[at] = pairs[k]
    return True
