/* CRC-32 as zlib has it: four lanes of carry-less multiplication where the processor has them, else
 * eight tables. All constants are made at the first use, from the polynomial alone. */
#ifndef AEROBEE_CRC_H
#define AEROBEE_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC_POLY 0xEDB88320u /* bit-reflected: bit 31 is x^0 */

#if defined(__x86_64__) && defined(__GNUC__)
#define CRC_HAS_LANES 1
#include <immintrin.h>
#endif

static uint32_t crc_table[8][256];
static uint32_t crc_squares[64]; /* x^(2^k) mod P */
static int crc_lanes_on = 0;

#ifdef CRC_HAS_LANES
__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_multiply_lanes(uint32_t a, uint32_t b) {
    __m128i both = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0x00);
    /* One bit too low, see crc_lane; its low half stands for x^32 and above, which the tables take
     * off as they do with four bytes of a message. */
    uint64_t product = (uint64_t)_mm_cvtsi128_si64(both) << 1;
    uint32_t high = (uint32_t)product;
    return (uint32_t)(product >> 32) ^ crc_table[3][high & 255] ^ crc_table[2][high >> 8 & 255] ^
           crc_table[1][high >> 16 & 255] ^ crc_table[0][high >> 24];
}
#endif

/* a * b mod P, both reflected. */
static uint32_t crc_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
#ifdef CRC_HAS_LANES
    if (crc_lanes_on) return crc_multiply_lanes(a, b);
#endif
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit) product ^= b;
        b = b & 1 ? (b >> 1) ^ CRC_POLY : b >> 1;
    }
    return product;
}

/* x^n mod P, reflected. */
static uint32_t crc_power(uint64_t n) {
    uint32_t result = 1u << 31;
    for (int k = 0; n; n >>= 1, k++)
        if (n & 1) result = crc_multiply(result, crc_squares[k]);
    return result;
}

static uint32_t crc_by_tables(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
    while (size >= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 |
                              (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^
              crc_table[5][low >> 16 & 255] ^ crc_table[4][low >> 24] ^ crc_table[3][data[4]] ^
              crc_table[2][data[5]] ^ crc_table[1][data[6]] ^ crc_table[0][data[7]];
        data += 8;
        size -= 8;
    }
    while (size--) crc = crc >> 8 ^ crc_table[0][(crc ^ *data++) & 255];
    return ~crc;
}

#ifdef CRC_HAS_LANES
static uint64_t crc_fold_64[2], crc_fold_16[2]; /* over 64 and 16 bytes: for the low, the high half */

/* In the reflected domain a product of carry-less multiplication is one bit too low, hence x^(n-1);
 * the 32 bits stand in the upper half of their 64. */
static uint64_t crc_lane(uint64_t bits) { return (uint64_t)crc_power(bits - 1) << 32; }

__attribute__((target("pclmul,sse4.1"))) static __m128i crc_fold(__m128i lane, __m128i by, __m128i next) {
    return _mm_xor_si128(next, _mm_xor_si128(_mm_clmulepi64_si128(lane, by, 0x00),
                                             _mm_clmulepi64_si128(lane, by, 0x11)));
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_by_lanes(uint32_t crc, const uint8_t *data,
                                                               size_t size) {
    const __m128i *blocks = (const __m128i *)data;
    __m128i by_64 = _mm_set_epi64x((long long)crc_fold_64[1], (long long)crc_fold_64[0]);
    __m128i by_16 = _mm_set_epi64x((long long)crc_fold_16[1], (long long)crc_fold_16[0]);
    __m128i a = _mm_xor_si128(_mm_loadu_si128(blocks), _mm_cvtsi32_si128((int)~crc));
    __m128i b = _mm_loadu_si128(blocks + 1), c = _mm_loadu_si128(blocks + 2);
    __m128i d = _mm_loadu_si128(blocks + 3);
    uint8_t rest[16];
    for (blocks += 4, size -= 64; size >= 64; blocks += 4, size -= 64) {
        a = crc_fold(a, by_64, _mm_loadu_si128(blocks));
        b = crc_fold(b, by_64, _mm_loadu_si128(blocks + 1));
        c = crc_fold(c, by_64, _mm_loadu_si128(blocks + 2));
        d = crc_fold(d, by_64, _mm_loadu_si128(blocks + 3));
    }
    a = crc_fold(crc_fold(crc_fold(a, by_16, b), by_16, c), by_16, d);
    for (; size >= 16; blocks++, size -= 16) a = crc_fold(a, by_16, _mm_loadu_si128(blocks));
    _mm_storeu_si128((__m128i *)rest, a);
    /* What is left is a message of 16 bytes and the tail; it begins with all bits of the CRC zero. */
    return crc_by_tables(crc_by_tables(~0u, rest, 16), (const uint8_t *)blocks, size);
}
#endif

static void crc_begin(int may_use_lanes) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ CRC_POLY : crc >> 1;
        crc_table[0][n] = crc;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int k = 1; k < 8; k++)
            crc_table[k][n] = crc_table[k - 1][n] >> 8 ^ crc_table[0][crc_table[k - 1][n] & 255];
    crc_lanes_on = 0;
    crc_squares[0] = 1u << 30;
    for (int k = 1; k < 64; k++) crc_squares[k] = crc_multiply(crc_squares[k - 1], crc_squares[k - 1]);
#ifdef CRC_HAS_LANES
    /* The low half of a lane stands for the higher powers of x: 64 more than the high half. */
    crc_fold_64[0] = crc_lane(64 * 8 + 64), crc_fold_64[1] = crc_lane(64 * 8);
    crc_fold_16[0] = crc_lane(16 * 8 + 64), crc_fold_16[1] = crc_lane(16 * 8);
    __builtin_cpu_init();
    crc_lanes_on = may_use_lanes && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

static uint32_t crc_of(uint32_t crc, const uint8_t *data, size_t size) {
#ifdef CRC_HAS_LANES
    if (size >= 64 && crc_lanes_on) return crc_by_lanes(crc, data, size);
#endif
    return crc_by_tables(crc, data, size);
}

/* The CRC of two pieces, by theirs and `shift` = crc_power(8 * size of the second). */
static uint32_t crc_join(uint32_t first, uint32_t second, uint32_t shift) {
    return crc_multiply(shift, first) ^ second;
}

#endif
