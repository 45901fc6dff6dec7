/* SHA-1, for the signatures of RocketMQ's access control: by the processor's own instructions where
 * it has them. */
#ifndef AEROBEE_SHA1_H
#define AEROBEE_SHA1_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SHA1_BLOCK 64
#define SHA1_SIZE 20
#define SHA1_END_MAX (SHA1_BLOCK + 8)

typedef struct {
    uint32_t state[5];
    uint8_t buffer[SHA1_BLOCK];
    uint64_t total; /* bytes so far */
} Sha1;

static uint32_t sha1_rotated(uint32_t word, int bits) { return word << bits | word >> (32 - bits); }

static void sha1_plain_blocks(uint32_t *state, const uint8_t *data, size_t blocks) {
    for (; blocks; blocks--, data += SHA1_BLOCK) {
        uint32_t words[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
        for (int t = 0; t < 16; t++)
            words[t] = (uint32_t)data[4 * t] << 24 | (uint32_t)data[4 * t + 1] << 16 |
                       (uint32_t)data[4 * t + 2] << 8 | data[4 * t + 3];
        for (int t = 16; t < 80; t++)
            words[t] = sha1_rotated(words[t - 3] ^ words[t - 8] ^ words[t - 14] ^ words[t - 16], 1);
        for (int t = 0; t < 80; t++) {
            uint32_t mixed = t < 20   ? ((b & c) | (~b & d)) + 0x5A827999u
                             : t < 40 ? (b ^ c ^ d) + 0x6ED9EBA1u
                             : t < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8F1BBCDCu
                                      : (b ^ c ^ d) + 0xCA62C1D6u;
            uint32_t next = sha1_rotated(a, 5) + mixed + e + words[t];
            e = d, d = c, c = sha1_rotated(b, 30), b = a, a = next;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
    }
}

static int sha1_is_built_in = 0;

#if defined(__x86_64__) && defined(__GNUC__)
#define SHA1_MAY_BE_BUILT_IN 1
#include <cpuid.h>
#include <immintrin.h>

/* Four rounds, and the words of rounds to come. `now` has the words of these rounds; `next` those of
 * the next four, almost done; the other two are being computed. */
#define SHA1_ROUNDS(now, next, after, last, e, kept, which) \
    e = _mm_sha1nexte_epu32(e, now);                        \
    kept = abcd;                                            \
    next = _mm_sha1msg2_epu32(next, now);                   \
    abcd = _mm_sha1rnds4_epu32(abcd, e, which);             \
    last = _mm_sha1msg1_epu32(last, now);                   \
    after = _mm_xor_si128(after, now)

__attribute__((target("sha,sse4.1"))) static void sha1_built_in_blocks(uint32_t *state, const uint8_t *data,
                                                                size_t blocks) {
    const __m128i order = _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0x1B);
    __m128i e = _mm_set_epi32((int)state[4], 0, 0, 0), f;
    for (; blocks; blocks--, data += SHA1_BLOCK) {
        const __m128i *from = (const __m128i *)data;
        __m128i abcd_before = abcd, e_before = e;
        __m128i w0 = _mm_shuffle_epi8(_mm_loadu_si128(from), order);
        __m128i w1 = _mm_shuffle_epi8(_mm_loadu_si128(from + 1), order);
        __m128i w2 = _mm_shuffle_epi8(_mm_loadu_si128(from + 2), order);
        __m128i w3 = _mm_shuffle_epi8(_mm_loadu_si128(from + 3), order);
        e = _mm_add_epi32(e, w0);
        f = abcd;
        abcd = _mm_sha1rnds4_epu32(abcd, e, 0);
        f = _mm_sha1nexte_epu32(f, w1);
        e = abcd;
        abcd = _mm_sha1rnds4_epu32(abcd, f, 0);
        w0 = _mm_sha1msg1_epu32(w0, w1);
        e = _mm_sha1nexte_epu32(e, w2);
        f = abcd;
        abcd = _mm_sha1rnds4_epu32(abcd, e, 0);
        w1 = _mm_sha1msg1_epu32(w1, w2);
        w0 = _mm_xor_si128(w0, w2);
        SHA1_ROUNDS(w3, w0, w1, w2, f, e, 0);
        SHA1_ROUNDS(w0, w1, w2, w3, e, f, 0);
        SHA1_ROUNDS(w1, w2, w3, w0, f, e, 1);
        SHA1_ROUNDS(w2, w3, w0, w1, e, f, 1);
        SHA1_ROUNDS(w3, w0, w1, w2, f, e, 1);
        SHA1_ROUNDS(w0, w1, w2, w3, e, f, 1);
        SHA1_ROUNDS(w1, w2, w3, w0, f, e, 1);
        SHA1_ROUNDS(w2, w3, w0, w1, e, f, 2);
        SHA1_ROUNDS(w3, w0, w1, w2, f, e, 2);
        SHA1_ROUNDS(w0, w1, w2, w3, e, f, 2);
        SHA1_ROUNDS(w1, w2, w3, w0, f, e, 2);
        SHA1_ROUNDS(w2, w3, w0, w1, e, f, 2);
        SHA1_ROUNDS(w3, w0, w1, w2, f, e, 3);
        SHA1_ROUNDS(w0, w1, w2, w3, e, f, 3);
        SHA1_ROUNDS(w1, w2, w3, w0, f, e, 3);
        SHA1_ROUNDS(w2, w3, w0, w1, e, f, 3);
        SHA1_ROUNDS(w3, w0, w1, w2, f, e, 3);
        e = _mm_sha1nexte_epu32(e, e_before);
        abcd = _mm_add_epi32(abcd, abcd_before);
    }
    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(abcd, 0x1B));
    state[4] = (uint32_t)_mm_extract_epi32(e, 3);
}
#endif

static void sha1_begin_module(int may_be_built_in) {
#ifdef SHA1_MAY_BE_BUILT_IN
    unsigned a, b = 0, c, d;
    __builtin_cpu_init();
    sha1_is_built_in = may_be_built_in && __builtin_cpu_supports("sse4.1") &&
                       __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
#else
    (void)may_be_built_in;
#endif
}

static void sha1_blocks(uint32_t *state, const uint8_t *data, size_t blocks) {
#ifdef SHA1_MAY_BE_BUILT_IN
    if (sha1_is_built_in) {
        sha1_built_in_blocks(state, data, blocks);
        return;
    }
#endif
    sha1_plain_blocks(state, data, blocks);
}

/* Two messages at a time: while a step of one waits for the step before it, a block of the other is
 * hashed. It takes a third less time than one after the other. */
static void sha1_blocks_of_two(uint32_t *state, const uint8_t *data, uint32_t *other_state,
                               const uint8_t *other_data, size_t blocks) {
    for (; blocks; blocks--, data += SHA1_BLOCK, other_data += SHA1_BLOCK) {
        sha1_blocks(state, data, 1);
        sha1_blocks(other_state, other_data, 1);
    }
}

static void sha1_begin(Sha1 *sha) {
    static const uint32_t first[5] = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u};
    memcpy(sha->state, first, sizeof(first));
    sha->total = 0;
}

static void sha1_add(Sha1 *sha, const uint8_t *data, size_t size) {
    size_t filled = sha->total % SHA1_BLOCK, blocks;
    sha->total += size;
    if (filled) {
        size_t room = SHA1_BLOCK - filled, taken = size < room ? size : room;
        memcpy(sha->buffer + filled, data, taken);
        if (taken < room) return;
        sha1_blocks(sha->state, sha->buffer, 1);
        data += taken, size -= taken;
    }
    blocks = size / SHA1_BLOCK;
    if (blocks) sha1_blocks(sha->state, data, blocks);
    if (size % SHA1_BLOCK) memcpy(sha->buffer, data + blocks * SHA1_BLOCK, size % SHA1_BLOCK);
}

/* The padding after a message of this many bytes, to the end of a block: at most SHA1_END_MAX. */
static size_t sha1_pad(uint8_t *end, uint64_t total) {
    size_t filled = total % SHA1_BLOCK, zeros = (filled < 56 ? 56 : 120) - filled;
    memset(end, 0, zeros);
    end[0] = 0x80;
    for (int k = 0; k < 8; k++) end[zeros + k] = (uint8_t)(total * 8 >> (56 - 8 * k));
    return zeros + 8;
}

static void sha1_digest(const uint32_t *state, uint8_t *digest) {
    for (int k = 0; k < SHA1_SIZE; k++) digest[k] = (uint8_t)(state[k / 4] >> (24 - 8 * (k % 4)));
}

static void sha1_end(Sha1 *sha, uint8_t *digest) {
    uint8_t tail[SHA1_END_MAX];
    sha1_add(sha, tail, sha1_pad(tail, sha->total));
    sha1_digest(sha->state, digest);
}

#endif
