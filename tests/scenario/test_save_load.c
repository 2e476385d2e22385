/* Saves and loads together: which recipe is in force, state of another length or format, versions,
 * and loads at the same time. */
#include "tests/scenario/stash.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OUT 32
#define IN 48

/* --- fixture --- */

static struct desk *D;
static struct ask A;
static Fp8d__V1__LoadOptions options;
static Fp8d__V1__Recipe wish;

static struct io io;
static _Atomic bool stalled; /* reads wait */

static int64_t stalling_pread(void *self, int fd, void *buf, size_t len, uint64_t off)
{
    while (atomic_load(&stalled))
        usleep(100);
    return io_posix.pread(self, fd, buf, len, off);
}

static void start(void)
{
    io = io_posix;
    io.pread = stalling_pread;
    struct engine_options e = {.io = &io};
    D = desk_new(&e, 0);
    A = ask_open(D, 1);
    fp8d__v1__load_options__init(&options);
    fp8d__v1__recipe__init(&wish);
    options.recipe = &wish;
}

static void stop(void)
{
    ask_close(&A);
    desk_free(D);
}

/* --- helpers --- */

static Fp8d__V1__LoadCommitReply *load(const char *model, const struct blob *b)
{
    Fp8d__V1__LoadCommitReply *r = NULL;
    ck_assert_msg(stash_load(&A, model, b, &options, &r) == 0, "%s", A.text);
    return r;
}

static struct blob plain_file(void)
{
    struct stash s = {0};
    void *w = stash_draw(4, DTYPE_F32, OUT * IN, 0.02);
    stash_put(&s, "l.weight", DTYPE_F32, 2, OUT, IN, w);
    struct blob b = stash_blob(&s);
    stash_free(&s);
    free(w);
    return b;
}

static void train(const char *model, unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        float *x = draw_normal(i, 3 * IN, 1.0 + i);
        struct desk_forward f = {.model = model,
                                 .layer = "l",
                                 .mode = FP8D__V1__MODE__MODE_TRAIN,
                                 .x = x,
                                 .tokens = 3,
                                 .in = IN,
                                 .out = OUT};
        ck_assert_msg(desk_forward(D, 1, &f, A.text) == 0, "%s", A.text);
        free(x);
    }
}

/* A save of a model that was trained with history 8, margin 1, most_recent. */
static struct blob trained_save(void)
{
    struct blob b = plain_file();
    wish.amax_history_len = 8;
    wish.margin = 1;
    wish.amax_algo = FP8D__V1__AMAX_ALGO__AMAX_ALGO_MOST_RECENT;
    stash_report_free(load("m", &b));
    train("m", 12);
    struct blob saved = stash_save(&A, "m");
    fp8d__v1__recipe__init(&wish);
    blob_free(&b);
    return saved;
}

/* --- recipe --- */

/* What the file saved is in force where no option says otherwise, and the default elsewhere. */
START_TEST(save_load_recipe_of_the_file)
{
    struct blob saved = trained_save();
    Fp8d__V1__LoadCommitReply *r = load("n", &saved);
    ck_assert(r->report->recipe->amax_history_len == 8 && r->report->recipe->margin == 1);
    ck_assert(r->report->recipe->amax_algo == FP8D__V1__AMAX_ALGO__AMAX_ALGO_MOST_RECENT);
    ck_assert_uint_eq(r->report->n_notes, 0);
    ck_assert_uint_eq(r->report->ignored_count, 0);
    stash_report_free(r);
    blob_free(&saved);
}
END_TEST

/* An option wins over the file, and each difference is a note. */
START_TEST(save_load_recipe_of_the_option)
{
    struct blob saved = trained_save();
    wish.kind = FP8D__V1__RECIPE_KIND__RECIPE_KIND_DELAYED; /* what the file has: no note */
    wish.margin = 2;
    wish.amax_history_len = 16;
    wish.amax_algo = FP8D__V1__AMAX_ALGO__AMAX_ALGO_MAX;
    Fp8d__V1__LoadCommitReply *r = load("n", &saved);
    ck_assert(stash_noted(r, "recipe: margin 2 from the option, the file has 1"));
    ck_assert(stash_noted(r, "recipe: amax_history_len 16 from the option, the file has 8"));
    ck_assert(stash_noted(r, "recipe: amax_algo max from the option, the file has most_recent"));
    ck_assert(stash_noted(r, "3 amax histories were resized to 16 rows, the newest kept"));
    ck_assert_uint_eq(r->report->n_notes, 4);
    ck_assert_uint_eq(r->report->recipe->margin, 2);
    stash_report_free(r);
    blob_free(&saved);
}
END_TEST

/* Precise accumulation goes with a save, whoever loads it; an option against it is a note. A save
 * that does not name it, as all of before it was a choice, is fast. */
START_TEST(save_load_accumulation)
{
    const Fp8d__V1__FpropAccumulation fast = FP8D__V1__FPROP_ACCUMULATION__FPROP_ACCUMULATION_FAST,
                                      precise =
                                          FP8D__V1__FPROP_ACCUMULATION__FPROP_ACCUMULATION_PRECISE;
    struct blob plain = plain_file(), old = trained_save();
    Fp8d__V1__LoadCommitReply *r = load("n", &old);
    ck_assert(r->report->recipe->fprop_accumulation == fast && r->report->n_notes == 0);
    stash_report_free(r);
    ck_assert_ptr_null(memmem(old.bytes, old.size, "accumulation", 12));
    wish.fprop_accumulation = precise;
    r = load("n", &old);
    ck_assert(r->report->recipe->fprop_accumulation == precise);
    ck_assert(
        stash_noted(r, "recipe: fprop_accumulation precise from the option, the file has fast"));
    ck_assert_uint_eq(r->report->n_notes, 1); /* the copy goes on: no cast depends on it */
    stash_report_free(r);
    r = load("o", &plain); /* no save: nothing to differ from */
    ck_assert(r->report->recipe->fprop_accumulation == precise && r->report->n_notes == 0);
    stash_report_free(r);
    struct blob saved = stash_save(&A, "n");
    wish.fprop_accumulation = 0;
    r = load("n", &saved);
    ck_assert(r->report->recipe->fprop_accumulation == precise && r->report->n_notes == 0);
    stash_report_free(r);
    wish.fprop_accumulation = fast;
    r = load("n", &saved);
    ck_assert(
        stash_noted(r, "recipe: fprop_accumulation fast from the option, the file has precise"));
    stash_report_free(r);
    blob_free(&plain);
    blob_free(&old);
    blob_free(&saved);
}
END_TEST

/* Another length keeps the newest rows and the scale: growing, shrinking, and down to one. */
START_TEST(save_load_resizes_histories)
{
    static const uint32_t lens[] = {16, 4, 2, 1};
    struct blob saved = trained_save();
    Fp8d__V1__QueryScalingReply *before = ask_state(&A, "m");
    const Fp8d__V1__SiteState *a = ask_site(before, "l", "input");
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        wish.amax_history_len = lens[i];
        stash_report_free(load("n", &saved));
        Fp8d__V1__QueryScalingReply *q = ask_state(&A, "n");
        const Fp8d__V1__SiteState *b = ask_site(q, "l", "input");
        ck_assert_uint_eq(b->n_history, lens[i] - 1);
        ck_assert(b->scale == a->scale && b->amax_last == a->amax_last && b->updates == 12);
        for (size_t k = 0; k < b->n_history; k++)
            ck_assert(b->history[k] == (k < a->n_history ? a->history[k] : 0.0f));
        ask_state_free(q);
    }
    ask_state_free(before);
    blob_free(&saved);
}
END_TEST

/* Another format resets the gradient's site alone; another kind keeps what there is. */
START_TEST(save_load_other_format_and_kind)
{
    struct stash s = {0};
    struct blob saved = trained_save();
    const struct stash_site grad = {
        .scale = 8.0f, .scale_inv = 0.125f, .amax_last = 7168.0f, .counters = {1, 0, 3}};
    stash_from(&s, &saved);
    stash_put_site(&s, "l", "grad_output", 8, &grad);
    struct blob b = stash_blob(&s);
    stash_report_free(load("n", &b));
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, "n");
    ck_assert(ask_site(q, "l", "grad_output")->scale == 8.0f);
    float input = ask_site(q, "l", "input")->scale;
    ask_state_free(q);
    wish.fp8_format = FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3;
    wish.kind = FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT;
    Fp8d__V1__LoadCommitReply *r = load("n", &b);
    ck_assert(stash_noted(r, "recipe: fp8_format e4m3 from the option, the file has hybrid"));
    ck_assert(stash_noted(r, "recipe: kind current from the option, the file has delayed"));
    ck_assert(stash_noted(r, "1 sites were reset: their FP8 format is another now"));
    stash_report_free(r);
    q = ask_state(&A, "n");
    ck_assert(!ask_site(q, "l", "grad_output")->set && ask_site(q, "l", "input")->scale == input);
    ask_state_free(q);
    stash_free(&s);
    blob_free(&saved);
    blob_free(&b);
}
END_TEST

/* A copy in a format that the recipe does not cast to is dropped, and that is said. */
START_TEST(save_load_drops_a_copy_that_does_not_fit)
{
    struct stash s = {0};
    struct blob saved = trained_save();
    stash_from(&s, &saved);
    stash_find(&s, "l.fp8d.cached.weight")->dtype = DTYPE_F8_E5M2;
    struct blob b = stash_blob(&s);
    Fp8d__V1__LoadCommitReply *r = load("n", &b);
    ck_assert(stash_noted(r, "cached FP8 copies of 1 weights were dropped"));
    stash_report_free(r);
    struct blob again = stash_save(&A, "n");
    ck_assert(!blob_has(&again, "l.fp8d.cached.weight"));
    stash_free(&s);
    blob_free(&saved);
    blob_free(&again);
    blob_free(&b);
}
END_TEST

/* A save whose state somebody took out loads as a file without any, and says so. */
START_TEST(save_load_without_state)
{
    struct stash s = {0};
    static const char *const parts[] = {"scaling", "amax_history", "counters"};
    struct blob saved = trained_save();
    char name[64];
    stash_from(&s, &saved);
    for (unsigned i = 0; i < 9; i++) {
        (void)snprintf(name, sizeof name, "l.fp8d.%s.%s",
                       i < 3   ? "input"
                       : i < 6 ? "weight"
                               : "grad_output",
                       parts[i % 3]);
        stash_drop(&s, name);
    }
    struct blob b = stash_blob(&s);
    Fp8d__V1__LoadCommitReply *r = load("n", &b);
    ck_assert(stash_noted(r, "1 layers have no scaling state in the file"));
    stash_report_free(r);
    Fp8d__V1__QueryScalingReply *q = ask_state(&A, "n");
    ck_assert(!ask_site(q, "l", "input")->set && !ask_site(q, "l", "weight")->set);
    ask_state_free(q);
    stash_free(&s);
    blob_free(&saved);
    blob_free(&b);
}
END_TEST

/* --- versions --- */

/* The weight version is that of the save, or one above the replaced model's; copies follow, so that
 * `first microbatch: no` still reuses them. */
START_TEST(save_load_weight_version_never_goes_back)
{
    static const uint64_t saved[] = {1, 5, 90}, want[] = {2, 5, 90};
    struct stash s = {0};
    struct blob first = trained_save(), b;
    float *x = draw_normal(1, 3 * IN, 1.0);
    struct desk_forward f = {.model = "n",
                             .layer = "l",
                             .mode = FP8D__V1__MODE__MODE_TRAIN,
                             .first = FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_NO,
                             .x = x,
                             .tokens = 3,
                             .in = IN,
                             .out = OUT};
    stash_from(&s, &first);
    stash_report_free(load("n", &first));
    for (unsigned i = 0; i < 3; i++) {
        ((uint64_t *)(void *)stash_find(&s, "fp8d.model")->data)[1] = saved[i];
        b = stash_blob(&s);
        Fp8d__V1__LoadCommitReply *r = load("n", &b);
        ck_assert_uint_eq(r->head->weight_version, want[i]);
        stash_report_free(r);
        ck_assert_msg(desk_forward(D, 1, &f, A.text) == 0, "%s", A.text);
        ck_assert_int_eq(f.copy, FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_REUSED);
        blob_free(&b);
    }
    Fp8d__V1__LoadCommitReply *r = load("n", &first); /* 1 again, over 90 */
    ck_assert_uint_eq(r->head->weight_version, 91);
    stash_report_free(r);
    stash_free(&s);
    blob_free(&first);
    free(x);
}
END_TEST

/* --- at the same time --- */

static uint64_t send(struct ask *a, uint16_t type, const ProtobufCMessage *m, int *fd)
{
    return desk_send(D, a->conn, type, m, NULL, 0, fd, fd ? 1 : 0);
}

static uint64_t commit(struct ask *a, const char *model, const struct blob *b, uint64_t id)
{
    Fp8d__V1__LoadBeginRequest begin = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__LoadAttachRequest at = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest c = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    char *name = str("f");
    int fd = blob_fd(b);
    begin.load_id = at.load_id = c.load_id = id;
    begin.model = str(model);
    at.n_names = 1;
    at.names = &name;
    (void)send(a, REQUEST_LOAD_BEGIN, &begin.base, NULL);
    (void)send(a, REQUEST_LOAD_ATTACH, &at.base, &fd);
    return send(a, REQUEST_LOAD_COMMIT, &c.base, NULL);
}

/* The second commit of one name is ABORTED and names the other; it can be sent again afterwards.
 * Loads of other names are not held up. */
START_TEST(save_load_of_one_name_at_once)
{
    struct ask other = ask_open(D, 2), third = ask_open(D, 3);
    struct blob b = plain_file();
    Fp8d__V1__LoadCommitRequest again = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    again.load_id = 6;
    atomic_store(&stalled, true);
    uint64_t x = commit(&A, "m", &b, 5), y = commit(&other, "m", &b, 6),
             z = commit(&third, "n", &b, 7);
    ck_assert_uint_eq(ask_take(&other, y), ABORTED);
    ck_assert_msg(strstr(other.text, "load 5 of connection 1") && strstr(other.text, "model m"),
                  "%s", other.text);
    atomic_store(&stalled, false);
    ck_assert_uint_eq(ask_take(&A, x), OK);
    ck_assert_uint_eq(ask_take(&third, z), OK);
    ck_assert_uint_eq(ask_take(&other, send(&other, REQUEST_LOAD_COMMIT, &again.base, NULL)), OK);
    ask_close(&other);
    ask_close(&third);
    blob_free(&b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("save_load");
    TCase *c = tcase_create("save_load");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, start, stop);
    tcase_add_test(c, save_load_recipe_of_the_file);
    tcase_add_test(c, save_load_recipe_of_the_option);
    tcase_add_test(c, save_load_accumulation);
    tcase_add_test(c, save_load_resizes_histories);
    tcase_add_test(c, save_load_other_format_and_kind);
    tcase_add_test(c, save_load_drops_a_copy_that_does_not_fit);
    tcase_add_test(c, save_load_without_state);
    tcase_add_test(c, save_load_weight_version_never_goes_back);
    tcase_add_test(c, save_load_of_one_name_at_once);
    suite_add_tcase(s, c);
    return run_suite(s);
}
