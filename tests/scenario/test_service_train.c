/* Training on the real daemon: what is sent ahead gives the same bits. */
#include "tests/scenario/service.h"
#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

#define SIDE 64u
#define ROWS 8u
#define STEPS 20u

static float batch[STEPS][ROWS * SIDE];

/* The n-th request of a loop of forward, backward, step on layer "big". */
static uint64_t train_submit(struct fp8d *c, const char *model, unsigned n)
{
    struct fp8d_tensor x = {.dtype = FP8D_F32,
                            .rank = 2,
                            .dims = {ROWS, SIDE},
                            .data = batch[n / 3],
                            .size = sizeof batch[0]};
    struct fp8d_forward f = {.model = model,
                             .layer = "big",
                             .mode = FP8D_MODE_TRAIN,
                             .input = x,
                             .context_id = 1 + n / 3};
    struct fp8d_backward b = {.context_id = 1 + n / 3, .grad_output = x};
    struct fp8d_step s = {.model = model, .step = 1 + n / 3};
    uint64_t id = 0;
    int rc = n % 3 == 0   ? fp8d_submit_forward(c, &f, NULL, &id, &err)
             : n % 3 == 1 ? fp8d_submit_backward(c, &b, NULL, &id, &err)
                          : fp8d_submit_step(c, &s, NULL, &id, &err);
    ck_assert_msg(!rc, "%s", err.text);
    return id;
}

/* `depth` of them under way. What they give: outputs and input gradients. */
static float *train_loop(struct fp8d *c, const char *model, unsigned depth)
{
    struct fp8d_optimizer adam = {.kind = FP8D_OPTIMIZER_ADAM, .rate = 0.01};
    float *all = calloc((size_t)STEPS * 2 * ROWS * SIDE, sizeof *all);
    uint64_t ids[STEPS * 3];
    load_square(c, model, SIDE);
    ck_assert(!fp8d_set_optimizer(c, model, &adam, NULL, 0, NULL, NULL, NULL, &err));
    for (unsigned sent = 0, done = 0; done < STEPS * 3; done++) {
        struct fp8d_result *r;
        for (; sent < STEPS * 3 && sent < done + depth; sent++)
            ids[sent] = train_submit(c, model, sent);
        ck_assert_msg(!fp8d_wait(c, ids[done], &r, &err), "%u: %s", done, err.text);
        const struct fp8d_tensor *t = done % 3 == 0   ? &fp8d_result_forward(r)->output
                                      : done % 3 == 1 ? &fp8d_result_backward(r)->grad_input
                                                      : NULL;
        if (t)
            memcpy(all + (size_t)(done / 3 * 2 + done % 3) * ROWS * SIDE, t->data, t->size);
        fp8d_result_free(r);
    }
    return all;
}

/* Training whose requests are sent ahead gives the bits of training that waits for each. */
START_TEST(training_sent_ahead)
{
    struct fp8d *c = client();
    for (unsigned i = 0; i < STEPS * ROWS * SIDE; i++)
        batch[i / (ROWS * SIDE)][i % (ROWS * SIDE)] = (float)((i * 37 + i / 11) % 19) - 9.0f;
    float *one = train_loop(c, "one", 1);
    for (unsigned depth = 2; depth <= 32; depth *= 4) {
        float *all = train_loop(c, "all", depth);
        ck_assert(!memcmp(one, all, (size_t)STEPS * 2 * ROWS * SIDE * sizeof *one));
        free(all);
    }
    free(one);
    fp8d_close(c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("service_train");
    TCase *t = tcase_create("train");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, service_start, service_stop);
    tcase_add_test(t, training_sent_ahead);
    suite_add_tcase(s, t);
    return run_suite(s);
}
