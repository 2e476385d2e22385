#include "daemon/rpc/tensors.h"

#include "base/checked.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"
#include "kernels/recipe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Shape and dtype of a reference, and what they come to. */
struct shape {
    enum dtype dtype;
    uint64_t rows, cols, bytes;
};

static int check_dims(const Fp8d__V1__TensorRef *ref, const char *field, struct shape *s,
                      struct fault *f)
{
    uint64_t n;
    if (ref->n_dims < 1 || ref->n_dims > TENSOR_RANK_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s.dims has %zu dimensions, needed 1 to %d",
                         field, ref->n_dims, TENSOR_RANK_MAX);
    s->cols = ref->dims[ref->n_dims - 1];
    if (!ck_product(ref->dims, (unsigned)ref->n_dims - 1, &s->rows) ||
        !ck_mul(s->rows, s->cols, &n) || !dtype_bytes(s->dtype, n, &s->bytes))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s.dims: the product of %zu dimensions has more bytes than a number can "
                         "count",
                         field, ref->n_dims);
    if (dtype_is_fp8(s->dtype) && !s->cols)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s.dims: the last dimension of an FP8 tensor is 0, needed at least 1",
                         field);
    return 0;
}

static int check_dtype(const Fp8d__V1__TensorRef *ref, const char *field, struct shape *s,
                       struct fault *f)
{
    s->dtype = tensors_dtype(ref->dtype);
    if (!dtype_is_high(s->dtype) && !dtype_is_fp8(s->dtype))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s.dtype is %s, needed F32, BF16, F16, F8_E4M3 or F8_E5M2", field,
                         s->dtype ? dtype_name(s->dtype) : "unset");
    if (dtype_is_high(s->dtype) && ref->granularity)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s.granularity is set, but its dtype is %s, which takes no factors",
                         field, dtype_name(s->dtype));
    if (dtype_is_high(s->dtype) && ref->n_scale_inv)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s carries %zu factors (scale_inv), but its dtype is %s", field,
                         ref->n_scale_inv, dtype_name(s->dtype));
    if (dtype_is_fp8(s->dtype) && ref->n_scale_inv != 1)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s.scale_inv has %zu factors, an FP8 tensor needs exactly 1 (granularity "
                         "tensor)",
                         field, ref->n_scale_inv);
    if (dtype_is_fp8(s->dtype) && !recipe_factor_ok(ref->scale_inv[0]))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s.scale_inv is %g, needed a finite number of at least 2^-128", field,
                         (double)ref->scale_inv[0]);
    return 0;
}

static int check_place(struct request *rq, const Fp8d__V1__TensorRef *ref, const char *field,
                       const struct shape *s, struct inline_cover *cover, struct fault *f)
{
    const Fp8d__V1__InlinePlace *p = ref->inline_bytes;
    uint64_t end;
    if (p->length != s->bytes)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s.inline_bytes.length is %llu, dtype and dims need %llu", field,
                         (unsigned long long)p->length, (unsigned long long)s->bytes);
    if (!ck_add(p->offset, p->length, &end) || end > rq->header.payload_len)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s.inline_bytes is %llu bytes at %llu, the payload has %llu", field,
                         (unsigned long long)p->length, (unsigned long long)p->offset,
                         (unsigned long long)rq->header.payload_len);
    if (p->offset % (dtype_bits(s->dtype) / 8))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s.inline_bytes.offset is %llu, needed a multiple of the element size %u",
                         field, (unsigned long long)p->offset, dtype_bits(s->dtype) / 8);
    if (cover->count == INLINE_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "more than %d inline tensors", INLINE_MAX);
    cover->begin[cover->count] = p->offset;
    cover->end[cover->count++] = end;
    return 0;
}

/* --- adoption: keeps payload and tensor until the queue has copied --- */

struct adoption {
    struct op op;
    struct buffer *bytes;
    struct qtensor *q;
};

static void adoption_finish(struct op *op)
{
    struct adoption *a = (struct adoption *)op;
    buffer_unref(a->bytes);
    qtensor_unref(a->q);
    mem_free(a);
}

static int adopt(struct request *rq, const struct shape *s, struct buffer *bytes, uint64_t offset,
                 float scale_inv, struct qtensor **out, struct fault *f)
{
    struct engine *e = rq->rpc->o.engine;
    struct adoption *a = mem_zalloc(sizeof *a);
    if (!a)
        return fault_set(f, -ENOMEM, "out of memory for an FP8 tensor");
    op_init(&a->op, e->o.exec, adoption_finish);
    int rc = e->adopted ? backend_follow(e->queue, e->adopted, f) : 0;
    if (!rc)
        rc = qtensor_adopt(e->queue, e->o.ledger, s->dtype, s->rows, s->cols, bytes, offset,
                           scale_inv, "an FP8 tensor", &a->q, f);
    if (rc) {
        mem_free(a);
        return rc;
    }
    a->bytes = buffer_ref(bytes);
    *out = qtensor_ref(a->q);
    op_submit(&a->op, e->queue);
    /* Its note takes a failure away, of which those must hear who use the tensor. */
    e->adopted = &a->op.note;
    return 0;
}

static int take_inline(struct request *rq, const Fp8d__V1__TensorRef *ref, const char *field,
                       struct inline_cover *cover, struct operand *out, struct fault *f)
{
    struct shape s;
    int rc = check_dtype(ref, field, &s, f);
    if (!rc)
        rc = check_dims(ref, field, &s, f);
    if (!rc)
        rc = check_place(rq, ref, field, &s, cover, f);
    /* Without a payload there is nothing to point at: an empty buffer stands for it. */
    struct buffer *buf = NULL;
    if (!rc && rq->payload)
        buf = buffer_ref(rq->payload);
    else if (!rc)
        rc = engine_host_buffer(rq->rpc->o.engine, 0, field, &buf, f);
    if (rc)
        return rc;
    struct operand o = {.rank = (unsigned)ref->n_dims};
    memcpy(o.dims, ref->dims, ref->n_dims * sizeof o.dims[0]);
    if (dtype_is_fp8(s.dtype)) {
        o.scale_inv = ref->scale_inv[0];
        rc = adopt(rq, &s, buf, ref->inline_bytes->offset, o.scale_inv, &o.q, f);
        buffer_unref(buf);
    } else {
        o.high = (struct tensor){buf, ref->inline_bytes->offset, s.dtype, s.rows, s.cols};
    }
    if (!rc)
        *out = o;
    return rc;
}

/* A factor beside a tensor_id may be left out; another one than the tensor's is a mistake. */
static int check_resident_factor(const Fp8d__V1__TensorRef *ref, const char *field,
                                 const struct operand *o, struct fault *f)
{
    if (!ref->n_scale_inv && !(ref->granularity && !o->q))
        return 0;
    if (!o->q)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s.scale_inv has %zu factors, but tensor %llu has dtype %s", field,
                         ref->n_scale_inv, (unsigned long long)ref->tensor_id,
                         dtype_name(operand_dtype(o)));
    if (ref->n_scale_inv == 1 && ref->scale_inv[0] == o->scale_inv)
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "%s.scale_inv is %g (%zu factors), tensor %llu has %g", field,
                     (double)ref->scale_inv[0], ref->n_scale_inv,
                     (unsigned long long)ref->tensor_id, (double)o->scale_inv);
}

static int take_resident(struct request *rq, const Fp8d__V1__TensorRef *ref, const char *field,
                         struct operand *out, struct fault *f)
{
    char name[80];
    struct resident *r;
    (void)snprintf(name, sizeof name, "%s.tensor_id", field);
    int rc = resident_find(&rq->session->lease, ref->tensor_id, name, &r, f);
    if (rc)
        return rc;
    const struct operand *o = &r->value;
    if (ref->dtype && tensors_dtype(ref->dtype) != operand_dtype(o))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s.dtype is %s, tensor %llu has %s", field,
                         dtype_name(tensors_dtype(ref->dtype)), (unsigned long long)ref->tensor_id,
                         dtype_name(operand_dtype(o)));
    if (ref->n_dims &&
        (ref->n_dims != o->rank || memcmp(ref->dims, o->dims, o->rank * sizeof o->dims[0]) != 0))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s.dims differs from the shape of tensor %llu",
                         field, (unsigned long long)ref->tensor_id);
    rc = check_resident_factor(ref, field, o, f);
    if (!rc)
        *out = operand_ref(o);
    return rc;
}

int tensors_operand(struct request *rq, const Fp8d__V1__TensorRef *ref, const char *field,
                    struct inline_cover *cover, struct operand *out, struct fault *f)
{
    if (!ref)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s is missing, needed a tensor", field);
    switch (ref->place_case) {
    case FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES:
        return take_inline(rq, ref, field, cover, out, f);
    case FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID:
        return take_resident(rq, ref, field, out, f);
    default:
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "%s has no place, needed inline_bytes or tensor_id", field);
    }
}

int tensors_covered(const struct request *rq, const struct inline_cover *cover, struct fault *f)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < cover->count; i++) {
        for (unsigned k = 0; k < i; k++)
            if (cover->begin[i] < cover->end[k] && cover->begin[k] < cover->end[i])
                return fault_set(
                    f, FP8D_EINVALID_ARGUMENT,
                    "inline tensors overlap: bytes %llu to %llu and %llu to %llu",
                    (unsigned long long)cover->begin[k], (unsigned long long)cover->end[k],
                    (unsigned long long)cover->begin[i], (unsigned long long)cover->end[i]);
        sum += cover->end[i] - cover->begin[i];
    }
    if (sum != rq->header.payload_len)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "the payload has %llu bytes, its inline tensors cover %llu",
                         (unsigned long long)rq->header.payload_len, (unsigned long long)sum);
    return 0;
}

void tensors_describe(const struct operand *o, Fp8d__V1__TensorRef *ref,
                      Fp8d__V1__InlinePlace *inline_place, uint64_t id, float *factor)
{
    ref->dtype = (Fp8d__V1__DType)operand_dtype(o);
    ref->n_dims = o->rank;
    ref->dims = (uint64_t *)(uintptr_t)o->dims;
    if (inline_place) {
        inline_place->offset = 0;
        inline_place->length = operand_bytes(o);
        ref->place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
        ref->inline_bytes = inline_place;
    } else {
        ref->place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
        ref->tensor_id = id;
    }
    if (o->q) {
        *factor = o->scale_inv;
        ref->granularity = FP8D__V1__GRANULARITY__GRANULARITY_TENSOR;
        ref->n_scale_inv = 1;
        ref->scale_inv = factor;
    }
}
