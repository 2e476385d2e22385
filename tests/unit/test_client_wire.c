/* Requests under way: order, caps, timeouts, payload, limits, memory. */
#include "tests/unit/fake_server.h"
#include "tests/unit/run.h"

#include "base/mem.h"

#include <errno.h>
#include <poll.h>

#define BIG ((size_t)24 << 20)

/* --- helpers --- */

/* A reply to GetTensor: `count` F32 of value v. `claim` is what the description says. */
static bool answer_tensor(int fd, const struct frame_header *h, uint64_t count, uint64_t claim)
{
    Fp8d__V1__GetTensorReply m = FP8D__V1__GET_TENSOR_REPLY__INIT;
    Fp8d__V1__TensorRef t = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    uint64_t dims[2] = {1, claim};
    float *data = malloc(count * sizeof *data + 1);
    for (uint64_t i = 0; i < count; i++)
        data[i] = (float)(i % 1000);
    place.length = claim * 4;
    t.dtype = FP8D__V1__DTYPE__DTYPE_F32;
    t.n_dims = 2;
    t.dims = dims;
    t.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    t.inline_bytes = &place;
    m.tensor = &t;
    bool ok = fake_send(fd, h->type, h->id, FRAME_FLAG_REPLY, &m, data, count * 4);
    free(data);
    return ok;
}

static bool serve_echo(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    return fake_skip(s, fd, h->payload_len) && fake_answer(fd, h, n);
}

/* --- cases: order --- */

static bool serve_swapped(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    static struct frame_header first;
    (void)s;
    if (n == 0)
        first = *h;
    return n == 0 || (fake_answer(fd, h, 200) && fake_answer(fd, &first, 100));
}

/* Replies come in another order than the requests: each wait gets its own, once. */
START_TEST(test_out_of_order)
{
    struct fake_pair b = fake_begin(serve_swapped, NULL);
    struct fp8d_error err;
    uint64_t one = fake_ping(b.c);
    uint64_t two = fake_ping(b.c);
    ck_assert_uint_ne(one, two);
    ck_assert_uint_eq(fake_mark(b.c, one), 100);
    ck_assert_uint_eq(fake_mark(b.c, two), 200);
    ck_assert_int_eq(fp8d_wait(b.c, two, NULL, &err), FP8D_ENOT_FOUND);
    fake_end(b);
}
END_TEST

static bool serve_in_twos(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    static struct frame_header first;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    (void)s;
    if (n % 2 == 0) {
        first = *h;
        return true;
    }
    if (poll(&p, 1, 50) != 0) /* a third one before any reply: over the cap */
        return false;
    return fake_answer(fd, &first, n - 1) && fake_answer(fd, h, n);
}

/* With a cap of 2 in flight, further submits wait for replies and never pass the cap. */
START_TEST(test_in_flight_cap)
{
    struct fake *s = fake_start(fake_script_serve, (void *)serve_in_twos);
    struct fp8d_error err;
    struct fp8d *c;
    uint64_t ids[6];
    s->in_flight = 2;
    ck_assert_int_eq(fp8d_connect(s->path, NULL, &c, &err), 0);
    for (unsigned i = 0; i < 6; i++)
        ids[i] = fake_ping(c);
    for (unsigned i = 0; i < 6; i++)
        ck_assert_uint_eq(fake_mark(c, ids[i]), i);
    fake_end((struct fake_pair){s, c});
}
END_TEST

/* Results nobody fetches are limited; fetching or forgetting one makes room. */
START_TEST(test_pending_limit)
{
    struct fake_pair b = fake_begin(serve_echo, NULL);
    struct fp8d_error err;
    uint64_t first = fake_ping(b.c), id;
    for (unsigned i = 1; i < FP8D_PENDING_MAX; i++)
        id = fake_ping(b.c);
    ck_assert_int_eq(fp8d_submit_ping(b.c, NULL, &id, &err), FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_int_eq(fp8d_forget(b.c, first, &err), 0);
    ck_assert_int_eq(fp8d_forget(b.c, first, &err), FP8D_ENOT_FOUND);
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), FP8D_PENDING_MAX);
    fake_end(b);
}
END_TEST

static bool serve_late(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    (void)s;
    poll(NULL, 0, n == 0 ? 300 : 0);
    return fake_answer(fd, h, n);
}

/* A wait that times out leaves the request pending: it can be waited for again. */
START_TEST(test_wait_timeout)
{
    struct fp8d_options o = {.call_timeout_ms = 100};
    struct fake_pair b = fake_begin(serve_late, &o);
    struct fp8d_error err;
    uint64_t id = fake_ping(b.c);
    int rc;
    unsigned timeouts = 0;
    while ((rc = fp8d_wait(b.c, id, NULL, &err)) == -ETIMEDOUT)
        timeouts++;
    ck_assert_int_eq(rc, 0);
    ck_assert_uint_ge(timeouts, 2);
    fake_end(b);
}
END_TEST

/* Looking before it sleeps, a client waits as long, and as long as it may. */
START_TEST(test_wait_looks_first)
{
    static const uint32_t spin_us[] = {1, 1000, 1000000};
    struct fp8d_options o = {.spin_us = spin_us[_i]};
    struct fake_pair b = fake_begin(serve_late, &o);
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 0); /* after 300 ms */
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 1); /* at once */
    fake_end(b);
    o.call_timeout_ms = 100;
    b = fake_begin(serve_late, &o);
    struct fp8d_error err;
    ck_assert_int_eq(fp8d_ping(b.c, NULL, NULL, &err), -ETIMEDOUT);
    fake_end(b);
}
END_TEST

/* A blocking call that times out is forgotten: its late reply is dropped, the next call works. */
START_TEST(test_call_timeout_forgets)
{
    struct fp8d_options o = {.call_timeout_ms = 200};
    struct fake_pair b = fake_begin(serve_late, &o);
    struct fp8d_error err;
    ck_assert_int_eq(fp8d_ping(b.c, NULL, NULL, &err), -ETIMEDOUT);
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 1);
    fake_end(b);
}
END_TEST

/* --- cases: payload --- */

static bool serve_reply_first(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    if (n == 0)
        return answer_tensor(fd, h, BIG / 4, BIG / 4);
    return fake_skip(s, fd, h->payload_len) && fake_answer(fd, h, h->payload_len);
}

/* A server that sends all of a large reply before it reads the large request behind it: no
 * deadlock, and every byte arrives. */
START_TEST(test_no_deadlock)
{
    struct fake_pair b = fake_begin(serve_reply_first, NULL);
    struct fp8d_error err;
    struct fp8d_result *r;
    uint64_t get, put;
    char *data = calloc(1, BIG);
    struct fp8d_tensor t = {
        .dtype = FP8D_F32, .rank = 1, .dims = {BIG / 4}, .data = data, .size = BIG};
    ck_assert_int_eq(fp8d_submit_get_tensor(b.c, 5, NULL, NULL, &get, &err), 0);
    ck_assert_int_eq(fp8d_submit_put_tensor(b.c, 6, &t, NULL, &put, &err), 0);
    ck_assert_uint_eq(fake_mark(b.c, put), BIG);
    ck_assert_int_eq(fp8d_wait(b.c, get, &r, &err), 0);
    const struct fp8d_tensor *got = fp8d_result_tensor(r);
    ck_assert_uint_eq(got->size, BIG);
    for (size_t i = 0; i < BIG / 4; i++)
        if (((const float *)got->data)[i] != (float)(i % 1000))
            ck_abort_msg("element %zu differs", i);
    fp8d_result_free(r);
    free(data);
    fake_end(b);
}
END_TEST

static bool serve_tensor(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    (void)s;
    if (h->type != REQUEST_GET_TENSOR)
        return fake_answer(fd, h, n);
    return answer_tensor(fd, h, 100000, n == 3 ? 99999 : 100000);
}

/* Output goes straight into the caller's buffer; one too small is an error of that request alone,
 * and so is a tensor whose description disagrees with its bytes. */
START_TEST(test_buffer)
{
    struct fake_pair b = fake_begin(serve_tensor, NULL);
    struct fp8d_error err;
    struct fp8d_result *r;
    float *mine = malloc(400000);
    struct fp8d_buffer buffer = {mine, 400000}, small = {mine, 399999};
    ck_assert_int_eq(fp8d_get_tensor(b.c, 1, &buffer, NULL, &r, &err), 0);
    ck_assert_ptr_eq(fp8d_result_tensor(r)->data, mine);
    ck_assert_uint_eq(fp8d_result_tensor(r)->dims[1], 100000);
    ck_assert(mine[99999] == 999.0f);
    fp8d_result_free(r);
    ck_assert_int_eq(fp8d_get_tensor(b.c, 1, &small, NULL, &r, &err), FP8D_EOUT_OF_RANGE);
    ck_assert_ptr_nonnull(strstr(err.text, "400000"));
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 2);
    ck_assert_int_eq(fp8d_get_tensor(b.c, 1, NULL, NULL, &r, &err), FP8D_EPROTOCOL);
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 4);
    free(mine);
    fake_end(b);
}
END_TEST

static bool serve_half_tensor(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    static const char zeros[4000];
    (void)s;
    if (n == 0) {
        Fp8d__V1__GetTensorReply m = FP8D__V1__GET_TENSOR_REPLY__INIT;
        Fp8d__V1__TensorRef t = FP8D__V1__TENSOR_REF__INIT;
        Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
        uint64_t dim = 2000;
        unsigned char meta[64];
        place.length = 8000;
        t.dtype = FP8D__V1__DTYPE__DTYPE_F32;
        t.n_dims = 1;
        t.dims = &dim;
        t.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
        t.inline_bytes = &place;
        m.tensor = &t;
        size_t len = protobuf_c_message_pack(&m.base, meta);
        struct frame_header reply = {.type = h->type,
                                     .flags = FRAME_FLAG_REPLY,
                                     .id = h->id,
                                     .meta_len = (uint32_t)len,
                                     .payload_len = 8000};
        return fake_send_header(fd, reply) && fake_write(fd, meta, len) &&
               fake_write(fd, zeros, 4000);
    }
    return fake_write(fd, zeros, 4000) && fake_answer(fd, h, n);
}

/* A request forgotten while its payload arrives writes no more to the caller's buffer. */
START_TEST(test_forget_amid_payload)
{
    struct fp8d_options o = {.call_timeout_ms = 100};
    struct fake_pair b = fake_begin(serve_half_tensor, &o);
    struct fp8d_error err;
    char *mine = malloc(8000);
    struct fp8d_buffer buffer = {mine, 8000};
    ck_assert_int_eq(fp8d_get_tensor(b.c, 1, &buffer, NULL, NULL, &err), -ETIMEDOUT);
    free(mine);
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 1);
    fake_end(b);
}
END_TEST

/* --- cases: limits of a request --- */

/* What cannot be sent is refused here, with the number and the limit, and nothing goes out. */
START_TEST(test_request_limits)
{
    struct fake_pair b = fake_begin(serve_echo, NULL);
    struct fp8d_error err;
    uint64_t needs[17] = {0};
    struct fp8d_call call = {.needs = needs, .needs_count = 17};
    char *name = calloc(1, 70000);
    int fds[5] = {0};
    const char *names[5] = {"a", "b", "c", "d", "e"};
    struct fp8d_tensor t = {.dtype = FP8D_F32, .rank = 9};
    memset(name, 'n', 69999);
    ck_assert_int_eq(fp8d_ping(b.c, &call, NULL, &err), FP8D_EINVALID_ARGUMENT);
    ck_assert_int_eq(fp8d_describe_model(b.c, name, NULL, NULL, &err), FP8D_EINVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(err.text, "65536"));
    ck_assert_int_eq(fp8d_load_attach(b.c, 1, fds, names, 5, NULL, NULL, &err),
                     FP8D_EINVALID_ARGUMENT);
    ck_assert_int_eq(fp8d_put_tensor(b.c, 1, &t, NULL, NULL, &err), FP8D_EINVALID_ARGUMENT);
    t = (struct fp8d_tensor){.dtype = FP8D_F32, .rank = 1, .dims = {1}, .size = 4};
    ck_assert_int_eq(fp8d_put_tensor(b.c, 1, &t, NULL, NULL, &err), FP8D_EINVALID_ARGUMENT);
    t.data = name;
    t.size = FRAME_PAYLOAD_DEFAULT + 1;
    ck_assert_int_eq(fp8d_put_tensor(b.c, 1, &t, NULL, NULL, &err), FP8D_EINVALID_ARGUMENT);
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 0);
    free(name);
    fake_end(b);
}
END_TEST

/* --- cases: memory --- */

/* A list in two frames, a whole message each. */
static bool serve_lists(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    Fp8d__V1__ListModelsReply m = FP8D__V1__LIST_MODELS_REPLY__INIT;
    Fp8d__V1__ModelInfo info = FP8D__V1__MODEL_INFO__INIT, *list[100];
    unsigned flags = FRAME_FLAG_REPLY | FRAME_FLAG_MORE;
    (void)s, (void)n;
    info.name = (char *)"a-model";
    for (unsigned i = 0; i < 100; i++)
        list[i] = &info;
    m.models = list;
    m.n_models = 100;
    return fake_send(fd, h->type, h->id, flags, &m, NULL, 0) && fake_reply(fd, h, &m);
}

static int session(const char *path, struct fp8d_error *err)
{
    struct fp8d *c;
    int rc = fp8d_connect(path, NULL, &c, err);
    if (rc)
        return rc;
    struct fp8d_result *r = NULL;
    rc = fp8d_list_models(c, NULL, &r, err);
    fp8d_result_free(r);
    fp8d_close(c);
    return rc;
}

/* Let allocation 0, 1, 2 ... fail until none does: always -ENOMEM or a clean failure, never a leak.
 */
START_TEST(test_short_of_memory)
{
    struct fp8d_error err;
    bool fired = true;
    int failures = 0;
    for (int64_t n = 0; fired; n++) {
        struct fake *s = fake_start(fake_script_serve, (void *)serve_lists);
        int64_t before = mem_live_blocks();
        mem_fault_arm(n, false);
        int rc = session(s->path, &err);
        fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        failures += rc != 0;
        ck_assert(rc != 0 || !fired);
        ck_assert_int_eq(mem_live_blocks(), before);
        shutdown(s->listener, SHUT_RDWR);
        fake_stop(s);
    }
    ck_assert_int_ge(failures, 10);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_wire");
    TCase *t = tcase_create("wire");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, test_out_of_order);
    tcase_add_test(t, test_in_flight_cap);
    tcase_add_test(t, test_pending_limit);
    tcase_add_test(t, test_wait_timeout);
    tcase_add_loop_test(t, test_wait_looks_first, 0, 3);
    tcase_add_test(t, test_call_timeout_forgets);
    tcase_add_test(t, test_no_deadlock);
    tcase_add_test(t, test_buffer);
    tcase_add_test(t, test_forget_amid_payload);
    tcase_add_test(t, test_request_limits);
    tcase_add_test(t, test_short_of_memory);
    suite_add_tcase(s, t);
    return run_suite(s);
}
