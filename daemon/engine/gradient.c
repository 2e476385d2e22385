#include "daemon/engine/gradient.h"

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

uint64_t gradient_bytes(const struct gradient *g)
{
    return (g->weight.buf ? g->weight.buf->charged : 0) + (g->bias.buf ? g->bias.buf->charged : 0);
}
