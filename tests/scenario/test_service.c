/* The real daemon over its socket, through libfp8d: what only the whole can show. */
#include "tests/scenario/service.h"
#include "tests/unit/run.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- helpers --- */

static uint64_t size_or(uint64_t full, uint64_t small)
{
    return getenv("FP8D_TEST_SMALL") ? small : full;
}

struct input {
    float *x;
    struct fp8d_forward f;
};

static struct input input_of(const char *model, uint64_t tokens, uint64_t n)
{
    struct input in = {.x = malloc(tokens * n * 4 + 4)};
    for (uint64_t i = 0; i < tokens * n; i++)
        in.x[i] = (float)(i % 7);
    in.f = (struct fp8d_forward){
        .model = model,
        .layer = "big",
        .input = {.dtype = FP8D_F32,
                  .rank = 2,
                  .dims = {tokens, n},
                  .data = in.x,
                  .size = tokens * n * 4},
    };
    return in;
}

static struct fp8d_status status_of(struct fp8d *c)
{
    struct fp8d_result *r;
    ck_assert_msg(!fp8d_get_status(c, NULL, &r, &err), "%s", err.text);
    struct fp8d_status s = *fp8d_result_status(r);
    fp8d_result_free(r);
    return s;
}

/* An input that computes for about a second and a half, whatever the build: the sanitizers' is a
 * hundred times slower. */
static struct input long_input(struct fp8d *c, const char *model, uint64_t n)
{
    struct input probe = input_of(model, 16, n);
    double begin = 0;
    for (int i = 0; i < 2; i++) { /* the first one casts the weight */
        begin = clock_ms();
        ck_assert_msg(!fp8d_forward(c, &probe.f, NULL, NULL, &err), "%s", err.text);
    }
    double ms = clock_ms() - begin;
    free(probe.x);
    double tokens = 16 * 1500 / (ms > 0.1 ? ms : 0.1);
    return input_of(model, tokens < 16 ? 16 : tokens > 16384 ? 16384 : (uint64_t)tokens, n);
}

static void wait_until_running(struct fp8d *c)
{
    for (int i = 0; i < 2000 && !status_of(c).running; i++)
        usleep(1000);
    ck_assert_uint_eq(status_of(c).running, 1);
}

/* --- cases --- */

/* A scaling question sent while a long GEMM runs is answered before that GEMM's reply. */
START_TEST(service_answers_while_computing)
{
    uint64_t n = 1024;
    struct fp8d *c = client();
    struct fp8d *other = client();
    struct fp8d_result *r;
    uint64_t forward, question;
    load_square(c, "m", n);
    struct input in = long_input(c, "m", n);
    uint64_t before = status_of(c).forwards_done;
    ck_assert(!fp8d_submit_forward(c, &in.f, NULL, &forward, &err));
    wait_until_running(other);
    ck_assert(!fp8d_submit_query_scaling(c, "m", NULL, true, NULL, &question, &err));
    ck_assert(!fp8d_wait(c, question, &r, &err));
    fp8d_result_free(r);
    ck_assert_msg(status_of(other).running == 1, "the GEMM had ended: nothing was shown");
    ck_assert_uint_eq(status_of(other).forwards_done, before);
    ck_assert(!fp8d_wait(c, forward, &r, &err));
    fp8d_result_free(r);
    ck_assert_uint_eq(status_of(other).forwards_done, before + 1);
    free(in.x);
    fp8d_close(other);
    fp8d_close(c);
}
END_TEST

/* Of three queued forwards, the cancelled one and the late one are not executed. */
START_TEST(service_cancelled_and_late_do_not_run)
{
    uint64_t n = 1024;
    struct fp8d *c = client();
    struct fp8d *other = client();
    struct fp8d_call late = {.deadline_ms = 1};
    struct fp8d_result *r;
    uint64_t id[4];
    load_square(c, "m", n);
    struct input in = long_input(c, "m", n);
    struct input small = input_of("m", 16, n);
    uint64_t before = status_of(c).forwards_done;
    ck_assert(!fp8d_submit_forward(c, &in.f, NULL, &id[0], &err));
    wait_until_running(other);
    ck_assert(!fp8d_submit_forward(c, &small.f, NULL, &id[1], &err));
    ck_assert(!fp8d_submit_forward(c, &small.f, &late, &id[2], &err));
    ck_assert(!fp8d_submit_forward(c, &small.f, NULL, &id[3], &err));
    ck_assert_msg(!fp8d_cancel(c, id[1], NULL, &r, &err), "%s", err.text);
    ck_assert_int_eq(fp8d_result_cancel(r), FP8D_CANCEL_REMOVED);
    fp8d_result_free(r);
    ck_assert_int_eq(fp8d_wait(c, id[1], NULL, &err), FP8D_ECANCELLED);
    ck_assert_int_eq(fp8d_wait(c, id[2], NULL, &err), FP8D_EDEADLINE_EXCEEDED);
    ck_assert_int_eq(fp8d_wait(c, id[0], NULL, &err), 0);
    ck_assert_int_eq(fp8d_wait(c, id[3], NULL, &err), 0);
    ck_assert_uint_eq(status_of(c).forwards_done, before + 2);
    free(in.x);
    free(small.x);
    fp8d_close(other);
    fp8d_close(c);
}
END_TEST

/* A client that is killed while its forward runs, with a context, a scope and a tensor, leaves
 * nothing behind, and another client is served. */
START_TEST(service_killed_client_leaves_nothing)
{
    uint64_t n = 1024;
    struct fp8d *c = client();
    load_square(c, "m", n);
    struct input in = long_input(c, "m", n);
    uint64_t before = status_of(c).memory_used;
    pid_t child = fork();
    if (child == 0) {
        struct fp8d *own = client();
        uint64_t id;
        in.f.mode = FP8D_MODE_TRAIN;
        in.f.context_id = 1;
        in.f.output_id = 7;
        if (fp8d_begin_scope(own, 1, "m", NULL, NULL, NULL, &err) ||
            fp8d_submit_forward(own, &in.f, NULL, &id, &err))
            _exit(1);
        pause();
        _exit(1);
    }
    wait_until_running(c);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    struct fp8d_status s = status_of(c);
    for (int i = 0; i < 20000 && (s.scopes || s.contexts || s.connections > 1 || s.running); i++) {
        usleep(1000);
        s = status_of(c);
    }
    ck_assert_uint_eq(s.scopes, 0);
    ck_assert_uint_eq(s.contexts, 0);
    ck_assert_uint_eq(s.connections, 1);
    free(in.x);
    in = input_of("m", 16, n);
    in.f.mode = FP8D_MODE_TRAIN;
    ck_assert_msg(!fp8d_forward(c, &in.f, NULL, NULL, &err), "%s", err.text);
    /* What is left is the FP8 copy of the weight, which belongs to the model. */
    ck_assert_uint_le(status_of(c).memory_used, before + n * n + (4u << 20));
    free(in.x);
    fp8d_close(c);
}
END_TEST

/* A stop under load: what runs finishes and is answered, what waits is refused as not executed, and
 * the daemon ends with 0 (the fixture asserts it). */
START_TEST(service_stops_under_load)
{
    uint64_t n = 1024;
    struct fp8d *c = client();
    struct fp8d *other = client();
    struct fp8d_result *r;
    uint64_t running, waiting;
    load_square(c, "m", n);
    struct input in = long_input(c, "m", n);
    ck_assert(!fp8d_submit_forward(c, &in.f, NULL, &running, &err));
    ck_assert(!fp8d_submit_forward(c, &in.f, NULL, &waiting, &err));
    wait_until_running(other);
    kill(server.pid, SIGTERM);
    told = true;
    ck_assert_int_eq(fp8d_wait(c, waiting, NULL, &err), FP8D_EUNAVAILABLE);
    ck_assert_msg(!fp8d_wait(c, running, &r, &err), "%s", err.text);
    ck_assert_uint_eq(fp8d_result_forward(r)->output.size, in.f.input.size);
    fp8d_result_free(r);
    free(in.x);
    fp8d_close(other);
    fp8d_close(c);
}
END_TEST

/* Put, forward and drop are pipelined by numbers the client chose, without waiting for a reply, and
 * the output equals the one of the same input sent inline. */
START_TEST(service_pipelines_put_forward_get)
{
    enum { N = 64, TOKENS = 24 };
    struct fp8d *c = client();
    struct fp8d_result *inline_result, *got;
    uint64_t id[3];
    load_square(c, "m", N);
    struct input in = input_of("m", TOKENS, N);
    ck_assert(!fp8d_forward(c, &in.f, NULL, &inline_result, &err));
    struct fp8d_forward by_id = in.f;
    by_id.input = (struct fp8d_tensor){.tensor_id = 5};
    by_id.output_id = 6;
    ck_assert(!fp8d_submit_put_tensor(c, 5, &in.f.input, NULL, &id[0], &err));
    ck_assert(!fp8d_submit_forward(c, &by_id, NULL, &id[1], &err));
    ck_assert(!fp8d_submit_get_tensor(c, 6, NULL, NULL, &id[2], &err));
    ck_assert_msg(!fp8d_wait(c, id[2], &got, &err), "%s", err.text);
    ck_assert_int_eq(fp8d_wait(c, id[0], NULL, &err), 0);
    ck_assert_int_eq(fp8d_wait(c, id[1], NULL, &err), 0);
    const struct fp8d_tensor *a = &fp8d_result_forward(inline_result)->output;
    const struct fp8d_tensor *b = fp8d_result_tensor(got);
    ck_assert_uint_eq(a->size, TOKENS * N * 4);
    ck_assert_uint_eq(b->size, a->size);
    ck_assert_mem_eq(a->data, b->data, a->size);
    fp8d_result_free(inline_result);
    fp8d_result_free(got);
    free(in.x);
    fp8d_close(c);
}
END_TEST

/* Descriptors of a frame that follows a payload at once, so that one receive brings the payload's
 * end and the next header together, belong to that frame. */
START_TEST(service_payload_then_descriptor)
{
    struct fp8d *c = client();
    float x[256] = {0};
    char path[160];
    uint64_t id[3];
    const char *name = "log";
    struct fp8d_tensor t = {
        .dtype = FP8D_F32, .rank = 2, .dims = {16, 16}, .data = x, .size = sizeof x};
    struct fp8d_load_begin load = {.load_id = 3, .model = "m"};
    (void)snprintf(path, sizeof path, "%s", server.log);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    kill(server.pid, SIGSTOP);
    ck_assert(!fp8d_submit_load_begin(c, &load, NULL, &id[0], &err));
    ck_assert(!fp8d_submit_put_tensor(c, 1, &t, NULL, &id[1], &err));
    ck_assert(!fp8d_submit_load_attach(c, 3, &fd, &name, 1, NULL, &id[2], &err));
    kill(server.pid, SIGCONT);
    for (int i = 0; i < 3; i++)
        ck_assert_msg(!fp8d_wait(c, id[i], NULL, &err), "request %d: %s", i, err.text);
    close(fd);
    fp8d_close(c);
}
END_TEST

/* A client that goes away in the middle of a load leaves the daemon serving (it must not touch what
 * ended with the connection). */
START_TEST(service_client_leaves_while_loading)
{
    struct fp8d *c = client();
    load_square(c, "m", size_or(2048, 256));
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            load_square(client(), "m", size_or(2048, 256));
            _exit(0);
        }
        usleep((unsigned)i * 1500);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    struct input in = input_of("m", 16, size_or(2048, 256));
    ck_assert_msg(!fp8d_forward(c, &in.f, NULL, NULL, &err), "%s", err.text);
    free(in.x);
    fp8d_close(c);
    c = client();
    ck_assert_uint_eq(status_of(c).models, 1);
    fp8d_close(c);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("service");
    TCase *t = tcase_create("service");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, service_start, service_stop);
    /* These need a computation of a second, which a GPU's with these inputs is not. */
    if (!getenv("FP8D_TEST_BACKEND")) {
        tcase_add_test(t, service_answers_while_computing);
        tcase_add_test(t, service_cancelled_and_late_do_not_run);
        tcase_add_test(t, service_killed_client_leaves_nothing);
    }
    tcase_add_test(t, service_stops_under_load);
    tcase_add_test(t, service_pipelines_put_forward_get);
    tcase_add_test(t, service_payload_then_descriptor);
    tcase_add_test(t, service_client_leaves_while_loading);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return run_suite(suite());
}
