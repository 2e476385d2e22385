#include "base/dtype.h"

#include "base/checked.h"

#include <string.h>

unsigned dtype_bits(enum dtype t)
{
    switch (t) {
#define X(name, number, bits)                                                                      \
    case DTYPE_##name:                                                                             \
        return bits;
        DTYPE_LIST(X)
#undef X
    default:
        return 0;
    }
}

const char *dtype_name(enum dtype t)
{
    switch (t) {
#define X(name, number, bits)                                                                      \
    case DTYPE_##name:                                                                             \
        return #name;
        DTYPE_LIST(X)
#undef X
    default:
        return "?";
    }
}

enum dtype dtype_parse(const char *s, unsigned long len)
{
#define X(name, number, bits)                                                                      \
    if (len == sizeof(#name) - 1 && !memcmp(s, #name, len))                                        \
        return DTYPE_##name;
    DTYPE_LIST(X)
#undef X
    return DTYPE_NONE;
}

bool dtype_bytes(enum dtype t, uint64_t n, uint64_t *bytes)
{
    uint64_t bits;
    unsigned per = dtype_bits(t);
    if (!per || !ck_mul(n, per, &bits) || bits % 8)
        return false;
    *bytes = bits / 8;
    return true;
}
