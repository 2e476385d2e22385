/* The CUDA queue: order, repeats with one result, memory that stays flat. */
#include "tests/parity/parity.h"

#include "tests/parity/both.h"

#include <sched.h>
#include <time.h>

/* --- helpers --- */

/* One request: cast with the tensor's scale, and the product with w; the outputs to host memory. */
struct request {
    struct pair x;
    struct qtensor *w;
    struct buffer *report, *host;
    struct tensor y; /* device */
};

static struct request request_new(uint64_t m, uint64_t n, uint64_t k)
{
    struct request r = {0};
    struct rig *g = &both.gpu;
    uint8_t *codes = malloc(n * k);
    uint16_t *x = malloc(m * k * sizeof *x);
    for (uint64_t i = 0; i < n * k; i++)
        codes[i] = (uint8_t)(both_hash(8, i) % 0x70) | (uint8_t)(both_hash(9, i) & 0x80);
    both_fill(x, DTYPE_BF16, m * k, DATA_TAME, 10);
    r.x = both_tensor(DTYPE_BF16, m, k, x, 0);
    r.w = rig_adopt(g, DTYPE_F8_E4M3, n, k, codes, 0.01f);
    r.report = rig_buffer(g, sizeof(struct cast_report), NULL);
    r.host = rig_buffer(g, m * n * 2, NULL);
    r.y =
        (struct tensor){.buf = gpu_poisoned(m * n * 2), .dtype = DTYPE_BF16, .rows = m, .cols = n};
    free(codes);
    free(x);
    return r;
}

static void request_run(struct request *r)
{
    struct rig *g = &both.gpu;
    struct qtensor *xq = NULL;
    struct cast c = {
        .src = r->x.gpu, .fmt = DTYPE_F8_E4M3, .mode = CAST_TENSOR, .report = r->report->host};
    ck_assert_msg(!qtensor_cast(g->q, NULL, &c, "x", &xq, &g->f), "%s", g->f.text);
    struct gemm gemm = {.a = xq, .b = r->w, .out = r->y};
    ck_assert_msg(!backend_gemm(g->q, &gemm, &g->f), "%s", g->f.text);
    ck_assert_int_eq(backend_copy(g->q, r->host, 0, r->y.buf, 0, r->host->bytes, &g->f), 0);
    rig_wait(g);
    qtensor_unref(xq);
}

static void request_free(struct request *r)
{
    pair_free(&r->x);
    qtensor_unref(r->w);
    buffer_unref(r->report);
    buffer_unref(r->host);
    buffer_unref(r->y.buf);
}

/* --- cases --- */

/* The same request gives the same bits, a thousand times. */
START_TEST(parity_repeats_give_one_result)
{
    static const uint64_t shapes[][3] = {{100, 768, 1008}, {7, 48, 16}, {16, 4096, 4096}};
    int repeats = rig_small() ? 10 : 1000;
    if (!both_takes(shapes[_i][0], shapes[_i][1]))
        return;
    struct request r = request_new(shapes[_i][0], shapes[_i][1], shapes[_i][2]);
    void *first = malloc(r.host->bytes);
    request_run(&r);
    memcpy(first, r.host->host, r.host->bytes);
    for (int i = 1; i < repeats; i++) {
        memset(r.host->host, POISON, r.host->bytes);
        request_run(&r);
        if (memcmp(first, r.host->host, r.host->bytes) != 0)
            ck_abort_msg("repeat %d differs", i);
    }
    free(first);
    request_free(&r);
}
END_TEST

/* Ten thousand rounds of making, using and dropping leave device and host memory as they were. */
START_TEST(parity_memory_stays_flat)
{
    struct backend_info before, after;
    int rounds = rig_small() ? 20 : 10000;
    int64_t blocks = 0;
    for (int i = 0; i < rounds + 2; i++) {
        if (i == 2) { /* plans and scratch are there */
            backend_info(both.gpu.b, &before);
            blocks = mem_live_blocks();
        }
        struct request r = request_new(16, 48, 16);
        request_run(&r);
        request_free(&r);
    }
    backend_info(both.gpu.b, &after);
    ck_assert_uint_eq(after.memory_used, before.memory_used);
    ck_assert_int_eq(mem_live_blocks(), blocks);
}
END_TEST

struct numbered {
    struct queue_note note; /* first */
    int number, *at, *order;
};

static void numbered_done(struct queue_note *note, int status)
{
    struct numbered *n = (struct numbered *)note;
    n->order[(*n->at)++] = status ? -1 : n->number;
}

/* Notes fire once each and in order, behind the work before them; pending ends at 0. */
START_TEST(parity_notes_fire_in_order)
{
    static struct numbered notes[300];
    static int order[300];
    int at = 0;
    struct rig *g = &both.gpu;
    uint64_t before = g->q->progress;
    struct buffer *a = gpu_poisoned(1u << 20), *b = gpu_poisoned(1u << 20);
    for (int i = 0; i < 300; i++) {
        notes[i] = (struct numbered){{.done = numbered_done}, i, &at, order};
        ck_assert_int_eq(backend_copy(g->q, b, 0, a, 0, 1u << 20, &g->f), 0);
        queue_notify(g->q, &notes[i].note);
    }
    rig_wait(g);
    ck_assert_int_eq(at, 300);
    for (int i = 0; i < 300; i++)
        ck_assert_int_eq(order[i], i);
    ck_assert_uint_eq(g->q->pending, 0);
    ck_assert_uint_ge(g->q->progress, before + 600);
    buffer_unref(a);
    buffer_unref(b);
}
END_TEST

/* An operation that no note follows ends too: pending goes to 0 within a second. */
START_TEST(parity_lone_operations_end)
{
    struct rig *g = &both.gpu;
    struct buffer *a = gpu_poisoned(4096), *b = gpu_poisoned(4096);
    time_t start = time(NULL);
    ck_assert_int_eq(backend_copy(g->q, b, 0, a, 0, 4096, &g->f), 0);
    while (g->q->pending && time(NULL) - start < 3)
        (void)sched_yield();
    ck_assert_uint_eq(g->q->pending, 0);
    buffer_unref(a);
    buffer_unref(b);
}
END_TEST

/* More than the arena has is refused with the numbers, and nothing is taken. */
START_TEST(parity_full_arena_is_refused)
{
    struct backend_info info, after;
    struct buffer *buf = NULL;
    struct fault f = {0};
    backend_info(both.gpu.b, &info);
    int rc = buffer_new(both.gpu.b, NULL, BUFFER_DEVICE, info.memory_total, "all of it", &buf, &f);
    ck_assert_int_eq(rc, FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(f.text, "are used"));
    backend_info(both.gpu.b, &after);
    ck_assert_uint_eq(after.memory_used, info.memory_used);
    (void)fprintf(stderr, "refused with: %s\n", f.text);
}
END_TEST

static int open_with(uint64_t memory, unsigned percent, struct backend **b, struct fault *f)
{
    struct module_options o = {.memory = memory, .memory_percent = percent};
    return module_open_cuda(getenv("FP8D_TEST_BACKEND_DIR"), &o, rig_log, b, f);
}

/* The arena has the bytes asked for, in steps of 2 MiB, or the share; more than is free is refused
 * with the numbers before any of it is taken. */
START_TEST(parity_arena_is_what_was_asked_for)
{
    struct backend *one = NULL, *ten = NULL, *none = NULL;
    struct backend_info bytes, first, share;
    struct fault f = {0};
    ck_assert_msg(!open_with((uint64_t)513 << 20, 7, &one, &f), "%s", f.text);
    backend_info(one, &bytes);
    ck_assert_uint_eq(bytes.memory_total, (uint64_t)512 << 20);
    backend_close(one);
    ck_assert_msg(!open_with(0, 1, &one, &f), "%s", f.text);
    ck_assert_msg(!open_with(0, 10, &ten, &f), "%s", f.text);
    backend_info(one, &first);
    backend_info(ten, &share);
    /* Of what is free: the first took a hundredth of it, and either opening some for itself. */
    ck_assert_uint_le(share.memory_total, 10 * first.memory_total + ((uint64_t)20 << 20));
    ck_assert_uint_ge(share.memory_total, 9 * first.memory_total);
    ck_assert_int_eq(open_with((uint64_t)1 << 50, 0, &none, &f), FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(f.text, "device_memory asks for 1125899906842624 bytes of GPU 0"), "%s",
                  f.text);
    ck_assert_ptr_null(none);
    backend_close(one);
    backend_close(ten);
}
END_TEST

TCase *parity_queue_case(void)
{
    TCase *c = tcase_create("queue");
    tcase_set_timeout(c, 300);
    tcase_add_checked_fixture(c, both_setup, both_teardown);
    tcase_add_loop_test(c, parity_repeats_give_one_result, 0, 3);
    tcase_add_test(c, parity_memory_stays_flat);
    tcase_add_test(c, parity_notes_fire_in_order);
    tcase_add_test(c, parity_lone_operations_end);
    tcase_add_test(c, parity_full_arena_is_refused);
    tcase_add_test(c, parity_arena_is_what_was_asked_for);
    return c;
}
