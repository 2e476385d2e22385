/* cursor.h - bounds-checked reading of bytes, with a sticky error.
 *
 * Every parser of foreign bytes reads through it. A read past the end sets `bad`, returns 0 and
 * moves nothing; all later reads return 0 as well, so that a parser may check once at its end.
 * Numbers are little-endian.
 */
#ifndef FP8D_BASE_CURSOR_H
#define FP8D_BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct cursor {
    const unsigned char *at;
    size_t left;
    bool bad;
};

static inline struct cursor cursor_over(const void *p, size_t len)
{
    return (struct cursor){.at = p, .left = len};
}

/* The next n bytes, or NULL (and bad) when fewer are left. */
static inline const void *cursor_take(struct cursor *c, size_t n)
{
    if (c->bad || n > c->left) {
        c->bad = true;
        return NULL;
    }
    const void *p = c->at;
    c->at += n;
    c->left -= n;
    return p;
}

static inline uint64_t cursor_le(struct cursor *c, unsigned bytes)
{
    const unsigned char *p = cursor_take(c, bytes);
    uint64_t v = 0;
    for (unsigned i = bytes; p && i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

static inline uint16_t cursor_u16(struct cursor *c)
{
    return (uint16_t)cursor_le(c, 2);
}

static inline uint32_t cursor_u32(struct cursor *c)
{
    return (uint32_t)cursor_le(c, 4);
}

static inline uint64_t cursor_u64(struct cursor *c)
{
    return cursor_le(c, 8);
}

#endif
