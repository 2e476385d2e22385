/* What fp8ctl bench is asked to do: its options, and the caps of a server. */
#include "client/ctl/bench_plan.h"
#include "client/ctl/ctl.h"

#include "tests/unit/run.h"

#include <stdio.h>
#include <string.h>

/* --- fixture: the caps of a server as it comes --- */

static const struct fp8d_server server = {.payload_bytes = (uint64_t)1 << 30,
                                          .resident_bytes = (uint64_t)4 << 30,
                                          .in_flight = 64,
                                          .connections = 1024};

/* --- helpers --- */

#define WORDS_MOST 8

/* The words, up to NULL, as 'fp8ctl bench' reads them; `why` has the sentence of a failure. */
static bool read_plan(const char *const *words, struct bench_plan *out, char why[1024])
{
    struct args a;
    struct fault f = {0};
    int count = 0;
    while (count < WORDS_MOST && words[count])
        count++;
    bool good = args_parse(&a, count, words, command_find("bench")->options, NULL, why, 1024);
    if (good && bench_plan_read(&a, out, &f)) {
        ck_assert_int_eq(f.code, FP8D_EINVALID_ARGUMENT);
        (void)snprintf(why, 1024, "%s", f.text);
        good = false;
    }
    args_fini(&a);
    return good;
}

static struct bench_plan plan_of(uint64_t m, uint64_t n, uint64_t k)
{
    return (struct bench_plan){.m = m,
                               .n = n,
                               .k = k,
                               .clients = 1,
                               .depth = 1,
                               .dtype = FP8D_BF16,
                               .mode = FP8D_MODE_EVAL,
                               .planes = {true, true}};
}

/* --- options --- */

/* Nothing said: 16 tokens through [4096, 4096] in BF16, one client, one at a time, both planes. */
START_TEST(bench_defaults)
{
    struct bench_plan p;
    char why[1024];
    ck_assert(read_plan((const char *const[]){NULL}, &p, why));
    ck_assert(p.m == 16 && p.n == 4096 && p.k == 4096);
    ck_assert(p.clients == 1 && p.depth == 1 && p.requests == 0);
    ck_assert(p.dtype == FP8D_BF16 && p.mode == FP8D_MODE_EVAL);
    ck_assert(p.planes[BENCH_RESIDENT] && p.planes[BENCH_INLINE]);
}
END_TEST

/* Every option is taken for what it says. */
START_TEST(bench_options)
{
    struct bench_plan p;
    char why[1024];
    ck_assert(read_plan((const char *const[]){"--layer=1,16,16777216", "--clients=256",
                                              "--depth=512", "--requests=1000000", "--mode=train",
                                              "--dtype=f32", "--plane=inline", NULL},
                        &p, why));
    ck_assert(p.m == 1 && p.n == 16 && p.k == 16777216);
    ck_assert(p.clients == 256 && p.depth == 512 && p.requests == 1000000);
    ck_assert(p.dtype == FP8D_F32 && p.mode == FP8D_MODE_TRAIN);
    ck_assert(!p.planes[BENCH_RESIDENT] && p.planes[BENCH_INLINE]);
    ck_assert(read_plan(
        (const char *const[]){"--plane=resident", "--dtype=f16", "--mode=eval", NULL}, &p, why));
    ck_assert(p.planes[BENCH_RESIDENT] && !p.planes[BENCH_INLINE]);
    ck_assert(p.dtype == FP8D_F16 && p.mode == FP8D_MODE_EVAL);
    ck_assert(read_plan((const char *const[]){"--plane=both", "--dtype=bf16", NULL}, &p, why));
    ck_assert(p.planes[BENCH_RESIDENT] && p.planes[BENCH_INLINE] && p.dtype == FP8D_BF16);
}
END_TEST

static const struct bad {
    const char *word, *why;
} bads[] = {
    {"--layer=", "--layer is '', needed three whole numbers M,N,K"},
    {"--layer=16", "--layer is '16', needed three whole numbers"},
    {"--layer=16,32", "--layer is '16,32', needed three whole numbers"},
    {"--layer=16,32,", "needed three whole numbers"},
    {"--layer=16,32,48,", "needed three whole numbers"},
    {"--layer=16,32,48,64", "needed three whole numbers"},
    {"--layer=16, 32,48", "needed three whole numbers"},
    {"--layer=16x32x48", "needed three whole numbers"},
    {"--layer=-16,32,48", "needed three whole numbers"},
    {"--layer=+16,32,48", "needed three whole numbers"},
    {"--layer=16,32.0,48", "needed three whole numbers"},
    {"--layer=\x1b,32,48", "'\\x1b,32,48'"},
    {"--layer=0,32,48", "M is 0, needed a number from 1 to 16777216"},
    {"--layer=16777217,32,48", "M is 16777217, needed a number from 1 to 16777216"},
    {"--layer=99999999999999999999,32,48", "M is 18446744073709551615, needed"},
    {"--layer=16,0,48", "N is 0, needed a multiple of 16 from 16 to 16777216"},
    {"--layer=16,33,48", "N is 33, needed a multiple of 16"},
    {"--layer=16,32,8", "K is 8, needed a multiple of 16"},
    {"--layer=16,32,16777232", "K is 16777232, needed a multiple of 16 from 16 to 16777216"},
    {"--clients=0", "--clients is '0', needed a whole number from 1 to 256"},
    {"--clients=257", "--clients is '257', needed a whole number from 1 to 256"},
    {"--depth=0", "--depth is '0', needed a whole number from 1 to 512"},
    {"--depth=513", "--depth is '513', needed a whole number from 1 to 512"},
    {"--requests=0", "--requests is '0', needed a whole number from 1 to 1000000"},
    {"--requests=1000001", "--requests is '1000001', needed"},
    {"--mode=calibrate", "--mode is 'calibrate', needed eval|train"},
    {"--plane=shared", "--plane is 'shared', needed resident|inline|both"},
    {"--dtype=e4m3", "--dtype is 'e4m3', needed bf16|f16|f32"},
};

/* A bad value: one sentence with the option, the value found, the value needed. */
START_TEST(bench_bad_options)
{
    struct bench_plan p;
    char why[1024];
    ck_assert(!read_plan((const char *const[]){bads[_i].word, NULL}, &p, why));
    ck_assert_msg(strstr(why, bads[_i].why) != NULL, "%s", why);
}
END_TEST

/* --- the caps of a server --- */

static void fits(const struct bench_plan *p)
{
    struct fault f = {0};
    ck_assert_msg(!bench_plan_fits(p, &server, &f), "%s", f.text);
}

static void refused(const struct bench_plan *p, const char *why)
{
    struct fault f = {0};
    ck_assert_int_eq(bench_plan_fits(p, &server, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_msg(strstr(f.text, why) != NULL, "%s", f.text);
}

/* Tensors of exactly a payload pass, a row more does not; an output that stays may be larger. */
START_TEST(bench_payload_cap)
{
    struct bench_plan p = plan_of(1, 32768, 16384);
    fits(&p);
    p.n += 16; /* 32784 * 16384 * 2 bytes */
    refused(&p, "--layer is '1,32784,16384': the weight has 1074266112 bytes, needed at most "
                "1073741824, this server's payload_bytes");
    p = plan_of(32769, 16, 16384);
    refused(&p, "the input has 1073774592 bytes");
    p = plan_of(32769, 16384, 16);
    refused(&p, "the output has 1073774592 bytes");
    p.planes[BENCH_INLINE] = false;
    fits(&p);
}
END_TEST

/* As many as the server takes of a connection. */
START_TEST(bench_depth_cap)
{
    struct bench_plan p = plan_of(16, 16, 16);
    p.depth = 64;
    fits(&p);
    p.depth = 65;
    refused(&p, "--depth is 65, needed at most 64");
}
END_TEST

/* One input, an output for each under way, and one more: 4 GiB hold 3 + 1 of a gigabyte less the
 * input, not 4 + 1. */
START_TEST(bench_resident_cap)
{
    struct bench_plan p = plan_of(32752, 16384, 16); /* outputs of 1073217536 bytes */
    p.depth = 3;
    fits(&p);
    p.depth = 4;
    refused(&p, "--layer with --depth 4 keeps 5367135744 bytes of a connection resident, needed at "
                "most 4294967296");
    p.planes[BENCH_RESIDENT] = false;
    fits(&p);
}
END_TEST

/* One connection is needed beside the clients'. */
START_TEST(bench_connections_cap)
{
    struct bench_plan p = plan_of(16, 16, 16);
    struct fp8d_server few = server;
    struct fault f = {0};
    few.connections = 8;
    p.clients = 7;
    ck_assert_int_eq(bench_plan_fits(&p, &few, &f), 0);
    p.clients = 8;
    ck_assert_int_eq(bench_plan_fits(&p, &few, &f), FP8D_EINVALID_ARGUMENT);
    ck_assert_msg(strstr(f.text, "--clients is 8, needed at most 7") != NULL, "%s", f.text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_bench_plan");
    TCase *t = tcase_create("plan");
    tcase_add_test(t, bench_defaults);
    tcase_add_test(t, bench_options);
    tcase_add_loop_test(t, bench_bad_options, 0, sizeof bads / sizeof bads[0]);
    tcase_add_test(t, bench_payload_cap);
    tcase_add_test(t, bench_depth_cap);
    tcase_add_test(t, bench_resident_cap);
    tcase_add_test(t, bench_connections_cap);
    suite_add_tcase(s, t);
    return run_suite(s);
}
