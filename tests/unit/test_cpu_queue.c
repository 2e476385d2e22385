/* The CPU backend's queue: order, notes, waiting, threads, and their floating-point environment. */
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <xmmintrin.h>

#define FTZ_DAZ 0x8040u /* flush results to zero, read subnormals as zero */

/* --- helpers --- */

/* A note that appends its letter to a text, on whatever thread it fires. */
struct letter {
    struct queue_note note; /* first */
    char letter;
    char *text;
};

static void letter_done(struct queue_note *note, int status)
{
    struct letter *l = (struct letter *)note;
    size_t at = strlen(l->text);
    l->text[at] = status ? '!' : l->letter;
    l->text[at + 1] = 0;
}

/* An export callback that waits for the test: everything after it stays enqueued. */
struct gate {
    sem_t entered, open;
    char thread[16];
};

static void gate_cb(void *arg, const struct qtensor_view *view)
{
    struct gate *g = arg;
    (void)view;
    (void)pthread_getname_np(pthread_self(), g->thread, sizeof g->thread);
    sem_post(&g->entered);
    while (sem_wait(&g->open)) {
    }
}

static struct qtensor *gate_shut(struct rig *r, struct gate *g)
{
    struct qtensor *t = rig_adopt(r, DTYPE_F8_E4M3, 1, 1, (uint8_t[]){0}, 1.0f);
    sem_init(&g->entered, 0, 0);
    sem_init(&g->open, 0, 0);
    ck_assert_int_eq(qtensor_export(r->q, t, gate_cb, g, &r->f), 0);
    while (sem_wait(&g->entered)) {
    }
    return t;
}

/* --- cases --- */

/* Operations and notes complete in the order they were enqueued in, and are pending before. */
START_TEST(queue_keeps_order)
{
    struct rig r;
    struct gate g;
    char text[8] = "";
    struct letter notes[3];
    rig_open(&r, CPU_LEVEL_AUTO, 2, false);
    struct qtensor *t = gate_shut(&r, &g);
    struct buffer *from = rig_buffer(&r, 4, "abc"), *to = rig_buffer(&r, 4, "xyz");
    for (int i = 0; i < 3; i++) {
        notes[i] = (struct letter){{.done = letter_done}, (char)('1' + i), text};
        queue_notify(r.q, &notes[i].note);
        ck_assert_int_eq(backend_copy(r.q, to, 0, from, (uint64_t)i, 1, &r.f), 0);
    }
    ck_assert_uint_eq(r.q->pending, 7);
    ck_assert_str_eq(text, "");
    ck_assert_str_eq(to->host, "xyz");
    sem_post(&g.open);
    rig_wait(&r);
    ck_assert_uint_eq(r.q->pending, 0);
    ck_assert_str_eq(text, "123");
    ck_assert_str_eq(to->host, "cyz");
    buffer_unref(from);
    buffer_unref(to);
    qtensor_unref(t);
    rig_close(&r);
}
END_TEST

/* Closing a queue runs what is enqueued first. */
START_TEST(queue_close_completes_what_is_enqueued)
{
    struct rig r;
    struct gate g;
    char text[64] = "";
    struct letter notes[40];
    rig_open(&r, CPU_LEVEL_AUTO, 1, false);
    struct qtensor *t = gate_shut(&r, &g);
    for (int i = 0; i < 40; i++) {
        notes[i] = (struct letter){{.done = letter_done}, 'n', text};
        queue_notify(r.q, &notes[i].note);
    }
    sem_post(&g.open);
    queue_close(r.q);
    ck_assert_uint_eq(strlen(text), 40);
    qtensor_unref(t);
    rig_close_backend(r.b);
}
END_TEST

/* An inline queue is done when the call returns, on the caller's thread. */
START_TEST(queue_inline_needs_no_thread)
{
    struct rig r;
    char text[4] = "";
    struct letter note = {{.done = letter_done}, 'n', text};
    rig_open(&r, CPU_LEVEL_AUTO, 0, true);
    struct buffer *from = rig_buffer(&r, 4, "abc"), *to = rig_buffer(&r, 4, "xyz");
    ck_assert_int_eq(backend_copy(r.q, to, 0, from, 0, 4, &r.f), 0);
    ck_assert_str_eq(to->host, "abc");
    queue_notify(r.q, &note.note);
    ck_assert_str_eq(text, "n");
    ck_assert_uint_eq(r.q->pending, 0);
    buffer_unref(from);
    buffer_unref(to);
    rig_close(&r);
}
END_TEST

/* Threads carry the queue's name. */
START_TEST(queue_names_its_thread)
{
    struct rig r;
    struct gate g;
    rig_open(&r, CPU_LEVEL_AUTO, 2, false);
    struct qtensor *t = gate_shut(&r, &g);
    ck_assert_str_eq(g.thread, "test");
    sem_post(&g.open);
    rig_wait(&r);
    qtensor_unref(t);
    rig_close(&r);
}
END_TEST

/* The progress counter moves while work is done, once a tile at least. */
START_TEST(queue_progress_moves)
{
    struct rig r;
    rig_open(&r, CPU_LEVEL_AUTO, 2, false);
    struct tensor a = rig_tensor(&r, DTYPE_BF16, 150, 64, NULL);
    struct tensor y = rig_tensor(&r, DTYPE_F32, 150, 150, NULL);
    memset(a.buf->host, 0, a.buf->bytes);
    uint64_t before = r.q->progress;
    ck_assert_int_eq(backend_gemm_high(r.q, &(struct gemm_high){.a = a, .b = a, .out = y}, &r.f),
                     0);
    rig_wait(&r);
    ck_assert_uint_ge(r.q->progress, before + 9);
    buffer_unref(a.buf);
    buffer_unref(y.buf);
    rig_close(&r);
}
END_TEST

/* Flush-to-zero and a rounding mode of the thread that opens or calls change no bit, and come back
 * as they were: 2^-128 is subnormal, and 1.0625 * 1.0625 lies between two bf16. */
START_TEST(queue_keeps_its_own_rounding)
{
    struct rig r;
    const uint8_t codes[2] = {0x38, 0x39};
    unsigned before = _mm_getcsr();
    _mm_setcsr((before | FTZ_DAZ) & ~0x6000u);
    fesetround(FE_UPWARD);
    unsigned mine = _mm_getcsr();
    rig_open(&r, CPU_LEVEL_AUTO, 2, _i);
    struct qtensor *t = rig_adopt(&r, DTYPE_F8_E4M3, 1, 2, codes, 0x1p-128f);
    struct qtensor *u = rig_adopt(&r, DTYPE_F8_E4M3, 1, 2, codes, 0x1.02p0f);
    struct tensor y = rig_tensor(&r, DTYPE_F32, 1, 2, NULL);
    struct tensor z = rig_tensor(&r, DTYPE_BF16, 1, 2, NULL);
    ck_assert_int_eq(qtensor_dequantize(r.q, t, &y, &r.f), 0);
    ck_assert_int_eq(qtensor_dequantize(r.q, u, &z, &r.f), 0);
    rig_wait(&r);
    ck_assert_uint_eq(_mm_getcsr() & 0xffc0u, mine & 0xffc0u);
    _mm_setcsr(before);
    fesetround(FE_TONEAREST);
    /* 2^-128 and 1.125 * 2^-128; 1.0078125 and 1.1337890625, which bf16 rounds down to 1.1328125 */
    ck_assert_mem_eq(y.buf->host, ((uint32_t[]){0x00200000, 0x00240000}), 8);
    ck_assert_mem_eq(z.buf->host, ((uint16_t[]){0x3f81, 0x3f91}), 4);
    buffer_unref(y.buf);
    buffer_unref(z.buf);
    qtensor_unref(t);
    qtensor_unref(u);
    rig_close(&r);
}
END_TEST

/* Readings of the device's clock rise in queue order, are made only when their turn comes, and have
 * the work between them between them. */
START_TEST(queue_stamps_rise)
{
    struct rig r;
    struct gate g;
    rig_open(&r, CPU_LEVEL_AUTO, 2, false);
    struct qtensor *t = gate_shut(&r, &g);
    if (rig_cuda()) /* whose stream a callback does not hold up */
        sem_post(&g.open);
    struct buffer *at = rig_buffer(&r, 4 * sizeof(uint64_t), (uint64_t[4]){0});
    const volatile uint64_t *read = at->host;
    struct tensor a = rig_tensor(&r, DTYPE_F32, 512, 512, NULL);
    memset(a.buf->host, 0, a.buf->bytes);
    struct tensor y = rig_tensor(&r, DTYPE_F32, 512, 512, NULL);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(backend_stamp(r.q, (uint64_t *)at->host + i, &r.f), 0);
        if (i == 1)
            ck_assert_int_eq(
                backend_gemm_high(r.q, &(struct gemm_high){.a = a, .b = a, .out = y}, &r.f), 0);
    }
    if (!rig_cuda()) {
        ck_assert(!read[0] && !read[3]);
        sem_post(&g.open);
    }
    rig_wait(&r);
    ck_assert_uint_gt(read[0], 0);
    ck_assert_uint_ge(read[1], read[0]);
    ck_assert_uint_gt(read[2], read[1]);
    ck_assert_uint_ge(read[3], read[2]);
    buffer_unref(a.buf);
    buffer_unref(y.buf);
    buffer_unref(at);
    qtensor_unref(t);
    rig_close(&r);
}
END_TEST

/* Each allocation of opening a backend and a queue fails once: clean error, nothing left. */
START_TEST(queue_open_survives_each_failed_allocation)
{
    int64_t blocks = mem_live_blocks();
    struct cpu_options o = {.threads = 3, .inline_queues = _i};
    for (int n = 0;; n++) {
        struct backend *b = NULL;
        struct queue *q = NULL;
        struct fault f = {0};
        mem_fault_arm(n, false);
        int rc = cpu_open(&o, &b, &f);
        if (!rc)
            rc = queue_open(b, "test", &q, &f);
        bool fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        ck_assert_int_eq(rc, fired ? FP8D_ERESOURCE_EXHAUSTED : 0);
        queue_close(q);
        backend_close(b);
        ck_assert_int_eq(mem_live_blocks(), blocks);
        if (!fired) {
            ck_assert_int_eq(n, 5);
            return;
        }
    }
}
END_TEST

/* Each allocation of enqueuing fails once: the operation did not run, the next one does. */
START_TEST(queue_post_survives_each_failed_allocation)
{
    struct rig r;
    rig_open(&r, CPU_LEVEL_AUTO, 1, _i);
    struct tensor a = rig_tensor(&r, DTYPE_F32, 1, 1, (float[]){2.0f});
    struct tensor y = rig_tensor(&r, DTYPE_F32, 1, 1, (float[]){0.0f});
    struct gemm_high g = {.a = a, .b = a, .out = y};
    mem_fault_arm(0, false);
    ck_assert_int_eq(backend_gemm_high(r.q, &g, &r.f), FP8D_ERESOURCE_EXHAUSTED);
    mem_fault_arm(-1, false);
    rig_wait(&r);
    ck_assert(*(float *)y.buf->host == 0.0f);
    ck_assert_int_eq(backend_gemm_high(r.q, &g, &r.f), 0);
    rig_wait(&r);
    ck_assert(*(float *)y.buf->host == 4.0f);
    buffer_unref(a.buf);
    buffer_unref(y.buf);
    rig_close(&r);
}
END_TEST

/* What follows a failure is left out, with a failure of its own, and what follows a success or
 * comes later is not. A GPU's queue reports operations that were dropped; nothing fails here
 * otherwise. */
START_TEST(queue_leaves_out_what_follows_a_failure)
{
    struct rig r;
    bool drop = _i == 1;
    char text[8] = "";
    struct fault f[3] = {{0}};
    struct letter notes[3];
    rig_open(&r, CPU_LEVEL_AUTO, 1, false);
    struct buffer *from = rig_buffer(&r, 4, "abc"), *to = rig_buffer(&r, 4, "xyz");
    for (int i = 0; i < 3; i++)
        notes[i] = (struct letter){{.done = letter_done, .fault = &f[i]}, (char)('1' + i), text};
    queue_hold(r.q);
    ck_assert_int_eq(backend_copy(r.q, to, 0, from, 0, 1, &r.f), 0);
    queue_release(r.q, !drop);
    queue_notify(r.q, &notes[0].note);
    ck_assert_int_eq(backend_follow(r.q, &notes[0].note, &r.f), 0);
    ck_assert_int_eq(backend_copy(r.q, to, 1, from, 1, 1, &r.f), 0);
    queue_notify(r.q, &notes[1].note);
    ck_assert_int_eq(backend_copy(r.q, to, 2, from, 2, 1, &r.f), 0);
    queue_notify(r.q, &notes[2].note);
    rig_wait(&r);
    bool reports = drop && rig_cuda();
    ck_assert_str_eq(text, reports ? "!!3" : "123");
    ck_assert_str_eq(to->host, reports ? "xyc" : drop ? "xbc" : "abc");
    ck_assert_int_eq(f[1].code, reports ? FP8D_EABORTED : 0);
    ck_assert_int_eq(f[2].code, 0);
    buffer_unref(from);
    buffer_unref(to);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cpu_queue");
    TCase *c = tcase_create("queue");
    tcase_add_test(c, queue_close_completes_what_is_enqueued);
    tcase_add_test(c, queue_names_its_thread);
    tcase_add_test(c, queue_stamps_rise);
    tcase_add_loop_test(c, queue_leaves_out_what_follows_a_failure, 0, 2);
    tcase_add_loop_test(c, queue_keeps_its_own_rounding, 0, 2);
    tcase_add_loop_test(c, queue_post_survives_each_failed_allocation, 0, 2);
    if (!rig_cuda()) { /* operations run on the callbacks' thread, in tiles, or inline */
        tcase_add_test(c, queue_keeps_order);
        tcase_add_test(c, queue_inline_needs_no_thread);
        tcase_add_test(c, queue_progress_moves);
        tcase_add_loop_test(c, queue_open_survives_each_failed_allocation, 0, 2);
    }
    suite_add_tcase(s, c);
    return run_suite(s);
}
