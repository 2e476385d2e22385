#include "daemon/engine/gradient.h"

#include "daemon/engine/engine.h"

void gradient_fini(struct gradient *g)
{
    buffer_unref(g->weight.buf);
    buffer_unref(g->bias.buf);
    *g = (struct gradient){0};
}

void gradient_forget(struct gradient *g)
{
    g->held = false;
    g->contributions = 0;
    g->nonfinite = 0;
}

bool gradient_expected(const struct gradient *g)
{
    return g->held || g->coming;
}

const struct tensor *gradient_weight(const struct gradient *g)
{
    return g->coming ? &g->coming->weight : &g->weight;
}

const struct tensor *gradient_bias(const struct gradient *g)
{
    return g->coming ? &g->coming->bias : &g->bias;
}

uint64_t gradient_bytes(const struct gradient *g)
{
    return (g->weight.buf ? g->weight.buf->charged : 0) + (g->bias.buf ? g->bias.buf->charged : 0);
}

static int float_buffer(struct engine *e, uint64_t elements, const char *what, struct buffer **out,
                        struct fault *f)
{
    return buffer_new(e->o.backend, e->o.ledger, BUFFER_DEVICE, elements * sizeof(float), what, out,
                      f);
}

int gradient_reserve(const struct gradient *g, struct engine *e, uint64_t out, uint64_t in,
                     bool bias, struct gradient_next *n, struct fault *f)
{
    int rc = 0;
    *n = (struct gradient_next){.weight = g->weight};
    if (!g->weight.buf || atomic_load(&g->weight.buf->refs) > 1) {
        rc = float_buffer(e, out * in, "the weight's gradient", &n->fresh, f);
        n->weight = (struct tensor){.buf = n->fresh, .dtype = DTYPE_F32, .rows = out, .cols = in};
    }
    if (rc || !bias)
        return rc;
    n->bias = (struct tensor){.dtype = DTYPE_F32, .rows = 1, .cols = out};
    return float_buffer(e, out, "the bias' gradient", &n->bias.buf, f);
}

static int carry(const struct tensor *from, const struct tensor *to, struct queue *q,
                 struct fault *f)
{
    return backend_copy(q, to->buf, 0, from->buf, from->offset,
                        from->rows * from->cols * sizeof(float), f);
}

int gradient_carry(const struct gradient *g, const struct gradient_next *n, struct queue *q,
                   struct fault *f)
{
    int rc = g->held && n->fresh ? carry(&g->weight, &n->weight, q, f) : 0;
    if (!rc && g->held && g->bias.buf && n->bias.buf)
        rc = carry(&g->bias, &n->bias, q, f);
    return rc;
}

void gradient_settle(struct gradient *g, struct gradient_next *n, uint64_t nonfinite)
{
    if (n->fresh) {
        buffer_unref(g->weight.buf);
        g->weight = n->weight;
        n->fresh = NULL;
    }
    if (n->bias.buf) {
        buffer_unref(g->bias.buf);
        g->bias = n->bias;
        n->bias.buf = NULL;
    }
    g->held = true;
    g->contributions++;
    g->nonfinite += nonfinite;
}

void gradient_next_fini(struct gradient_next *n)
{
    buffer_unref(n->fresh);
    buffer_unref(n->bias.buf);
    *n = (struct gradient_next){0};
}
