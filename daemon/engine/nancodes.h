/* nancodes.h - counting FP8 codes that are no finite number. Pure functions; any thread. */
#ifndef FP8D_DAEMON_ENGINE_NANCODES_H
#define FP8D_DAEMON_ENGINE_NANCODES_H

#include "base/dtype.h"

#include <stdbool.h>
#include <stddef.h>

struct nan_count {
    uint64_t nan; /* E4M3: 0x7f, 0xff. E5M2: 0x7d to 0x7f, 0xfd to 0xff */
    uint64_t inf; /* E5M2: 0x7c, 0xfc */
};

void nan_count_add(struct nan_count *c, enum dtype fmt, const unsigned char *codes, size_t n);

#endif
