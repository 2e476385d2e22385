/* A load of each kind in which every allocation fails once, every read fails once, and that is
 * cancelled at every read: the served model's save is the same before and after, nothing is left in
 * memory. And what a load takes at its peak. */
#include "base/mem.h"
#include "daemon/engine/load.h"
#include "tests/scenario/ask_grad.h"
#include "tests/scenario/stash.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

/* --- fixture --- */

static struct io io;
static _Atomic int fail_in, cancel_in; /* countdowns to a pread; -1: never */
static struct desk *D;
static struct ask B;
static struct blob before; /* a save of "m" */
static uint64_t used;      /* of the ledger, with "m" alone */

static bool tick(_Atomic int *countdown)
{
    return atomic_load(countdown) >= 0 && atomic_fetch_sub(countdown, 1) == 0;
}

static int64_t wild_pread(void *self, int fd, void *buf, size_t len, uint64_t off)
{
    if (tick(&cancel_in))
        load_cancel(D->engine->loads);
    if (tick(&fail_in))
        return -EIO;
    return io_posix.pread(self, fd, buf, len, off);
}

/* Two layers: "a" F32 with a bias and "b" FP8 with an input scale. */
static struct blob mixed_file(void)
{
    struct stash s = {0};
    float factor = 0.5f;
    void *a = stash_draw(1, DTYPE_F32, 32 * 16, 0.02), *bias = stash_draw(2, DTYPE_BF16, 32, 1.0);
    unsigned char codes[16 * 32];
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (unsigned char)(i % 0x7f);
    stash_put(&s, "a.weight", DTYPE_F32, 2, 32, 16, a);
    stash_put(&s, "a.bias", DTYPE_BF16, 1, 32, 1, bias);
    stash_put(&s, "b.weight", DTYPE_F8_E4M3, 2, 16, 32, codes);
    stash_put(&s, "b.weight_scale", DTYPE_F32, 0, 1, 1, &factor);
    stash_put(&s, "b.input_scale", DTYPE_F32, 0, 1, 1, &factor);
    struct blob b = stash_blob(&s);
    stash_free(&s);
    free(a);
    free(bias);
    return b;
}

static void microbatch(uint64_t seed)
{
    float *x = draw_normal(seed, 16 * 3, 1.0), *dy = draw_normal(seed + 1, 32 * 3, 1.0);
    struct ask_forward f = {.model = "m",
                            .layer = "a",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, 3, 16),
                            .context_id = 1};
    ck_assert_msg(ask_forward(&B, &f) == 0, "%s", B.text);
    ask_forward_free(&f);
    struct ask_backward b = {.context_id = 1, .dy = ask_f32(dy, 3, 32), .no_grad_input = true};
    ck_assert_msg(ask_backward(&B, &b) == 0, "%s", B.text);
    ask_backward_free(&b);
    free(x);
    free(dy);
}

/* Layer "a" after a step of Adam, with the next gradient: what a save can hold of it. */
static void train(void)
{
    Fp8d__V1__OptimizerOptions o = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    Fp8d__V1__LayerOptions own = FP8D__V1__LAYER_OPTIONS__INIT, *layers = &own;
    struct ask_step s = {.step = 1};
    o.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAM;
    own.layer = str("a");
    own.rate = 0.5;
    ck_assert_msg(ask_optimizer(&B, "m", &o, &layers, 1) == 0, "%s", B.text);
    microbatch(9);
    ck_assert_msg(ask_step(&B, "m", &s) == 0, "%s", B.text);
    ask_step_free(&s);
    microbatch(11);
}

static void start(void)
{
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    io = io_posix;
    io.pread = wild_pread;
    fail_in = cancel_in = -1;
    struct engine_options e = {.io = &io};
    struct blob b = mixed_file();
    D = desk_new(&e, 0);
    B = ask_open(D, 2);
    recipe.amax_history_len = 16;
    o.recipe = &recipe;
    ck_assert_msg(stash_load(&B, "m", &b, &o, NULL) == 0, "%s", B.text);
    train();
    before = stash_save(&B, "m");
    used = ledger_used(&D->ledger);
    blob_free(&b);
}

static void stop(void)
{
    blob_free(&before);
    ask_close(&B);
    desk_free(D);
}

/* --- helpers: the kinds of loads --- */

#define KINDS 4

static Fp8d__V1__LoadOptions kind_of(int i)
{
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    o.primary_fp8 = i == 1;
    o.dequantize = i == 2 ? FP8D__V1__DTYPE__DTYPE_BF16 : 0;
    return o;
}

/* A save with a training copy, optimizer state and a gradient, or the file it came from. */
static struct blob file_of(int i)
{
    return i == 3
               ? mixed_file()
               : (struct blob){memcpy(malloc(before.size), before.bytes, before.size), before.size};
}

/* Begun and attached by connection 1; commit it with `arm` in effect. */
static unsigned commit(int kind, const char *model, void (*arm)(int at), int at, char text[1024])
{
    Fp8d__V1__LoadBeginRequest b = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__LoadAttachRequest t = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest c = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    Fp8d__V1__LoadOptions o = kind_of(kind);
    struct ask a = ask_open(D, 1);
    struct blob file = file_of(kind);
    char *name = str("the-file");
    int fd = blob_fd(&file);
    b.load_id = t.load_id = c.load_id = 1;
    b.model = str(model);
    b.options = &o;
    t.n_names = 1;
    t.names = &name;
    ck_assert_uint_eq(desk_call(D, 1, REQUEST_LOAD_BEGIN, &b.base, NULL, 0, NULL, text), 0);
    uint64_t id = desk_send(D, 1, REQUEST_LOAD_ATTACH, &t.base, NULL, 0, &fd, 1);
    ck_assert_uint_eq(ask_take(&a, id), 0);
    arm(at);
    unsigned code = desk_call(D, 1, REQUEST_LOAD_COMMIT, &c.base, NULL, 0, NULL, text);
    ask_close(&a);
    blob_free(&file);
    return code;
}

static void check_untouched(int kind, int at)
{
    struct blob now = stash_save(&B, "m");
    ck_assert_msg(now.size == before.size && !memcmp(now.bytes, before.bytes, now.size),
                  "kind %d, %d: the served model changed", kind, at);
    ck_assert_uint_eq(ledger_used(&D->ledger), used);
    blob_free(&now);
}

static void drop(const char *model)
{
    ck_assert_uint_eq(ask_drop_model(&B, model, NULL), 0);
}

static void arm_memory(int at)
{
    mem_fault_arm(at, false);
}

static void arm_read(int at)
{
    atomic_store(&fail_in, at);
}

static void arm_cancel(int at)
{
    atomic_store(&cancel_in, at);
}

/* --- cases --- */

/* Whichever allocation fails: RESOURCE_EXHAUSTED and nothing changed, or the load stands whole. */
START_TEST(load_faults_every_allocation)
{
    char text[1024];
    unsigned failed = 0;
    for (int at = 0;; at++) {
        unsigned code = commit(_i, "n", arm_memory, at, text);
        bool fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        failed += code != 0;
        if (code)
            ck_assert_msg(code == RESOURCE_EXHAUSTED, "allocation %d: code %u, %s", at, code, text);
        else
            drop("n");
        if (code || at % 16 == 0)
            check_untouched(_i, at);
        if (!fired)
            break;
    }
    ck_assert_uint_ge(failed, 20);
}
END_TEST

/* Whichever read fails: the sentence names the file, and nothing changed, though the load would
 * have replaced the model. */
START_TEST(load_faults_every_read)
{
    char text[1024];
    int at = 0;
    for (;; at++) {
        unsigned code = commit(_i, "m", arm_read, at, text);
        if (atomic_load(&fail_in) >= 0)
            break;
        ck_assert_msg(code == INTERNAL && strstr(text, "the-file"), "read %d: code %u, %s", at,
                      code, text);
        check_untouched(_i, at);
    }
    ck_assert_int_ge(at, _i == 3 ? 7 : 34); /* length, header, factors, state, tensors */
    atomic_store(&fail_in, -1);
}
END_TEST

/* Cancelled at whichever read: CANCELLED, and nothing changed. */
START_TEST(load_faults_cancel_at_every_read)
{
    char text[1024];
    int at = 0;
    for (;; at++) {
        unsigned code = commit(_i, "m", arm_cancel, at, text);
        if (atomic_load(&cancel_in) >= 0)
            break;
        ck_assert_msg(code == CANCELLED, "read %d: code %u, %s", at, code, text);
        check_untouched(_i, at);
    }
    ck_assert_int_ge(at, _i == 3 ? 7 : 34);
    atomic_store(&cancel_in, -1);
}
END_TEST

/* --- memory --- */

/* One FP8 weight of 96 MiB: a copy of it on the way would break the bound. */
static struct blob large_file(void)
{
    struct stash s = {0};
    float factor = 0.5f;
    unsigned char *codes = malloc(96 * MIB);
    ck_assert_ptr_nonnull(codes);
    memset(codes, 0x38, 96 * MIB);
    stash_put(&s, "big.weight", DTYPE_F8_E4M3, 2, 8192, 12288, codes);
    stash_put(&s, "big.weight_scale", DTYPE_F32, 0, 1, 1, &factor);
    free(codes);
    struct blob b = stash_blob(&s);
    stash_free(&s);
    return b;
}

/* The peak of a load that replaces is old + new + 64 MiB, and afterwards there is one copy. */
START_TEST(load_faults_peak_of_a_replacing_load)
{
    Fp8d__V1__LoadOptions o = kind_of(_i ? 2 : 0);
    struct blob b = large_file();
    ck_assert_msg(stash_load(&B, "big", &b, &o, NULL) == 0, "%s", B.text);
    uint64_t one = ledger_used(&D->ledger) - used;
    ck_assert_uint_ge(one, (_i ? 192 : 96) * MIB);
    atomic_store(&D->ledger.peak, ledger_used(&D->ledger));
    ck_assert_msg(stash_load(&B, "big", &b, &o, NULL) == 0, "%s", B.text);
    ck_assert_uint_eq(ledger_used(&D->ledger) - used, one);
    ck_assert_uint_ge(ledger_peak(&D->ledger) - used, 2 * one);
    ck_assert_uint_le(ledger_peak(&D->ledger) - used, 2 * one + 64 * MIB);
    drop("big");
    blob_free(&b);
}
END_TEST

/* A large tensor is read by several threads (into a GPU's memory by one, in larger blocks):
 * whichever of their reads fails, or is cancelled, the load ends with one sentence, and the others
 * with it. */
START_TEST(load_faults_reads_of_a_large_tensor)
{
    static const int host[] = {3, 4, 11, 60, 150, 194}; /* length, header, factor; 192 of 512 KiB */
    static const int device[] = {3, 4, 5, 9, 13, 14};   /* length, header, factor; 12 of 8 MiB */
    const int *at = rig_cuda() ? device : host;
    Fp8d__V1__LoadOptions o = kind_of(0);
    struct blob b = large_file();
    for (size_t i = 0; i < 2 * (sizeof host / sizeof host[0]); i++) {
        atomic_store(i % 2 ? &cancel_in : &fail_in, at[i / 2]);
        unsigned code = stash_load(&B, "big", &b, &o, NULL);
        ck_assert_msg(code == (i % 2 ? CANCELLED : INTERNAL), "read %d: code %u, %s", at[i / 2],
                      code, B.text);
        ck_assert_msg(i % 2 || (strstr(B.text, "the-file") && strstr(B.text, "big.weight")), "%s",
                      B.text);
        atomic_store(&fail_in, -1);
        atomic_store(&cancel_in, -1);
    }
    check_untouched(0, 0);
    blob_free(&b);
}
END_TEST

/* Where old and new do not fit together the load is refused before it has read a big tensor. */
START_TEST(load_faults_reserves_before_it_reads)
{
    Fp8d__V1__LoadOptions o = kind_of(0);
    struct blob b = large_file();
    ck_assert_msg(stash_load(&B, "big", &b, &o, NULL) == 0, "%s", B.text);
    D->ledger.cap = ledger_used(&D->ledger) + 90 * MIB;
    atomic_store(&fail_in, 2); /* length and header are read, and nothing else */
    ck_assert_uint_eq(stash_load(&B, "big", &b, &o, NULL), RESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(B.text, "the-file") && strstr(B.text, "big.weight"), "%s", B.text);
    ck_assert_int_eq(atomic_load(&fail_in), 0);
    atomic_store(&fail_in, -1);
    drop("big");
    check_untouched(0, 0);
    blob_free(&b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("load_faults");
    TCase *c = tcase_create("load_faults");
    tcase_set_timeout(c, 300);
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_loop_test(c, load_faults_every_allocation, 0, KINDS);
    tcase_add_loop_test(c, load_faults_every_read, 0, KINDS);
    tcase_add_loop_test(c, load_faults_cancel_at_every_read, 0, KINDS);
    tcase_add_loop_test(c, load_faults_peak_of_a_replacing_load, 0, 2);
    tcase_add_test(c, load_faults_reads_of_a_large_tensor);
    tcase_add_test(c, load_faults_reserves_before_it_reads);
    suite_add_tcase(s, c);
    return run_suite(s);
}
