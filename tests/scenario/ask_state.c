/* Scaling state as a client sees it, and numbers from a seed. */
#include "tests/scenario/ask.h"

#include "tests/oracle/gemm_input.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- scaling state --- */

Fp8d__V1__QueryScalingReply *ask_state(struct ask *a, const char *model)
{
    struct desk_frame *frame = desk_scaling(a->desk, a->conn, model);
    ck_assert_ptr_nonnull(frame);
    Fp8d__V1__QueryScalingReply *r =
        fp8d__v1__query_scaling_reply__unpack(NULL, frame->meta_len, frame->meta);
    ck_assert_ptr_nonnull(r);
    desk_frame_free(frame);
    return r;
}

void ask_state_free(Fp8d__V1__QueryScalingReply *s)
{
    fp8d__v1__query_scaling_reply__free_unpacked(s, NULL);
}

const Fp8d__V1__SiteState *ask_site(const Fp8d__V1__QueryScalingReply *s, const char *layer,
                                    const char *site)
{
    for (size_t i = 0; i < s->n_layers; i++)
        for (size_t k = 0; !strcmp(s->layers[i]->name, layer) && k < s->layers[i]->n_sites; k++)
            if (!strcmp(s->layers[i]->sites[k]->name, site))
                return s->layers[i]->sites[k];
    ck_abort_msg("layer %s has no site %s", layer, site);
    return NULL;
}

#define SAME(field) ck_assert_msg(a->field == b->field, "%s: " #field " differs", a->name)
/* Floats by their bits. */
#define SAME_BITS(field)                                                                           \
    ck_assert_msg(!memcmp(&a->field, &b->field, sizeof a->field), "%s: " #field " %g, %g",         \
                  a->name, (double)a->field, (double)b->field)

static void sites_equal(const Fp8d__V1__SiteState *a, const Fp8d__V1__SiteState *b, bool copies)
{
    ck_assert_str_eq(a->name, b->name);
    SAME(fp8_dtype);
    SAME(set);
    SAME_BITS(scale);
    SAME_BITS(scale_inv);
    SAME_BITS(amax_last);
    SAME_BITS(collecting);
    SAME(n_history);
    for (size_t i = 0; i < a->n_history; i++)
        SAME_BITS(history[i]);
    SAME(updates);
    SAME(skipped_updates);
    SAME(saturated);
    SAME(flushed);
    SAME(nonfinite);
    if (copies)
        SAME_BITS(scale_inv_in_use);
}

static void layers_equal(const Fp8d__V1__LayerScaling *a, const Fp8d__V1__LayerScaling *b,
                         bool copies)
{
    ck_assert_str_eq(a->name, b->name);
    SAME(n_sites);
    SAME(weight_version);
    if (copies)
        SAME(cached_version);
    for (size_t k = 0; k < a->n_sites; k++)
        sites_equal(a->sites[k], b->sites[k], copies);
}

void ask_states_equal(const Fp8d__V1__QueryScalingReply *a, const Fp8d__V1__QueryScalingReply *b,
                      bool copies)
{
    ck_assert_uint_eq(a->n_layers, b->n_layers);
    ck_assert(a->frozen == b->frozen && a->scope_open == b->scope_open);
    ck_assert(a->recipe->kind == b->recipe->kind && a->recipe->margin == b->recipe->margin);
    for (size_t i = 0; i < a->n_layers; i++)
        layers_equal(a->layers[i], b->layers[i], copies);
}

/* --- numbers --- */

static double unit(uint64_t seed, uint64_t i)
{
    return (double)(gemm_stream(seed, i) >> 40) * 0x1p-24;
}

float *draw_uniform(uint64_t seed, size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)unit(seed, i);
    return x;
}

/* Box and Muller. */
float *draw_normal(uint64_t seed, size_t n, double spread)
{
    float *x = malloc((n + 1) * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++) {
        double radius = sqrt(-2.0 * log(1.0 - unit(seed, 2 * i)));
        x[i] = (float)(spread * radius * cos(2.0 * M_PI * unit(seed, 2 * i + 1)));
    }
    return x;
}

uint64_t draw(uint64_t *state, uint64_t below)
{
    *state += 1;
    return gemm_stream(*state, *state) % below;
}
