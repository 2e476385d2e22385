/* resident.h - tensors that stay: put by a client or left by a forward, under an id of its lease.
 *
 * A value is a high-precision tensor or an FP8 tensor with its factor, never bytes alone. Engine
 * thread.
 */
#ifndef FP8D_DAEMON_ENGINE_RESIDENT_H
#define FP8D_DAEMON_ENGINE_RESIDENT_H

#include "daemon/engine/lease.h"

#define TENSOR_RANK_MAX 8

/* Any tensor of a request: exactly one of q and high.buf is set. Holds a reference to it. */
struct operand {
    unsigned rank;               /* 1 to TENSOR_RANK_MAX */
    uint64_t dims[TENSOR_RANK_MAX];
    struct tensor high;          /* seen as [product of all but the last, last] */
    struct qtensor *q;           /* the same view */
    float scale_inv;             /* of q */
};

void operand_fini(struct operand *o);                /* also when zeroed */
struct operand operand_ref(const struct operand *o); /* another holder */
uint64_t operand_rows(const struct operand *o);
uint64_t operand_cols(const struct operand *o);
enum dtype operand_dtype(const struct operand *o);
uint64_t operand_bytes(const struct operand *o);     /* of the elements */

struct resident {
    struct lease *lease;
    uint64_t id;
    struct operand value;
    uint64_t charged;
};

/* File a value under an id that is free; `field` names the id in sentences. Takes over the
 * reference, also on failure. */
int resident_new(struct lease *l, uint64_t id, const char *field, struct operand value,
                 struct resident **out, struct fault *f);

/* What an id is to name once a request has succeeded: a new resident tensor, or with `replace`
 * another value for the one that is there. Charged and held beforehand, so that its end cannot
 * fail. `field` as above; takes over the reference, also on failure. */
struct filing {
    struct resident *resident; /* NULL: none */
    bool fresh;                /* made for this */
    struct operand value;      /* unless fresh */
    uint64_t charged;
};
int filing_open(struct lease *l, uint64_t id, const char *field, bool replace,
                struct operand value, struct filing *out, struct fault *f);
void filing_settle(struct filing *n);
void filing_withdraw(struct filing *n); /* also when zeroed */

int resident_find(struct lease *l, uint64_t id, const char *field, struct resident **out,
                  struct fault *f);
void resident_end(struct resident *r); /* takes it out of its lease */

#endif
