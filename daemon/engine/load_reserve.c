#include "daemon/engine/load_reserve.h"

#include "base/text.h"
#include "daemon/engine/load_optimizer.h"
#include "daemon/engine/load_route.h"

#include <errno.h>
#include <string.h>

static int new_buffer(struct load *ld, enum buffer_kind kind, uint64_t bytes,
                      const struct safetensors_tensor *t, struct buffer **out, struct fault *f)
{
    char name[256];
    return buffer_new(ld->engine->o.backend, ld->engine->o.ledger, kind, bytes,
                      text_escape(name, sizeof name, t->name, strlen(t->name)), out, f);
}

/* A high-precision tensor's memory, in the dtype given. */
static int new_tensor(struct load *ld, const struct safetensors_tensor *t, enum dtype dtype,
                      struct tensor *out, struct fault *f)
{
    struct tensor to = {
        .dtype = dtype,
        .rows = t->rank == 2 ? t->dims[0] : 1,
        .cols = t->dims[t->rank - 1],
    };
    uint64_t bytes;
    if (!dtype_bytes(dtype, to.rows * to.cols, &bytes)) /* the file's own size has not wrapped */
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "a weight of [%llu, %llu] is too large",
                         (unsigned long long)to.rows, (unsigned long long)to.cols);
    int rc = new_buffer(ld, BUFFER_DEVICE, bytes, t, &to.buf, f);
    if (rc)
        return rc;
    *out = to;
    return 0;
}

/* The weight's memory by its route; *high has rows and cols in any case. */
static int reserve_weight(struct load *ld, const struct source *x, struct load_part *p,
                          struct tensor *high, struct fault *f)
{
    const struct safetensors_tensor *t = x->weight;
    uint64_t room = qtensor_room(t->dims[0], t->dims[1]);
    *high = (struct tensor){.rows = t->dims[0], .cols = t->dims[1]};
    switch (load_route(ld, x)) {
    case ROUTE_HIGH:
        return new_tensor(ld, t, t->dtype, high, f);
    case ROUTE_WIDEN:
        return new_tensor(ld, t, ld->o.dequantize, high, f);
    case ROUTE_VERBATIM:
        return new_buffer(ld, BUFFER_DEVICE, room, t, &p->codes, f);
    case ROUTE_CAST:
        return new_buffer(ld, BUFFER_DEVICE, room, t, &p->hold, f);
    }
    return 0;
}

static void count(struct load *ld, const struct safetensors_tensor *t, unsigned tensors)
{
    if (t)
        atomic_fetch_add(&ld->bytes_total, t->bytes);
    atomic_fetch_add(&ld->tensors_total, t ? tensors : 0);
}

static void count_layer(struct load *ld, const struct source *x)
{
    count(ld, x->weight, 1);
    count(ld, x->bias, 1);
    count(ld, x->factor, 0);
    count(ld, x->input_factor, 0);
    for (unsigned k = 0; k < 3; k++)
        for (unsigned i = 0; i < SOURCE_SITE_PARTS; i++)
            count(ld, x->site[k][i], 0);
    for (unsigned i = 0; i < SOURCE_CACHED_PARTS; i++)
        if (i != SOURCE_CODES || load_route_keeps_copy(ld, x))
            count(ld, x->cached[i], i == SOURCE_CODES);
}

static int reserve_layer(struct load *ld, size_t i, struct fault *f)
{
    const struct source *x = &ld->claim.layers[i];
    struct load_part *p = &ld->parts[i];
    struct tensor bias = {0};
    struct tensor high;
    int rc = reserve_weight(ld, x, p, &high, f);
    if (rc)
        return rc;
    if (x->bias)
        rc = new_tensor(ld, x->bias, x->bias->dtype, &bias, f);
    if (rc) {
        buffer_unref(high.buf);
        return rc;
    }
    rc = model_fill_layer(ld->built, i, x->name, high, bias, f);
    if (!rc && load_route_keeps_copy(ld, x))
        rc = new_buffer(ld, BUFFER_DEVICE, qtensor_room(high.rows, high.cols),
                        x->cached[SOURCE_CODES], &p->copy_codes, f);
    count_layer(ld, x);
    return rc ? rc : load_optimizer_reserve(ld, i, f);
}

/* Memory that is shared by all layers, one after another. */
static int reserve_shared(struct load *ld, struct fault *f)
{
    struct engine *e = ld->engine;
    uint64_t staging = e->unified ? 0 : LOAD_BLOCK;
    uint64_t scratch = 0;
    for (size_t i = 0; i < ld->claim.layer_count; i++) {
        const struct source *x = &ld->claim.layers[i];
        enum load_route route = load_route(ld, x);
        uint64_t row = x->weight->dims[1];
        if (route == ROUTE_CAST && x->weight->bytes > scratch)
            scratch = x->weight->bytes;
        if (route == ROUTE_WIDEN && staging < LOAD_BLOCK)
            staging = LOAD_BLOCK;
        if (route == ROUTE_WIDEN && row > staging)
            staging = row;
    }
    int rc = 0;
    if (staging)
        rc = engine_host_buffer(e, staging, "a block of the file", &ld->staging, f);
    if (!rc && scratch)
        rc = buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, scratch,
                        "a weight that is to be cast", &ld->scratch, f);
    return rc;
}

int load_reserve(struct load *ld, const struct recipe *r, struct fault *f)
{
    size_t n = ld->claim.layer_count;
    ld->parts = mem_array(n, sizeof *ld->parts);
    if (!ld->parts)
        return fault_set(f, -ENOMEM, "out of memory for %zu layers", n);
    int rc = model_new(ld->engine, ld->o.model, r, n, &ld->built, f);
    for (size_t i = 0; !rc && i < n; i++)
        rc = reserve_layer(ld, i, f);
    return rc ? rc : reserve_shared(ld, f);
}
