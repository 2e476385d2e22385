/* Contexts: what a train forward keeps for its backward, for how long, and what that costs. */
#include "tests/oracle/codes.h"
#include "tests/scenario/pair.h"
#include "tests/unit/run.h"

#include "daemon/engine/context.h"
#include "daemon/rpc/caller.h"
#include "daemon/rpc/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define OUT 32
#define IN 48
#define TOKENS 6
#define CONTEXTS_MAX 64 /* desk.c's */

static const struct oracle_recipe recipe = {.history_len = 4};

/* --- fixture --- */

struct fix {
    struct pair p;
    float *w, *x;
};

static void fix_open(struct fix *f)
{
    f->w = draw_normal(1, OUT * IN, 0.1);
    f->x = draw_normal(2, TOKENS * IN, 30.0);
    pair_open(&f->p, OUT, IN, &recipe, f->w, NULL);
}

static void fix_close(struct fix *f)
{
    pair_close(&f->p);
    free(f->w);
    free(f->x);
}

/* --- helpers --- */

static unsigned keep(struct fix *f, Fp8d__V1__Mode mode, uint64_t id, uint64_t tokens)
{
    struct ask_forward r = {.model = PAIR_MODEL, .layer = PAIR_LAYER, .mode = mode,
                            .x = ask_f32(f->x, tokens, IN), .context_id = id};
    unsigned code = ask_forward(&f->p.a, &r);
    ask_forward_free(&r);
    return code;
}

static unsigned keep_train(struct fix *f, uint64_t id)
{
    return keep(f, FP8D__V1__MODE__MODE_TRAIN, id, TOKENS);
}

static struct context *find(struct fix *f, uint64_t id)
{
    struct fault fault = {0};
    struct caller *c = idmap_get(&f->p.desk->rpc->callers, f->p.a.conn);
    struct context *found = NULL;
    ck_assert_msg(!context_find(&c->session->lease, id, &found, &fault), "%s", fault.text);
    return found;
}

static uint32_t contexts(struct fix *f)
{
    Fp8d__V1__StatusReply *s = ask_status(&f->p.a);
    uint32_t n = s->contexts;
    fp8d__v1__status_reply__free_unpacked(s, NULL);
    return n;
}

/* What an export showed. A GPU's comes on another thread, where no check may fail. */
struct shown {
    uint8_t codes[OUT * IN];
    float factor;
    uint64_t count;
    bool e5m2;
    unsigned calls;
};

static void show(void *arg, const struct qtensor_view *v)
{
    struct shown *s = arg;
    s->calls++;
    s->factor = v->scale_inv[0];
    s->count = v->info.rows * v->info.cols;
    s->e5m2 = v->info.fmt == DTYPE_F8_E5M2;
    if (s->count <= sizeof s->codes)
        memcpy(s->codes, v->codes, s->count);
}

/* x, cast with `scale`. */
static void check_holds(struct fix *f, struct qtensor *q, const float *x, float scale)
{
    struct fault fault = {0};
    struct shown s = {.calls = 0};
    ck_assert(!qtensor_export(f->p.desk->engine->queue, q, show, &s, &fault));
    desk_settle(f->p.desk);
    ck_assert(s.calls == 1 && s.count >= TOKENS * IN && s.count <= sizeof s.codes);
    ck_assert(s.factor == (float)(1.0 / (double)scale));
    for (uint64_t i = 0; i < s.count; i++) {
        double found = fp8_value(s.codes[i], s.e5m2);
        double need = oracle_fp8((double)(x[i] * scale), false);
        ck_assert_msg(found == need, "element %llu is %g, needed %g", (unsigned long long)i, found,
                      need);
    }
}

/* --- cases --- */

/* A context holds the very bytes and factors multiplied with, whatever is edited, trained, replaced
 * or unloaded afterwards. */
START_TEST(context_keeps_what_it_multiplied_with)
{
    struct fix f;
    float *other = draw_normal(9, OUT * IN, 50.0);
    struct ask_tensor w = ask_f32(other, OUT, IN);
    fix_open(&f);
    ck_assert(!keep_train(&f, 1) && !keep_train(&f, 2));
    float amax = 0, wmax = 0;
    for (size_t i = 0; i < TOKENS * IN; i++)
        amax = fmaxf(amax, fabsf(f.x[i]));
    for (size_t i = 0; i < OUT * IN; i++)
        wmax = fmaxf(wmax, fabsf(f.w[i]));
    ck_assert(!ask_edit(&f.p.a, PAIR_MODEL, PAIR_LAYER, &w, NULL, NULL, NULL));
    ck_assert(!keep_train(&f, 3));
    pair_load(&f.p, other, NULL);
    ck_assert(!ask_drop_model(&f.p.a, PAIR_MODEL, NULL));
    check_holds(&f, find(&f, 1)->input, f.x, 1);
    check_holds(&f, find(&f, 1)->weight, f.w, 1);
    check_holds(&f, find(&f, 2)->input, f.x, (float)(448.0 / (double)amax));
    check_holds(&f, find(&f, 2)->weight, f.w, (float)(448.0 / (double)wmax));
    check_holds(&f, find(&f, 3)->weight, other, (float)(448.0 / (double)wmax));
    ck_assert(find(&f, 2)->weight_version == 1 && find(&f, 3)->weight_version == 2);
    ck_assert_uint_eq(contexts(&f), 3);
    fix_close(&f);
    free(other);
}
END_TEST

/* Dropping gives its id, its place and its memory back. */
START_TEST(context_dropped_gives_its_memory_back)
{
    struct fix f;
    fix_open(&f);
    ck_assert(!keep_train(&f, 1) && !ask_drop_context(&f.p.a, 1));
    uint64_t used = ledger_used(&f.p.desk->ledger);
    int64_t blocks = desk_blocks();
    for (uint64_t id = 1; id <= 5; id++)
        ck_assert(!keep_train(&f, id));
    ck_assert(contexts(&f) == 5 && ledger_used(&f.p.desk->ledger) > used);
    ck_assert_uint_eq(keep_train(&f, 3), ASK_ALREADY_EXISTS);
    for (uint64_t id = 5; id; id--)
        ck_assert(!ask_drop_context(&f.p.a, id));
    ck_assert_uint_eq(ask_drop_context(&f.p.a, 3), ASK_NOT_FOUND);
    ck_assert(contexts(&f) == 0 && ledger_used(&f.p.desk->ledger) == used);
    ck_assert(desk_blocks() == blocks);
    fix_close(&f);
}
END_TEST

/* The cap refuses one more, and the refused request has fed nothing. */
START_TEST(context_cap)
{
    struct fix f;
    fix_open(&f);
    for (uint64_t id = 1; id <= CONTEXTS_MAX; id++)
        ck_assert_msg(!keep_train(&f, id), "%s", f.p.a.text);
    Fp8d__V1__QueryScalingReply *before = ask_state(&f.p.a, PAIR_MODEL);
    ck_assert_uint_eq(keep_train(&f, 1000), ASK_RESOURCE_EXHAUSTED);
    Fp8d__V1__QueryScalingReply *after = ask_state(&f.p.a, PAIR_MODEL);
    ask_states_equal(before, after, true);
    ask_state_free(before);
    ask_state_free(after);
    ck_assert(!ask_drop_context(&f.p.a, 7) && !keep_train(&f, 1000));
    fix_close(&f);
}
END_TEST

/* Only mode train keeps one, and id 0 keeps none. */
START_TEST(context_is_of_train_alone)
{
    struct fix f;
    fix_open(&f);
    ck_assert_uint_eq(keep(&f, FP8D__V1__MODE__MODE_EVAL, 1, TOKENS), ASK_INVALID_ARGUMENT);
    ck_assert_uint_eq(keep(&f, FP8D__V1__MODE__MODE_CALIBRATE, 1, TOKENS), ASK_INVALID_ARGUMENT);
    ck_assert(!keep_train(&f, 0) && contexts(&f) == 0);
    ck_assert(!keep(&f, FP8D__V1__MODE__MODE_TRAIN, 1, 0)); /* zero tokens */
    ck_assert(contexts(&f) == 1 && !find(&f, 1)->input && !find(&f, 1)->weight);
    ck_assert(!ask_drop_context(&f.p.a, 1));
    fix_close(&f);
}
END_TEST

/* Ids are each connection's own, and end with it. */
START_TEST(context_is_of_one_connection)
{
    struct fix f;
    fix_open(&f);
    struct ask mine = f.p.a, other = ask_open(f.p.desk, 2);
    uint64_t used = ledger_used(&f.p.desk->ledger);
    f.p.a = other;
    ck_assert(!keep_train(&f, 1) && !keep_train(&f, 2));
    ck_assert(ask_drop_context(&mine, 1) == ASK_NOT_FOUND && contexts(&f) == 2);
    f.p.a = mine;
    ck_assert(!keep_train(&f, 1) && contexts(&f) == 3);
    ask_close(&other);
    ck_assert(contexts(&f) == 1 && !ask_drop_context(&f.p.a, 1));
    ck_assert(ledger_used(&f.p.desk->ledger) >= used); /* the training copy is new */
    fix_close(&f);
}
END_TEST

/* A model that was unloaded lives as long as its contexts: then its memory returns. */
START_TEST(context_outlives_its_model)
{
    struct fix f;
    struct desk_layer layer = {PAIR_LAYER, OUT, IN, NULL, NULL};
    fix_open(&f);
    layer.weight = f.w;
    ck_assert(!keep_train(&f, 1) && !ask_drop_context(&f.p.a, 1));
    ck_assert(!ask_drop_model(&f.p.a, PAIR_MODEL, NULL));
    uint64_t used = ledger_used(&f.p.desk->ledger);
    int64_t blocks = desk_blocks();
    ck_assert(used == 0);
    for (int last = 0; last < 2; last++) {
        ck_assert(!desk_load(f.p.desk, 1, PAIR_MODEL, &layer, 1, NULL, NULL));
        ck_assert(!keep_train(&f, 1) && !keep_train(&f, 2));
        ck_assert(!ask_drop_model(&f.p.a, PAIR_MODEL, NULL));
        ck_assert(!ask_drop_context(&f.p.a, 1 + (uint64_t)last));
        ck_assert(ledger_used(&f.p.desk->ledger) > used);
        ck_assert(!ask_drop_context(&f.p.a, 2 - (uint64_t)last));
        ck_assert_uint_eq(ledger_used(&f.p.desk->ledger), used);
    }
    ck_assert(desk_blocks() == blocks);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("contexts");
    TCase *c = tcase_create("contexts");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, context_keeps_what_it_multiplied_with);
    tcase_add_test(c, context_dropped_gives_its_memory_back);
    tcase_add_test(c, context_cap);
    tcase_add_test(c, context_is_of_train_alone);
    tcase_add_test(c, context_is_of_one_connection);
    tcase_add_test(c, context_outlives_its_model);
    suite_add_tcase(s, c);
    return run_suite(s);
}
