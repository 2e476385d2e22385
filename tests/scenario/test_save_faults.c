/* A save of a model amid training in which every allocation, write, sync and cut fails once: a
 * sentence, the model goes on as if nothing had been, and nothing is left in memory. And steps and
 * backwards beside a save, in which every allocation fails once. */
#include "base/mem.h"
#include "tests/scenario/ask_grad.h"
#include "tests/scenario/gate.h"
#include "tests/scenario/stash.h"
#include "tests/unit/run.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROWS 5

/* --- fixture: the pair of stash.h after a step of Adam, with the next gradients --- */

static struct io io;
static _Atomic int fail_in; /* countdown to a call that fails with EIO; -1: never */

struct fix {
    struct desk *desk;
    struct ask a;
    uint64_t used; /* of the ledger */
    struct blob want;
};

static bool fails(void)
{
    return atomic_load(&fail_in) >= 0 && atomic_fetch_sub(&fail_in, 1) == 0;
}

static int64_t wild_pwrite(void *self, int fd, const void *buf, size_t len, uint64_t off)
{
    return fails() ? -EIO : io_posix.pwrite(self, fd, buf, len, off);
}

static int wild_truncate(void *self, int fd, uint64_t size)
{
    return fails() ? -EIO : io_posix.truncate(self, fd, size);
}

static int wild_fsync(void *self, int fd)
{
    return fails() ? -EIO : io_posix.fsync(self, fd);
}

static uint64_t in_of(unsigned layer)
{
    return layer ? STASH_B_IN : STASH_A_IN;
}

static uint64_t out_of(unsigned layer)
{
    return layer ? STASH_B_OUT : STASH_A_OUT;
}

static void forward(struct fix *f, unsigned layer, uint64_t seed)
{
    float *x = draw_normal(seed, ROWS * in_of(layer), 1.0);
    struct ask_forward r = {.model = "m",
                            .layer = layer ? "b-c" : "a",
                            .mode = FP8D__V1__MODE__MODE_TRAIN,
                            .x = ask_f32(x, ROWS, in_of(layer)),
                            .context_id = 1};
    ck_assert_msg(!ask_forward(&f->a, &r), "%s", f->a.text);
    ask_forward_free(&r);
    free(x);
}

static unsigned backward(struct fix *f, unsigned layer, uint64_t seed)
{
    float *dy = draw_normal(seed, ROWS * out_of(layer), 0.1);
    struct ask_backward b = {
        .context_id = 1, .dy = ask_f32(dy, ROWS, out_of(layer)), .no_grad_input = true};
    unsigned code = ask_backward(&f->a, &b);
    ask_backward_free(&b);
    free(dy);
    return code;
}

static unsigned step(struct fix *f, uint64_t number)
{
    struct ask_step s = {.step = number};
    unsigned code = ask_step(&f->a, "m", &s);
    ask_step_free(&s);
    return code;
}

static void microbatches(struct fix *f, uint64_t seed)
{
    for (unsigned layer = 0; layer < 2; layer++) {
        forward(f, layer, seed + layer);
        ck_assert_msg(!backward(f, layer, seed + 2 + layer), "%s", f->a.text);
    }
}

static void fix_open(struct fix *f, const struct engine_options *o, bool primary)
{
    Fp8d__V1__LoadOptions load = FP8D__V1__LOAD_OPTIONS__INIT;
    Fp8d__V1__OptimizerOptions adam = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    struct blob file = stash_pair();
    load.primary_fp8 = primary;
    adam.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAM;
    *f = (struct fix){.desk = desk_new(o, 0)};
    f->a = ask_open(f->desk, 1);
    ck_assert_msg(!stash_load(&f->a, "m", &file, &load, NULL), "%s", f->a.text);
    ck_assert_msg(!ask_optimizer(&f->a, "m", &adam, NULL, 0), "%s", f->a.text);
    microbatches(f, 10);
    ck_assert_msg(!step(f, 1), "%s", f->a.text);
    microbatches(f, 20);
    blob_free(&file);
}

static void fix_close(struct fix *f)
{
    ask_close(&f->a);
    desk_free(f->desk);
}

static void fix_open_wild(struct fix *f)
{
    io = io_posix;
    io.pwrite = wild_pwrite;
    io.truncate = wild_truncate;
    io.fsync = wild_fsync;
    atomic_store(&fail_in, -1);
    struct engine_options o = {.io = &io};
    fix_open(f, &o, false);
    f->want = stash_save(&f->a, "m");
    f->used = ledger_used(&f->desk->ledger);
}

/* --- helpers --- */

/* Begun and attached under `id`. */
static void begin(struct fix *f, uint64_t id)
{
    Fp8d__V1__SaveBeginRequest b = FP8D__V1__SAVE_BEGIN_REQUEST__INIT;
    Fp8d__V1__SaveAttachRequest at = FP8D__V1__SAVE_ATTACH_REQUEST__INIT;
    char model[] = "m", name[] = "the-save", *names = name;
    int fd = memfd_create("save", MFD_CLOEXEC);
    b.model = model;
    b.save_id = at.save_id = id;
    at.n_names = 1;
    at.names = &names;
    ck_assert(!desk_call(f->desk, 1, REQUEST_SAVE_BEGIN, &b.base, NULL, 0, NULL, f->a.text));
    uint64_t sent = desk_send(f->desk, 1, REQUEST_SAVE_ATTACH, &at.base, NULL, 0, &fd, 1);
    ck_assert_msg(!ask_take(&f->a, sent), "%s", f->a.text);
}

static unsigned commit(struct fix *f, uint64_t id)
{
    Fp8d__V1__SaveCommitRequest c = FP8D__V1__SAVE_COMMIT_REQUEST__INIT;
    c.save_id = id;
    return desk_call(f->desk, 1, REQUEST_SAVE_COMMIT, &c.base, NULL, 0, NULL, f->a.text);
}

static void untouched(struct fix *f)
{
    ck_assert_uint_eq(ledger_used(&f->desk->ledger), f->used);
    struct blob now = stash_save(&f->a, "m");
    blob_equal(&f->want, &now);
    blob_free(&now);
}

/* --- cases --- */

/* What is refused before it started can be sent again; what failed later is gone. */
START_TEST(save_faults_every_allocation)
{
    struct fix f;
    unsigned refused = 0;
    bool fired = true;
    fix_open_wild(&f);
    for (int64_t n = 0; fired; n++) {
        begin(&f, 1);
        mem_fault_arm(n, false);
        unsigned code = commit(&f, 1);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        refused += code != 0;
        ck_assert_msg(!code || code == ASK_RESOURCE_EXHAUSTED, "allocation %ld: %u, %s", (long)n,
                      code, f.a.text);
        if (code)
            (void)commit(&f, 1); /* NOT_FOUND, or the save */
        untouched(&f);
    }
    ck_assert_uint_gt(refused, 5);
    blob_free(&f.want);
    fix_close(&f);
}
END_TEST

START_TEST(save_faults_every_call)
{
    struct fix f;
    int failed = 0;
    fix_open_wild(&f);
    for (;; failed++) {
        begin(&f, 1);
        atomic_store(&fail_in, failed);
        unsigned code = commit(&f, 1);
        bool fired = atomic_exchange(&fail_in, -1) < 0;
        if (!fired)
            break;
        ck_assert_msg(code == ASK_INTERNAL && strstr(f.a.text, "the-save"), "call %d: %u, %s",
                      failed, code, f.a.text);
        untouched(&f);
    }
    ck_assert_int_gt(failed, 30); /* a cut, the head, every tensor, a sync */
    blob_free(&f.want);
    fix_close(&f);
}
END_TEST

/* Whatever allocation of a backward or a step fails while a save holds all tensors: nothing has
 * changed, the save is that of its beginning, and in the end all is as without faults. */
START_TEST(save_faults_of_what_runs_beside)
{
    struct fix f, calm;
    struct engine_options o = gate_options();
    unsigned refused = 0;
    fix_open(&f, &o, _i);
    fix_open(&calm, NULL, _i);
    struct blob before = stash_save(&f.a, "m");
    gate_close();
    struct stash_saving s = stash_save_sent(f.desk, 2, "m");
    forward(&f, 0, 30); /* which lets the commit begin */
    gate_wait();        /* what the save itself allocates is there */
    for (int64_t n = 0, done = 0; done < 2; n++) {
        mem_fault_arm(n, false);
        unsigned code = done ? step(&f, 2) : backward(&f, 0, 31);
        mem_fault_arm(-1, false);
        ck_assert_msg(!code || code == ASK_RESOURCE_EXHAUSTED, "%u, %s", code, f.a.text);
        refused += code != 0;
        if (!code || strstr(f.a.text, "was executed")) {
            done++;
            n = -1;
        }
    }
    gate_open();
    struct blob saved = stash_saved(&s);
    blob_equal(&before, &saved);
    ck_assert_uint_gt(refused, 20);
    forward(&calm, 0, 30);
    ck_assert(!backward(&calm, 0, 31) && !step(&calm, 2));
    struct blob after = stash_save(&f.a, "m"), want = stash_save(&calm.a, "m");
    blob_equal(&want, &after);
    blob_free(&before);
    blob_free(&saved);
    blob_free(&after);
    blob_free(&want);
    fix_close(&f);
    fix_close(&calm);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("save_faults");
    TCase *c = tcase_create("save_faults");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, save_faults_every_allocation);
    tcase_add_test(c, save_faults_every_call);
    tcase_add_loop_test(c, save_faults_of_what_runs_beside, 0, 2);
    suite_add_tcase(s, c);
    return run_suite(s);
}
