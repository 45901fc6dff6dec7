/* How many of the first bytes of a text mean themselves in a JSON string: eight at a time. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EACH(byte) (0x0101010101010101ull * (byte))
#define ZERO(word) (((word) - EACH(0x01)) & ~(word))

/* No control character, no quote, no backslash; `ascii`: and nothing from 0x7F on. */
static inline size_t same_bytes(const uint8_t *text, size_t size, int ascii) {
    size_t at = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (size - at >= 8) {
        uint64_t word, found;
        memcpy(&word, text + at, 8);
        /* A borrow can mark a byte wrongly only behind one that is marked rightly. */
        found = ((word - EACH(0x20)) & ~word) | ZERO(word ^ EACH('"')) | ZERO(word ^ EACH('\\'));
        if (ascii) found |= word | ZERO(word ^ EACH(0x7F));
        found &= EACH(0x80);
        if (found) return at + (size_t)__builtin_ctzll(found) / 8;
        at += 8;
    }
#endif
    while (at < size) {
        uint8_t byte = text[at];
        if (byte < 0x20 || byte == '"' || byte == '\\' || (ascii && byte >= 0x7F)) break;
        at++;
    }
    return at;
}
