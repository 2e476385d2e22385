#include "client/call.h"

int call_tensor_fill(struct call_tensor *out, const struct fp8d_tensor *t, struct request *r,
                     unsigned piece, struct fp8d_error *err)
{
    struct fault f = {0};
    Fp8d__V1__TensorRef *m = &out->ref;
    if (t->rank > FP8D_RANK_MAX)
        fault_set(&f, FP8D_EINVALID_ARGUMENT, "a tensor has %u dimensions, at most %d are possible",
                  t->rank, FP8D_RANK_MAX);
    else if (!t->tensor_id && t->size && !t->data)
        fault_set(&f, FP8D_EINVALID_ARGUMENT,
                  "a tensor of %llu bytes has neither data nor tensor_id",
                  (unsigned long long)t->size);
    if (f.code)
        return call_error(&f, err);
    fp8d__v1__tensor_ref__init(m);
    m->dtype = (Fp8d__V1__DType)t->dtype;
    m->n_dims = t->rank;
    m->dims = (uint64_t *)t->dims;
    m->granularity = (Fp8d__V1__Granularity)t->granularity;
    m->n_scale_inv = t->scale_inv_count;
    m->scale_inv = (float *)t->scale_inv;
    if (t->tensor_id) {
        m->place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
        m->tensor_id = t->tensor_id;
        return 0;
    }
    fp8d__v1__inline_place__init(&out->place);
    out->place.offset = 0;
    for (unsigned i = 0; i < piece; i++)
        out->place.offset += r->payload[i].iov_len;
    out->place.length = t->size;
    m->place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    m->inline_bytes = &out->place;
    r->payload[piece].iov_base = (void *)t->data;
    r->payload[piece].iov_len = t->size;
    return 0;
}

Fp8d__V1__Expect *call_expect(Fp8d__V1__Expect *m, const struct fp8d_expect *e)
{
    if (!e || (!e->incarnation && !e->weight_version))
        return NULL;
    fp8d__v1__expect__init(m);
    m->incarnation = e->incarnation;
    m->weight_version = e->weight_version;
    return m;
}

Fp8d__V1__Recipe *call_recipe(Fp8d__V1__Recipe *m, const struct fp8d_recipe *r)
{
    fp8d__v1__recipe__init(m);
    if (!r)
        return m;
    m->kind = (Fp8d__V1__RecipeKind)r->kind;
    m->fp8_format = (Fp8d__V1__Fp8Format)r->format;
    m->amax_algo = (Fp8d__V1__AmaxAlgo)r->amax_algo;
    m->amax_history_len = r->amax_history_len;
    m->margin = r->margin;
    m->margin_set = r->margin_set;
    m->fprop_accumulation = (Fp8d__V1__FpropAccumulation)r->fprop_accumulation;
    return m;
}
