#include "base/ledger.h"

#include <assert.h>
#include <stddef.h>

void ledger_init(struct ledger *l, uint64_t cap)
{
    l->cap = cap;
    l->name = "memory limit";
    l->device = NULL;
    atomic_init(&l->used, 0);
    atomic_init(&l->peak, 0);
}

int ledger_charge(struct ledger *l, uint64_t bytes, const char *what, struct fault *f)
{
    uint64_t used = atomic_load(&l->used);
    do {
        if (bytes > l->cap || used > l->cap - bytes) {
            int rc = fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                               "%s needs %llu bytes, but %llu of the %s of %llu are in use", what,
                               (unsigned long long)bytes, (unsigned long long)used, l->name,
                               (unsigned long long)l->cap);
            f->retry_after_ms = bytes > l->cap ? 0 : 100; /* nothing that is freed would help */
            return rc;
        }
    } while (!atomic_compare_exchange_weak(&l->used, &used, used + bytes));
    uint64_t peak = atomic_load(&l->peak);
    while (peak < used + bytes && !atomic_compare_exchange_weak(&l->peak, &peak, used + bytes)) {
    }
    return 0;
}

void ledger_release(struct ledger *l, uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub(&l->used, bytes);
    assert(before >= bytes);
    (void)before;
}

uint64_t ledger_used(const struct ledger *l)
{
    return atomic_load(&l->used);
}

uint64_t ledger_peak(const struct ledger *l)
{
    return atomic_load(&l->peak);
}
