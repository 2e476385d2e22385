/* tensors.h - TensorRef on the wire to operands of the engine, and back. Engine thread. */
#ifndef FP8D_DAEMON_RPC_TENSORS_H
#define FP8D_DAEMON_RPC_TENSORS_H

#include "daemon/engine/resident.h"
#include "daemon/rpc/request.h"

#define INLINE_MAX 4 /* inline tensors of one request */

/* The inline tensors of one request: inside the payload, apart, covering it. Zeroed to begin. */
struct inline_cover {
    uint64_t begin[INLINE_MAX], end[INLINE_MAX];
    unsigned count;
};

/* A tensor that a request names, inline or resident. `field` is its name in sentences. The operand
 * holds its own references. An FP8 tensor is adopted with its factor; one without is refused. */
int tensors_operand(struct request *rq, const Fp8d__V1__TensorRef *ref, const char *field,
                    struct inline_cover *cover, struct operand *out, struct fault *f);

/* Once all tensors are taken: the payload must be covered exactly, without overlap. */
int tensors_covered(const struct request *rq, const struct inline_cover *cover, struct fault *f);

/* A reply's description of an operand; `place` and `factor` are memory for it. inline_place NULL:
 * resident under `id`. */
void tensors_describe(const struct operand *o, Fp8d__V1__TensorRef *ref,
                      Fp8d__V1__InlinePlace *inline_place, uint64_t id, float *factor);

/* NULL-safe default: enum DType of the wire and enum dtype have the same numbers. */
static inline enum dtype tensors_dtype(Fp8d__V1__DType t)
{
    return (enum dtype)t;
}

#endif
