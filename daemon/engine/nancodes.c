#include "daemon/engine/nancodes.h"

#include <string.h>

#define TOP 0x8080808080808080u
#define BLOCK 256 /* looked at together: such codes are rare */

typedef unsigned char lanes __attribute__((vector_size(16)));

static uint64_t count_codes(const unsigned char *codes, size_t n, unsigned least)
{
    uint64_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += (codes[i] & 0x7fu) >= least;
    return count;
}

/* Whether a block has any: 0x80 - least added to the low seven bits carries into bit 7. */
static bool has_any(const unsigned char *codes, unsigned least)
{
    const lanes low = (lanes){0} + 0x7f;
    const lanes add = (lanes){0} + (unsigned char)(0x80u - least);
    lanes any = {0};
    uint64_t half[2];
    for (unsigned k = 0; k < BLOCK; k += sizeof any) {
        lanes v;
        memcpy(&v, codes + k, sizeof v);
        any |= (v & low) + add;
    }
    memcpy(half, &any, sizeof half);
    return ((half[0] | half[1]) & TOP) != 0;
}

/* Codes of which the low seven bits are at least `least`. */
static uint64_t at_least(const unsigned char *codes, size_t n, unsigned least)
{
    uint64_t count = 0;
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        if (has_any(codes + i, least))
            count += count_codes(codes + i, BLOCK, least);
    return count + count_codes(codes + i, n - i, least);
}

void nan_count_add(struct nan_count *c, enum dtype fmt, const unsigned char *codes, size_t n)
{
    if (fmt == DTYPE_F8_E4M3) {
        c->nan += at_least(codes, n, 0x7f);
        return;
    }
    uint64_t both = at_least(codes, n, 0x7c);
    uint64_t nan = both ? at_least(codes, n, 0x7d) : 0;
    c->nan += nan;
    c->inf += both - nan;
}
