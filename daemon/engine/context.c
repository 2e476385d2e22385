#include "daemon/engine/context.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>

/* An FP8 element takes a byte, and another in the second form, which a cast of ours has. */
static uint64_t bytes_of(const struct operand *input)
{
    return operand_rows(input) * operand_cols(input) * (input->q ? 1 : 2);
}

int context_new(struct lease *l, uint64_t id, struct model *m, struct layer *layer,
                const struct operand *input, struct context **out, struct fault *f)
{
    uint64_t input_bytes = bytes_of(input);
    int rc = lease_id_free(&l->contexts, id, "context_id", f);
    if (rc)
        return rc;
    if (l->contexts.count >= l->engine->o.contexts_max)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "this connection holds %zu contexts, the cap is %u", l->contexts.count,
                         l->engine->o.contexts_max);
    rc = lease_charge(l, input_bytes, "the context", f);
    if (rc)
        return rc;
    struct context *c = mem_zalloc(sizeof *c);
    if (!c || idmap_put(&l->contexts, id, c)) {
        mem_free(c);
        lease_release(l, input_bytes);
        return fault_set(f, -ENOMEM, "out of memory for context %llu", (unsigned long long)id);
    }
    *c = (struct context){
        .lease = l,
        .id = id,
        .model = model_ref(m),
        .layer = layer,
        .incarnation = m->incarnation,
        .weight_version = m->weight_version,
        .rank = input->rank,
        .tokens = operand_rows(input),
        .charged = input_bytes,
    };
    memcpy(c->dims, input->dims, sizeof c->dims);
    m->contexts++;
    l->engine->contexts++;
    *out = c;
    return 0;
}

void context_fill(struct context *c, struct qtensor *input, struct qtensor *weight,
                  enum dtype output_dtype)
{
    c->bias = c->layer->weight.bias;
    if (c->bias.buf)
        buffer_ref(c->bias.buf);
    c->output_dtype = output_dtype;
    c->input = input ? qtensor_ref(input) : NULL;
    c->weight = weight ? qtensor_ref(weight) : NULL;
}

int context_find(struct lease *l, uint64_t id, struct context **out, struct fault *f)
{
    struct context *c = idmap_get(&l->contexts, id);
    if (!c)
        return fault_set(f, FP8D_ENOT_FOUND, "context_id %llu is no context of this connection",
                         (unsigned long long)id);
    *out = c;
    return 0;
}

void context_end(struct context *c)
{
    idmap_remove(&c->lease->contexts, c->id);
    lease_release(c->lease, c->charged);
    c->model->contexts--;
    c->lease->engine->contexts--;
    qtensor_unref(c->input);
    qtensor_unref(c->weight);
    buffer_unref(c->bias.buf);
    model_unref(c->model);
    mem_free(c);
}
