/* Operations on state through the backend: measure, apply, compare. */
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include <math.h>

/* --- fixture: a queue, a site of four rows and a report in backend memory --- */

static struct rig rig;
static struct buffer *memory;
static struct cast_report *report;
static struct scaler *site;

static void setup(bool is_inline)
{
    rig_open(&rig, CPU_LEVEL_AUTO, 2, is_inline);
    memory = rig_buffer(&rig, 256 + scaler_bytes(4), NULL);
    report = memory->host;
    site = (struct scaler *)((char *)memory->host + 256);
    scaler_init(site, 4);
}

static void setup_inline(void)
{
    setup(true);
}

static void setup_threads(void)
{
    setup(false);
}

static void teardown(void)
{
    buffer_unref(memory);
    rig_close(&rig);
}

/* --- cases --- */

/* Bytes between the offsets are copied, and no others. */
START_TEST(copy_moves_exactly_its_bytes)
{
    struct buffer *from = rig_buffer(&rig, 8, "abcdefg"), *to = rig_buffer(&rig, 8, "ABCDEFG");
    ck_assert_int_eq(backend_copy(rig.q, to, 1, from, 3, 2, &rig.f), 0);
    rig_wait(&rig);
    ck_assert_str_eq(to->host, "AdeDEFG");
    buffer_unref(from);
    buffer_unref(to);
}
END_TEST

/* Measuring sees amax and non-finite elements, and neither casts nor counts anything else. */
START_TEST(measure_reports_amax_alone)
{
    struct tensor x =
        rig_tensor(&rig, DTYPE_F32, 1, 4, (float[]){-1e30f, 1e-30f, (float)NAN, 5.0f});
    ck_assert_int_eq(backend_measure(rig.q, &x, report, &rig.f), 0);
    rig_wait(&rig);
    const struct amax_slot *s = &report->slot;
    ck_assert(s->amax == 1e30f && s->casts == 1 && s->nonfinite == 1);
    ck_assert(s->saturated == 0 && s->flushed == 0);
    buffer_unref(x.buf);
}
END_TEST

/* Apply moves every site of its list, without a slot too, and fills the mirrors. */
START_TEST(apply_moves_sites_and_mirrors)
{
    struct buffer *more = rig_buffer(&rig, 3 * scaler_bytes(4), NULL);
    struct scaler *second = more->host;
    struct scaler *mirror = (struct scaler *)((char *)more->host + scaler_bytes(4));
    struct amax_slot *slot = (struct amax_slot *)(void *)((char *)mirror + scaler_bytes(4));
    *slot = (struct amax_slot){.amax = 14.0f, .casts = 1, .flushed = 3};
    scaler_init(second, 4);
    second->history[0] = 57344.0f;
    struct apply_site at[2] = {
        {.site = site, .slot = slot, .mirror = mirror, .fmt = DTYPE_F8_E4M3},
        {.site = second, .fmt = DTYPE_F8_E5M2}};
    struct apply p = {.sites = at, .count = 2, .algo = AMAX_MAX, .margin = 1};
    ck_assert_int_eq(backend_apply(rig.q, &p, &rig.f), 0);
    rig_wait(&rig);
    ck_assert(site->scale == 16.0f && second->scale == 0.5f);
    ck_assert_mem_eq(mirror, site, scaler_bytes(4));
    ck_assert(mirror->history[3] == 14.0f && mirror->flushed == 3 && mirror->updates == 1);
    p.frozen = true;
    ck_assert_int_eq(backend_apply(rig.q, &p, &rig.f), 0);
    rig_wait(&rig);
    ck_assert(site->scale == 16.0f && site->skipped_updates == 1 && site->updates == 1);
    buffer_unref(more);
}
END_TEST

/* A replaced site becomes the other state whole, whatever it had, and is not updated by the way. */
START_TEST(apply_replaces_sites)
{
    struct buffer *more = rig_buffer(&rig, 2 * scaler_bytes(4), NULL);
    struct scaler *state = more->host;
    struct scaler *mirror = (struct scaler *)((char *)more->host + scaler_bytes(4));
    scaler_init(state, 4);
    scaler_adopt(state, 0.25f);
    state->history[3] = 9.0f;
    state->history[0] = 2.0f;
    site->history[0] = 5.0f;
    struct apply_site at = {.site = site, .replace = state, .mirror = mirror};
    struct apply p = {.sites = &at, .count = 1, .algo = AMAX_MAX};
    ck_assert_int_eq(backend_apply(rig.q, &p, &rig.f), 0);
    rig_wait(&rig);
    ck_assert_mem_eq(site, state, scaler_bytes(4));
    ck_assert_mem_eq(mirror, state, scaler_bytes(4));
    ck_assert(site->scale == 4.0f && site->history[0] == 2.0f && site->updates == 0);
    buffer_unref(more);
}
END_TEST

/* Comparison is in float64 over both dtypes; pairs with a non-finite side are counted apart. */
START_TEST(compare_reports_differences)
{
    struct compare_report *c = (struct compare_report *)(void *)report;
    struct tensor a =
        rig_tensor(&rig, DTYPE_F32, 2, 2, (float[]){1.5f, -4.0f, (float)NAN, 0x1p-149f});
    struct tensor b = rig_tensor(&rig, DTYPE_BF16, 2, 2, (uint16_t[]){0x3f80, 0xc040, 0x3f80, 0});
    ck_assert_int_eq(backend_compare(rig.q, &a, &b, c, &rig.f), 0);
    rig_wait(&rig);
    ck_assert(c->max_diff == 1.0 && c->max_ref == 3.0);
    ck_assert(c->sum_diff2 == 1.25 && c->sum_ref2 == 10.0);
    ck_assert_uint_eq(c->nonfinite, 1);
    buffer_unref(a.buf);
    buffer_unref(b.buf);
}
END_TEST

/* The first phase alone: row 0, its flag and the counters take the slot, scale and history stay. */
START_TEST(apply_collects_alone)
{
    struct buffer *more = rig_buffer(&rig, scaler_bytes(4) + sizeof(struct amax_slot), NULL);
    struct scaler *mirror = more->host;
    struct amax_slot *slot = (struct amax_slot *)(void *)((char *)mirror + scaler_bytes(4));
    *slot = (struct amax_slot){.amax = 14.0f, .casts = 1, .flushed = 3};
    struct apply_site at = {
        .site = site, .slot = slot, .mirror = mirror, .fmt = DTYPE_F8_E4M3, .collect = true};
    struct apply p = {.sites = &at, .count = 1, .algo = AMAX_MAX};
    ck_assert_int_eq(backend_apply(rig.q, &p, &rig.f), 0);
    rig_wait(&rig);
    ck_assert(mirror->history[0] == 14.0f && mirror->history[3] == 0.0f && mirror->flushed == 3);
    ck_assert(mirror->scale == 1.0f && !mirror->set && !mirror->updates);
    ck_assert(!mirror->skipped_updates);
    at.collect = false;
    at.slot = NULL;
    ck_assert_int_eq(backend_apply(rig.q, &p, &rig.f), 0);
    rig_wait(&rig);
    ck_assert(mirror->scale == 32.0f && mirror->history[3] == 14.0f);
    buffer_unref(more);
}
END_TEST

/* Every dtype to every other, rounded once: ties, subnormals, infinities, and the quiet NaN. */
START_TEST(convert_rounds_once)
{
    const float in[6] = {1.00390625f, -0.0f, 0x1p-133f, 70000.0f, INFINITY, NAN};
    const uint16_t bf16[6] = {0x3f80, 0x8000, 0x0001, 0x4789, 0x7f80, 0x7fc0};
    const uint16_t f16[6] = {0x3c04, 0x8000, 0x0000, 0x7c00, 0x7c00, 0x7e00};
    struct tensor x = rig_tensor(&rig, DTYPE_F32, 2, 3, in);
    struct tensor b = rig_tensor(&rig, DTYPE_BF16, 2, 3, NULL);
    struct tensor h = rig_tensor(&rig, DTYPE_F16, 2, 3, NULL);
    struct tensor back = rig_tensor(&rig, DTYPE_F32, 2, 3, NULL);
    ck_assert_int_eq(backend_convert(rig.q, &x, &b, &rig.f), 0);
    ck_assert_int_eq(backend_convert(rig.q, &x, &h, &rig.f), 0);
    ck_assert_int_eq(backend_convert(rig.q, &b, &back, &rig.f), 0);
    rig_wait(&rig);
    ck_assert_mem_eq(b.buf->host, bf16, sizeof bf16);
    ck_assert_mem_eq(h.buf->host, f16, sizeof f16);
    const float *y = back.buf->host;
    ck_assert(y[0] == 1.0f && y[2] == 0x1p-133f && y[3] == 70144.0f && isnan(y[5]));
    ck_assert_int_eq(backend_convert(rig.q, &x, &x, &rig.f), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(rig.f.text, "are one buffer, needed two"));
    ck_assert_int_eq(backend_zero(rig.q, &back, &rig.f), 0);
    rig_wait(&rig);
    for (int i = 0; i < 6; i++)
        ck_assert(y[i] == 0.0f && !signbit(y[i]));
    buffer_unref(x.buf);
    buffer_unref(b.buf);
    buffer_unref(h.buf);
    buffer_unref(back.buf);
}
END_TEST

/* What is held back is executed at its release, in order, or not at all. */
START_TEST(hold_is_all_or_none)
{
    struct buffer *from = rig_buffer(&rig, 8, "abcdefg"), *to = rig_buffer(&rig, 8, "ABCDEFG");
    for (int run = 0; run < 2; run++) {
        queue_hold(rig.q);
        ck_assert_int_eq(backend_copy(rig.q, to, 0, from, 0, 3, &rig.f), 0);
        ck_assert_int_eq(backend_copy(rig.q, to, 1, from, 5, 1, &rig.f), 0);
        ck_assert_str_eq(to->host, "ABCDEFG");
        queue_release(rig.q, run);
        struct rig_note n = {.note = {.done = rig_note_done}};
        sem_init(&n.fired, 0, 0);
        queue_notify(rig.q, &n.note); /* it may say that something was dropped */
        while (sem_wait(&n.fired)) {
        }
        sem_destroy(&n.fired);
        ck_assert_str_eq(to->host, run ? "afcDEFG" : "ABCDEFG");
    }
    rig_wait(&rig);
    buffer_unref(from);
    buffer_unref(to);
}
END_TEST

static void add(Suite *s, const char *name, void (*set)(void))
{
    TCase *c = tcase_create(name);
    tcase_add_checked_fixture(c, set, teardown);
    tcase_add_test(c, copy_moves_exactly_its_bytes);
    tcase_add_test(c, measure_reports_amax_alone);
    tcase_add_test(c, apply_moves_sites_and_mirrors);
    tcase_add_test(c, apply_replaces_sites);
    tcase_add_test(c, apply_collects_alone);
    tcase_add_test(c, convert_rounds_once);
    tcase_add_test(c, hold_is_all_or_none);
    tcase_add_test(c, compare_reports_differences);
    suite_add_tcase(s, c);
}

int main(void)
{
    Suite *s = suite_create("cpu_state");
    add(s, "inline", setup_inline);
    add(s, "threads", setup_threads);
    return run_suite(s);
}
