/* Every call that a request makes to the backend fails once: what it enqueues, the device's memory
 * it takes, and the notes that tell of its end. An error is a sentence and nothing else: a save of
 * the model, the scaling state, ids and the ledger are as they were, and the same request, made
 * again, gives what it would have given. */
#include "tests/scenario/ask_grad.h"
#include "tests/scenario/saboteur.h"
#include "tests/scenario/stash.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROWS 5
#define X 3 /* a resident tensor */
#define CONTEXT 5
#define NEW 9 /* id of what a request makes */

enum kind {
    TRAIN,
    EVAL,
    CALIBRATE,
    CHECK,
    BACKWARD,
    STEP,
    RECOMPUTE,
    GRADIENT,
    GET,
    PUT,
    PUT_FP8,
    EVAL_FP8,
    EDIT,
    SAVE,
    LOAD_SAVED,
    LOAD_FP8,
    LOAD_DEQUANTIZED,
    KINDS
};

/* Model m: the pair of stash.h after a step of Adam, with a gradient and a context of layer a. */
struct fix {
    struct desk *desk;
    struct ask a;
    float *x, *dy, *w;
    struct blob saved, fp8;
};

/* --- fixture --- */

static unsigned forward(struct fix *f, Fp8d__V1__Mode mode, uint64_t context, uint64_t output)
{
    struct ask_forward r = {.model = "m",
                            .layer = "a",
                            .mode = mode,
                            .x = ask_f32(f->x, ROWS, STASH_A_IN),
                            .context_id = context,
                            .output_id = output};
    unsigned code = ask_forward(&f->a, &r);
    ask_forward_free(&r);
    return code;
}

static unsigned backward(struct fix *f, uint64_t context, uint64_t output)
{
    struct ask_backward b = {
        .context_id = context, .dy = ask_f32(f->dy, ROWS, STASH_A_OUT), .grad_input_id = output};
    unsigned code = ask_backward(&f->a, &b);
    ask_backward_free(&b);
    return code;
}

static unsigned step(struct fix *f, uint64_t number)
{
    struct ask_step s = {.step = number};
    unsigned code = ask_step(&f->a, "m", &s);
    ask_step_free(&s);
    return code;
}

static struct blob fp8_file(void)
{
    struct stash s = {0};
    float factor = 0.5f;
    unsigned char codes[32 * 16];
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (unsigned char)(i % 0x7f);
    stash_put(&s, "l.weight", DTYPE_F8_E4M3, 2, 32, 16, codes);
    stash_put(&s, "l.weight_scale", DTYPE_F32, 0, 1, 1, &factor);
    stash_put(&s, "l.input_scale", DTYPE_F32, 0, 1, 1, &factor);
    struct blob b = stash_blob(&s);
    stash_free(&s);
    return b;
}

static void train(struct fix *f)
{
    Fp8d__V1__OptimizerOptions o = FP8D__V1__OPTIMIZER_OPTIONS__INIT;
    o.kind = FP8D__V1__OPTIMIZER_KIND__OPTIMIZER_KIND_ADAM;
    o.rate = 0.125;
    ck_assert_msg(!ask_optimizer(&f->a, "m", &o, NULL, 0), "%s", f->a.text);
    for (uint64_t i = 1; i <= 2; i++) {
        ck_assert_msg(!forward(f, FP8D__V1__MODE__MODE_TRAIN, 1, 0), "%s", f->a.text);
        ck_assert_msg(!backward(f, 1, NEW), "%s", f->a.text);
        ck_assert(!ask_free(&f->a, NEW));
        if (i == 1)
            ck_assert_msg(!step(f, 1), "%s", f->a.text);
    }
    ck_assert_msg(!forward(f, FP8D__V1__MODE__MODE_TRAIN, CONTEXT, 0), "%s", f->a.text);
}

static void fix_open(struct fix *f)
{
    struct blob file = stash_pair();
    *f = (struct fix){.desk = desk_new(NULL, 0)};
    f->a = ask_open(f->desk, 1);
    f->x = draw_normal(1, (size_t)ROWS * STASH_A_IN, 1.0);
    f->dy = draw_normal(2, (size_t)ROWS * STASH_A_OUT, 1.0);
    f->w = draw_normal(3, (size_t)STASH_B_OUT * STASH_B_IN, 1.0);
    ck_assert_msg(!stash_load(&f->a, "m", &file, NULL, NULL), "%s", f->a.text);
    blob_free(&file);
    train(f);
    struct ask_tensor x = ask_f32(f->x, ROWS, STASH_A_IN);
    ck_assert(!ask_put(&f->a, X, &x));
    f->saved = stash_save(&f->a, "m");
    f->fp8 = fp8_file();
    saboteur_open(f->desk->backend);
}

static void fix_close(struct fix *f)
{
    saboteur_close(f->desk->backend);
    ask_close(&f->a);
    desk_free(f->desk);
    blob_free(&f->saved);
    blob_free(&f->fp8);
    free(f->x);
    free(f->dy);
    free(f->w);
}

/* --- requests --- */

static unsigned save(struct fix *f)
{
    struct stash_saving s = stash_save_sent(f->desk, 2, "m");
    unsigned code = ask_take(&s.a, s.commit);
    memcpy(f->a.text, s.a.text, sizeof f->a.text);
    ask_close(&s.a);
    close(s.fd);
    return code;
}

static unsigned load(struct fix *f, enum kind kind)
{
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    o.dequantize = kind == LOAD_DEQUANTIZED ? FP8D__V1__DTYPE__DTYPE_BF16 : 0;
    return stash_load(&f->a, "n", kind == LOAD_SAVED ? &f->saved : &f->fp8, &o, NULL);
}

static unsigned get(struct fix *f, uint64_t id)
{
    struct desk_frame *frame = NULL;
    unsigned code = ask_get(&f->a, id, &frame, NULL);
    ck_assert(code || (frame->payload_len == sizeof(float) * ROWS * STASH_A_IN &&
                       !memcmp(frame->payload, f->x, frame->payload_len)));
    desk_frame_free(frame);
    return code;
}

static struct ask_tensor fp8_input(void)
{
    static unsigned char codes[ROWS * STASH_A_IN];
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (unsigned char)(i % 0x7f);
    return (struct ask_tensor){.dtype = FP8D__V1__DTYPE__DTYPE_F8_E4M3,
                               .rank = 2,
                               .dims = {ROWS, STASH_A_IN},
                               .data = codes,
                               .factor = 0.5f};
}

static unsigned eval_fp8(struct fix *f, struct ask_tensor x)
{
    struct ask_forward r = {
        .model = "m", .layer = "a", .mode = FP8D__V1__MODE__MODE_EVAL, .x = x, .output_id = NEW};
    unsigned code = ask_forward(&f->a, &r);
    ask_forward_free(&r);
    return code;
}

static unsigned request(struct fix *f, enum kind kind)
{
    struct ask_tensor x = ask_f32(f->x, ROWS, STASH_A_IN),
                      w = ask_f32(f->w, STASH_B_OUT, STASH_B_IN);
    struct ask_recompute r = {.context_id = CONTEXT, .output_id = NEW};
    struct ask_gradient g = {0};
    struct ask_tensor codes = fp8_input();
    unsigned code;
    switch (kind) {
    case TRAIN:
        return forward(f, FP8D__V1__MODE__MODE_TRAIN, NEW, NEW);
    case EVAL:
        return forward(f, FP8D__V1__MODE__MODE_EVAL, 0, NEW);
    case CALIBRATE:
        return forward(f, FP8D__V1__MODE__MODE_CALIBRATE, 0, NEW);
    case CHECK:
        return ask_check(&f->a, "m", "a", &x, NULL);
    case BACKWARD:
        return backward(f, CONTEXT, NEW);
    case STEP:
        return step(f, 2);
    case RECOMPUTE:
        code = ask_recompute(&f->a, &r);
        ask_recompute_free(&r);
        return code;
    case GRADIENT:
        code = ask_gradient(&f->a, "m", "a", false, &g);
        free(g.data);
        return code;
    case GET:
        return get(f, X);
    case PUT:
        return ask_put(&f->a, NEW, &x);
    case PUT_FP8:
        return ask_put(&f->a, NEW, &codes);
    case EVAL_FP8:
        return eval_fp8(f, codes);
    case EDIT:
        return ask_edit(&f->a, "m", "b-c", &w, NULL, NULL, NULL);
    case SAVE:
        return save(f);
    default:
        return load(f, kind);
    }
}

/* --- what there is --- */

struct print {
    struct blob saved;
    Fp8d__V1__QueryScalingReply *state;
    Fp8d__V1__StatusReply *status;
};

static struct print take(struct fix *f)
{
    return (struct print){stash_save(&f->a, "m"), ask_state(&f->a, "m"), ask_status(&f->a)};
}

static void print_free(struct print *p)
{
    blob_free(&p->saved);
    ask_state_free(p->state);
    fp8d__v1__status_reply__free_unpacked(p->status, NULL);
}

static void same(const struct print *a, const struct print *b)
{
    blob_equal(&a->saved, &b->saved);
    ask_states_equal(a->state, b->state, true);
    const Fp8d__V1__StatusReply *x = a->status, *y = b->status;
    ck_assert_uint_eq(x->memory_used, y->memory_used);
    ck_assert(x->models == y->models && x->contexts == y->contexts && x->running == y->running &&
              x->queued == y->queued);
}

/* --- cases --- */

/* Here a note fails when all before it has been done. What a request changes in place comes last
 * in it (the scales of a training forward, a layer's gradient, the weights in a step's second
 * round), so that an operation which cannot be launched keeps it from being done: for those a note
 * says nothing. */
static bool can_be_taken_back(enum kind kind, enum saboteur_what what, int at)
{
    bool in_place = kind == TRAIN || kind == BACKWARD || (kind == STEP && at > 0);
    return what != SABOTEUR_NOTES || !in_place;
}

/* True once nothing failed, and the request went well. */
static bool attempt(enum kind kind, enum saboteur_what what, int at, const struct print *want)
{
    struct fix f;
    fix_open(&f);
    struct print before = take(&f);
    saboteur_arm(what, at);
    unsigned code = request(&f, kind);
    bool fired = saboteur_fired();
    saboteur_arm(what, -1);
    if (fired) {
        bool own = code == ASK_INTERNAL && strstr(f.a.text, saboteur_words(what));
        bool left_out = code == ASK_ABORTED && strstr(f.a.text, saboteur_left_out());
        ck_assert_msg(own || left_out, "%d of what %d: code %u, %s", at, (int)what, code, f.a.text);
        struct print after = take(&f);
        same(&before, &after);
        print_free(&after);
        code = request(&f, kind);
    }
    ck_assert_msg(!code, "%d of what %d: code %u, %s", at, (int)what, code, f.a.text);
    struct print end = take(&f);
    same(want, &end);
    print_free(&end);
    print_free(&before);
    fix_close(&f);
    return !fired;
}

START_TEST(backend_fails_every_call_once)
{
    enum kind kind = (enum kind)(_i / SABOTEUR_KINDS);
    enum saboteur_what what = (enum saboteur_what)(_i % SABOTEUR_KINDS);
    struct fix f;
    fix_open(&f);
    ck_assert_msg(!request(&f, kind), "%s", f.a.text);
    struct print want = take(&f);
    int at = 0;
    while (can_be_taken_back(kind, what, at) && !attempt(kind, what, at, &want))
        at++;
    bool copies = kind == PUT || kind == GET || (kind == SAVE && what == SABOTEUR_ALLOCS);
    ck_assert_msg(at >= 1 || !can_be_taken_back(kind, what, 0) || copies,
                  "kind %d makes no call of what %d", (int)kind, (int)what);
    print_free(&want);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("backend_faults");
    TCase *c = tcase_create("faults");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, backend_fails_every_call_once, 0, KINDS * SABOTEUR_KINDS);
    suite_add_tcase(s, c);
    return run_suite(s);
}
