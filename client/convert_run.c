/* Replies to loads, tensors and compute. */
#include "client/convert.h"

#include "base/checked.h"
#include "base/dtype.h"

#include <string.h>

void convert_cast(const Fp8d__V1__CastInfo *m, bool *has, struct fp8d_cast *out)
{
    *has = m != NULL;
    if (!m)
        return;
    *out = (struct fp8d_cast){
        .dtype = (enum fp8d_dtype)m->fp8_dtype,
        .scale = m->scale,
        .scale_inv = m->scale_inv,
        .amax = m->amax,
        .saturated = m->saturated,
        .flushed = m->flushed,
        .nonfinite = m->nonfinite,
        .uncalibrated = m->uncalibrated,
    };
}

static int take_shape(const Fp8d__V1__TensorRef *m, struct fp8d_tensor *out, struct fault *f)
{
    uint64_t elements;
    if (m->n_dims > FP8D_RANK_MAX)
        return fault_set(f, FP8D_EPROTOCOL, "a tensor has %zu dimensions, at most %d are possible",
                         m->n_dims, FP8D_RANK_MAX);
    out->dtype = (enum fp8d_dtype)m->dtype;
    out->rank = (uint32_t)m->n_dims;
    if (m->n_dims)
        memcpy(out->dims, m->dims, m->n_dims * sizeof m->dims[0]);
    if (!ck_product(m->dims, out->rank, &elements) ||
        !dtype_bytes((enum dtype)m->dtype, elements, &out->size))
        return fault_set(f, FP8D_EPROTOCOL, "a tensor of dtype %d has no size", (int)m->dtype);
    return 0;
}

static int take_inline(struct fp8d_result *r, const Fp8d__V1__InlinePlace *place,
                       struct fp8d_tensor *out, struct fault *f)
{
    if (place->offset || place->length != r->payload_len || out->size != r->payload_len)
        return fault_set(
            f, FP8D_EPROTOCOL,
            "a tensor of %llu bytes is said to be bytes %llu to +%llu of a payload of %llu",
            (unsigned long long)out->size, (unsigned long long)place->offset,
            (unsigned long long)place->length, (unsigned long long)r->payload_len);
    r->tensor = out;
    return 0;
}

int convert_tensor(struct fp8d_result *r, const Fp8d__V1__TensorRef *m, struct fp8d_tensor *out,
                   struct fault *f)
{
    if (!m)
        return fault_set(f, FP8D_EPROTOCOL, "the tensor is missing");
    int rc = take_shape(m, out, f);
    if (rc)
        return rc;
    out->granularity = (enum fp8d_granularity)m->granularity;
    out->scale_inv = m->scale_inv;
    out->scale_inv_count = m->n_scale_inv;
    if (dtype_is_fp8((enum dtype)m->dtype) && !m->n_scale_inv)
        return fault_set(f, FP8D_EPROTOCOL, "an FP8 tensor came without its factor");
    switch (m->place_case) {
    case FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES:
        return take_inline(r, m->inline_bytes, out, f);
    case FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID:
        out->tensor_id = m->tensor_id;
        return 0;
    default:
        return fault_set(f, FP8D_EPROTOCOL, "a tensor is at no place that is known here");
    }
}

int convert_load_commit(struct fp8d_result *r, const Fp8d__V1__LoadCommitReply *m, struct fault *f)
{
    struct fp8d_load_report *s = arena_zalloc(&r->arena, 1, sizeof *s);
    if (!s)
        return convert_nomem(f);
    const Fp8d__V1__LoadReport *from = m->report;
    if (!from)
        return fault_set(f, FP8D_EPROTOCOL, "field report is missing");
    s->layers = from->layers;
    s->parameters = from->parameters;
    s->bytes_read = from->bytes_read;
    s->read_us = from->read_us;
    convert_recipe(from->recipe, &s->recipe);
    s->loaded = (const char *const *)from->loaded;
    s->loaded_count = from->n_loaded;
    s->ignored = (const char *const *)from->ignored;
    s->ignored_count = from->n_ignored;
    s->ignored_total = from->ignored_count;
    s->notes = (const char *const *)from->notes;
    s->notes_count = from->n_notes;
    s->converted = (const char *const *)from->converted;
    s->converted_count = from->n_converted;
    s->nan_codes = from->nan_codes;
    r->body = s;
    return 0;
}

int convert_get_tensor(struct fp8d_result *r, const Fp8d__V1__GetTensorReply *m, struct fault *f)
{
    struct fp8d_tensor *s = arena_zalloc(&r->arena, 1, sizeof *s);
    if (!s)
        return convert_nomem(f);
    r->body = s;
    return convert_tensor(r, m->tensor, s, f);
}

int convert_forward(struct fp8d_result *r, const Fp8d__V1__ForwardReply *m, struct fault *f)
{
    struct fp8d_forward_result *s = arena_zalloc(&r->arena, 1, sizeof *s);
    if (!s)
        return convert_nomem(f);
    convert_cast(m->input, &s->has_input, &s->input);
    convert_cast(m->weight, &s->has_weight, &s->weight);
    s->weight_copy = (enum fp8d_weight_copy)m->weight_copy;
    s->scales_applied = m->scales_applied;
    s->compute_ns = m->compute_ns;
    r->body = s;
    return convert_tensor(r, m->output, &s->output, f);
}

int convert_end_scope(struct fp8d_result *r, const Fp8d__V1__EndScopeReply *m, struct fault *f)
{
    struct fp8d_scope_end *s = arena_alloc(&r->arena, sizeof *s);
    if (!s)
        return convert_nomem(f);
    *s = (struct fp8d_scope_end){m->sites_updated, m->sites_skipped};
    r->body = s;
    return 0;
}

int convert_finish_calibration(struct fp8d_result *r, const Fp8d__V1__FinishCalibrationReply *m,
                               struct fault *f)
{
    struct fp8d_calibration *s = arena_alloc(&r->arena, sizeof *s);
    if (!s)
        return convert_nomem(f);
    *s = (struct fp8d_calibration){m->sites_set, m->sites_unset};
    r->body = s;
    return 0;
}

int convert_check_numerics(struct fp8d_result *r, const Fp8d__V1__CheckNumericsReply *m,
                           struct fault *f)
{
    struct fp8d_check *s = arena_zalloc(&r->arena, 1, sizeof *s);
    if (!s)
        return convert_nomem(f);
    s->max_abs_error = m->max_abs_error;
    s->max_abs_reference = m->max_abs_reference;
    s->relative_error = m->relative_error;
    convert_cast(m->input, &s->has_input, &s->input);
    convert_cast(m->weight, &s->has_weight, &s->weight);
    s->input_elements = m->input_elements;
    s->weight_elements = m->weight_elements;
    s->nonfinite_outputs = m->nonfinite_outputs;
    r->body = s;
    return 0;
}
