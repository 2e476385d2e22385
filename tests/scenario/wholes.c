#include "tests/scenario/wholes.h"

#include <stdlib.h>

/* --- numbers --- */

int whole(uint64_t seed, uint64_t i)
{
    uint64_t h = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1b54a32d192ed03u;
    return (int)((h ^ h >> 29) % 5) - 2;
}

float *wholes(uint64_t seed, uint64_t n)
{
    float *v = malloc((n + 1) * sizeof *v);
    for (uint64_t i = 0; i < n; i++)
        v[i] = (float)whole(seed, i);
    return v;
}

/* --- fixture --- */

/* The scale stays 1: each site's amax is 448 or 57344 whenever something is applied. */
void fix_open(struct fix *f, uint64_t out, uint64_t in, bool with_bias)
{
    *f = (struct fix){.desk = desk_new(NULL, 0), .out = out, .in = in};
    f->a = ask_open(f->desk, 1);
    f->w = wholes(W, out * in);
    f->bias = with_bias ? wholes(B, out) : NULL;
    struct desk_layer layer = {"l", out, in, f->w, f->bias};
    ck_assert(!desk_load(f->desk, 1, "m", &layer, 1, NULL, NULL));
    ck_assert(!ask_scope_begin(&f->a, 1, "m")); /* open all along: no scale moves */
}

void fix_close(struct fix *f)
{
    ask_close(&f->a);
    desk_free(f->desk);
    free(f->w);
    free(f->bias);
}

void forward_wholes(struct fix *f, uint64_t seed, uint64_t tokens, uint64_t context)
{
    float *x = wholes(X + seed, tokens * f->in);
    struct ask_forward r = {.model = "m",
                            .layer = "l",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, tokens, f->in),
                            .context_id = context};
    ck_assert_msg(!ask_forward(&f->a, &r), "%s", f->a.text);
    ask_forward_free(&r);
    free(x);
}

struct ask_backward backward_wholes(struct fix *f, uint64_t seed, uint64_t tokens,
                                    uint64_t context)
{
    float *dy = wholes(DY + seed, tokens * f->out);
    struct ask_backward b = {.context_id = context, .dy = ask_f32(dy, tokens, f->out)};
    ck_assert_msg(!ask_backward(&f->a, &b), "%s", f->a.text);
    free(dy);
    ck_assert_uint_eq(b.dx_bytes, tokens * f->in * sizeof(float));
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t i = 0; i < f->in; i++) {
            long sum = 0;
            for (uint64_t o = 0; o < f->out; o++)
                sum += whole(DY + seed, t * f->out + o) * whole(W, o * f->in + i);
            ck_assert_msg(((float *)b.dx)[t * f->in + i] == (float)sum, "dx [%lu, %lu]", t, i);
        }
    return b;
}

void run_backward(struct fix *f, uint64_t seed, uint64_t tokens, uint64_t context)
{
    struct ask_backward b = backward_wholes(f, seed, tokens, context);
    ask_backward_free(&b);
}

static long weight_sum(const struct fix *f, uint64_t seed, uint64_t tokens, uint64_t o, uint64_t i)
{
    long sum = 0;
    for (uint64_t t = 0; t < tokens; t++)
        sum += whole(DY + seed, t * f->out + o) * whole(X + seed, t * f->in + i);
    return sum;
}

void holds_wholes(struct fix *f, const struct part *parts, size_t n)
{
    struct ask_gradient g, b;
    ck_assert_msg(!ask_gradient(&f->a, "m", "l", false, &g), "%s", f->a.text);
    ck_assert_uint_eq(g.count, f->out * f->in);
    ck_assert_uint_eq(g.contributions, n);
    for (uint64_t k = 0; k < g.count; k++) {
        long want = 0;
        for (size_t p = 0; p < n; p++)
            want += weight_sum(f, parts[p].seed, parts[p].tokens, k / f->in, k % f->in);
        ck_assert_msg(g.data[k] == (float)want, "dw %lu is %g, needed %ld", k, (double)g.data[k],
                      want);
    }
    free(g.data);
    if (!f->bias)
        return;
    ck_assert_msg(!ask_gradient(&f->a, "m", "l", true, &b), "%s", f->a.text);
    ck_assert_uint_eq(b.count, f->out);
    for (uint64_t o = 0; o < f->out; o++) {
        long want = 0;
        for (size_t p = 0; p < n; p++)
            for (uint64_t t = 0; t < parts[p].tokens; t++)
                want += whole(DY + parts[p].seed, t * f->out + o);
        ck_assert_msg(b.data[o] == (float)want, "db %lu is %g, needed %ld", o, (double)b.data[o],
                      want);
    }
    free(b.data);
}
