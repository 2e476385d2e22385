/* ledger.h - the daemon-wide account of memory that clients can make grow.
 *
 * Bytes are charged before they are allocated and given back after they are freed. Thread-safe,
 * lock-free. One ledger a daemon, owned by main; a device with memory of its own has an account
 * beside it, so that neither takes what the other has.
 */
#ifndef FP8D_BASE_LEDGER_H
#define FP8D_BASE_LEDGER_H

#include "base/fault.h"

#include <stdatomic.h>
#include <stdint.h>

struct ledger {
    uint64_t cap;
    const char *name;      /* of the cap, in sentences; static */
    struct ledger *device; /* charged in this one's place for device memory; NULL: none apart */
    _Atomic uint64_t used;
    _Atomic uint64_t peak;
};

/* The name is "memory limit", and no device has an account of its own. */
void ledger_init(struct ledger *l, uint64_t cap);

/* FP8D_ERESOURCE_EXHAUSTED with wanted, used and cap in the sentence and a retry hint when the cap
 * would be passed; then nothing was charged. `what` names the thing, e.g. "input tensor". */
int ledger_charge(struct ledger *l, uint64_t bytes, const char *what, struct fault *f);
void ledger_release(struct ledger *l, uint64_t bytes);
uint64_t ledger_used(const struct ledger *l);
uint64_t ledger_peak(const struct ledger *l);

#endif
