/* test_rpc_memory_out.c - memory runs out and stays out, or fails where a reply has several frames
 * or a client connects: still one reply each, or the end of the connection. */
#include "base/mem.h"
#include "tests/unit/run.h"
#include "tests/unit/served.h"

#include <stdio.h>
#include <unistd.h>

/* --- fixture --- */

static struct served S;
static char text[1024];
static int file;

static void open_served(void)
{
    file = served_file(3);
    served_open(&S, NULL, 0);
}

static void close_served(void)
{
    served_close(&S);
    close(file);
}

/* --- cases --- */

START_TEST(memory_fails_from_an_allocation_on)
{
    /* Memory runs out and stays out: every request still gets its one reply, or its connection is
     * ended with NET_FATAL. */
    for (int64_t n = 0; n < 40; n++) {
        mem_fault_arm(n, true);
        uint64_t id = served_forward(&S, ATTACKER, NULL, 0);
        mem_fault_arm(-1, false);
        int code = served_code(&S, ATTACKER, id, text);
        ck_assert_msg((code == -1) == (S.d->verdict == NET_FATAL), "allocation %lld: %d",
                      (long long)n, code);
        ck_assert_msg(code <= OK || code == RESOURCE_EXHAUSTED, "%d: %s", code, text);
    }
}
END_TEST

START_TEST(memory_fails_in_a_list_of_several_frames)
{
    /* A list of more rows than one frame holds is told whole or not at all. */
    Fp8d__V1__ListModelsRequest m = FP8D__V1__LIST_MODELS_REQUEST__INIT;
    bool fired = true;
    char name[16];
    for (unsigned i = 0; i < 140; i++) {
        (void)snprintf(name, sizeof name, "n%u", i);
        ck_assert_uint_eq(served_load_fd(&S, BYSTANDER, name, dup(file), text), OK);
    }
    for (int64_t n = 0; fired; n++) {
        struct desk_frame *f = NULL;
        mem_fault_arm(n, false);
        unsigned code = desk_call(S.d, ATTACKER, REQUEST_LIST_MODELS, &m.base, NULL, 0, &f, text);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        ck_assert(code == OK || (fired && code == RESOURCE_EXHAUSTED));
        if (code)
            continue;
        Fp8d__V1__ListModelsReply *r =
            fp8d__v1__list_models_reply__unpack(NULL, f->meta_len, f->meta);
        ck_assert_uint_eq(r->n_models, 141);
        fp8d__v1__list_models_reply__free_unpacked(r, NULL);
        desk_frame_free(f);
    }
}
END_TEST

START_TEST(memory_fails_while_a_client_connects)
{
    /* A client that cannot be served is refused with a sentence, and nothing of it is left. */
    struct net_peer peer = {50, 1, 2, 3};
    bool fired = true;
    for (int64_t n = 0; fired; n++) {
        struct fault f = {0};
        int64_t blocks = mem_live_blocks();
        mem_fault_arm(n, false);
        int rc = S.d->handler.opened(S.d->handler.self, &peer, &f);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        desk_pump(S.d);
        ck_assert(fired == (rc != 0));
        ck_assert(!rc || (status_to_rpc(rc) == RESOURCE_EXHAUSTED && f.text[0]));
        ck_assert(!rc || mem_live_blocks() == blocks);
    }
    desk_close(S.d, 50);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rpc_memory_out");
    TCase *t = tcase_create("memory");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, open_served, close_served);
    tcase_add_test(t, memory_fails_from_an_allocation_on);
    tcase_add_test(t, memory_fails_in_a_list_of_several_frames);
    tcase_add_test(t, memory_fails_while_a_client_connects);
    suite_add_tcase(s, t);
    return run_suite(s);
}
