/* Scale updates, bytes of scalers and mirrors: the same on both backends; comparisons near the
 * same. */
#include "tests/parity/parity.h"

#include "tests/parity/both.h"

#include <math.h>

#define SITES 20u

/* --- helpers --- */

/* Sites, then slots, then mirrors of either backend. */
struct states {
    struct rig *rig;
    struct buffer *buf;
    uint32_t len;
};

static struct scaler *site(const struct states *s, unsigned i)
{
    return (struct scaler *)(void *)((char *)s->buf->host + i * scaler_bytes(s->len));
}

static struct scaler *mirror(const struct states *s, unsigned i)
{
    return site(s, SITES + i);
}

static struct amax_slot *slots(const struct states *s)
{
    return (struct amax_slot *)(void *)site(s, 2 * SITES);
}

static struct states states_new(struct rig *r, uint32_t len)
{
    struct states s = {.rig = r, .len = len};
    uint64_t bytes = 2 * SITES * scaler_bytes(len) + SITES * sizeof(struct amax_slot);
    s.buf = rig_buffer(r, bytes, NULL);
    memset(s.buf->host, POISON, bytes);
    for (unsigned i = 0; i < SITES; i++)
        scaler_init(site(&s, i), len);
    return s;
}

/* What step `n` does, the same for both: some sites without slot or mirror, some replaced. */
static void step(const struct states *s, uint64_t n, unsigned count)
{
    struct apply_site at[SITES];
    for (unsigned i = 0; i < count; i++) {
        uint64_t h = both_hash(n, i);
        struct amax_slot *slot = &slots(s)[i];
        float amax = ldexpf((float)(h >> 40) * 0x1p-24f, (int)(h % 90) - 45);
        *slot = (struct amax_slot){.amax = h % 11 == 0 ? 0.0f : amax,
                                   .casts = h % 13 != 0,
                                   .nonfinite = h % 17 == 0,
                                   .saturated = h >> 50,
                                   .flushed = h >> 45};
        at[i] = (struct apply_site){.site = site(s, i),
                                    .slot = h % 7 ? slot : NULL,
                                    .mirror = h % 5 ? mirror(s, i) : NULL,
                                    .fmt = i % 2 ? DTYPE_F8_E5M2 : DTYPE_F8_E4M3};
        if (h % 19 == 0) {
            memcpy(mirror(s, i), site(s, i), scaler_bytes(s->len));
            mirror(s, i)->scale = 3.0f;
            at[i].replace = mirror(s, i);
            at[i].mirror = NULL;
        }
    }
    struct apply a = {.sites = at,
                      .count = count,
                      .algo = n % 3 ? AMAX_MAX : AMAX_MOST_RECENT,
                      .margin = (int)(n % 4) * 10,
                      .frozen = n % 23 == 0};
    ck_assert_msg(!backend_apply(s->rig->q, &a, &s->rig->f), "%s", s->rig->f.text);
    rig_wait(s->rig);
}

/* --- cases --- */

/* Random sequences over history lengths; 1, a few and many sites a call. */
START_TEST(parity_applies)
{
    static const uint32_t lens[] = {1, 2, 3, 31, 1024, 1025, 65536};
    static const unsigned counts[] = {1, 2, 8, 9, SITES};
    uint32_t len = lens[_i];
    struct states c = states_new(&both.cpu, len), g = states_new(&both.gpu, len);
    uint64_t steps = rig_small() ? 20 : len > 2000 ? 60 : 400;
    for (uint64_t n = 0; n < steps; n++) {
        step(&c, n, counts[n % 5]);
        step(&g, n, counts[n % 5]);
        if (memcmp(c.buf->host, g.buf->host, c.buf->bytes) != 0)
            ck_abort_msg("history %u: step %lu, %u sites, differs", len, n, counts[n % 5]);
    }
    buffer_unref(c.buf);
    buffer_unref(g.buf);
}
END_TEST

/* Maxima and counts are equal; sums, in another order, to 2^-40; twice the same bits. */
START_TEST(parity_compares)
{
    uint64_t rows = rig_small() ? 37 : 1003, n = rows * 1008;
    float *x = malloc(n * sizeof *x);
    uint16_t *y = malloc(n * sizeof *y);
    both_fill(x, DTYPE_F32, n, DATA_TAME, 3);
    both_fill(y, DTYPE_BF16, n, DATA_TAME, 4);
    x[5] = (float)NAN;
    y[n - 1] = 0x7f80;
    struct pair a = both_tensor(DTYPE_F32, rows, 1008, x, 1);
    struct pair b = both_tensor(DTYPE_BF16, rows, 1008, y, 0);
    struct buffer *rc = rig_buffer(&both.cpu, sizeof(struct compare_report), NULL);
    struct buffer *rg = rig_buffer(&both.gpu, 2 * sizeof(struct compare_report), NULL);
    struct compare_report *c = rc->host, *g = rg->host;
    ck_assert_int_eq(backend_compare(both.cpu.q, &a.cpu, &b.cpu, c, &both.cpu.f), 0);
    ck_assert_int_eq(backend_compare(both.gpu.q, &a.gpu, &b.gpu, g, &both.gpu.f), 0);
    ck_assert_int_eq(backend_compare(both.gpu.q, &a.gpu, &b.gpu, g + 1, &both.gpu.f), 0);
    rig_wait(&both.cpu);
    rig_wait(&both.gpu);
    ck_assert(c->max_diff == g->max_diff && c->max_ref == g->max_ref);
    ck_assert_uint_eq(c->nonfinite, 2);
    ck_assert_uint_eq(g->nonfinite, 2);
    ck_assert(fabs(c->sum_diff2 - g->sum_diff2) <= 0x1p-40 * c->sum_diff2);
    ck_assert(fabs(c->sum_ref2 - g->sum_ref2) <= 0x1p-40 * c->sum_ref2);
    ck_assert_mem_eq(g, g + 1, sizeof *g);
    buffer_unref(rc);
    buffer_unref(rg);
    pair_free(&a);
    pair_free(&b);
    free(x);
    free(y);
}
END_TEST

TCase *parity_state_case(void)
{
    TCase *c = tcase_create("state");
    tcase_set_timeout(c, 300);
    tcase_add_checked_fixture(c, both_setup, both_teardown);
    tcase_add_loop_test(c, parity_applies, 0, 7);
    tcase_add_test(c, parity_compares);
    return c;
}
