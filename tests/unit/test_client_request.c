/* Requests as a server sees them: every field, the payload behind it, the files. */
#include "tests/unit/fake_keep.h"
#include "tests/unit/run.h"

/* --- cases --- */

/* Greeting: versions and names. */
static void script_hello(struct fake *s, int fd)
{
    struct frame_header h;
    if (!fake_recv(s, fd, &h))
        return;
    seen = (struct seen){.type = h.type, .meta_len = h.meta_len};
    memcpy(seen.meta, s->meta, h.meta_len);
    fake_fail(fd, &h, 12, "kept");
}

START_TEST(test_hello)
{
    struct fake *s = fake_start(script_hello, NULL);
    struct fp8d_options o = {.client_name = "me", .client_version = "4"};
    struct fp8d_error err;
    struct fp8d *c;
    KEPT(fp8d_connect(s->path, &o, &c, &err));
    ck_assert_uint_eq(seen.type, 1);
    Fp8d__V1__HelloRequest *m = SEEN(hello);
    ck_assert_uint_eq(m->schema_major, FP8D_VERSION_SCHEMA_MAJOR);
    ck_assert_uint_eq(m->schema_minor, FP8D_VERSION_SCHEMA_MINOR);
    ck_assert_uint_eq(FP8D_VERSION_SCHEMA_MAJOR, SCHEMA_MAJOR);
    ck_assert_uint_eq(FP8D_VERSION_SCHEMA_MINOR, SCHEMA_MINOR);
    ck_assert_str_eq(m->client_name, "me");
    ck_assert_str_eq(m->client_version, "4");
    FREE(hello, m);
    fake_stop(s);
}
END_TEST

/* Forward: names, modes, tensor with its factor, expectation, head. */
START_TEST(test_forward)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    static const unsigned char codes[6] = {1, 2, 3, 4, 5, 6};
    float factor = 0.25f;
    struct fp8d_forward q = {.model = "m",
                             .layer = "l/x",
                             .mode = FP8D_MODE_TRAIN,
                             .first_microbatch = FP8D_FIRST_NO,
                             .input = {.dtype = FP8D_F8_E4M3,
                                       .rank = 2,
                                       .dims = {2, 3},
                                       .data = codes,
                                       .size = 6,
                                       .granularity = FP8D_GRANULARITY_TENSOR,
                                       .scale_inv = &factor,
                                       .scale_inv_count = 1},
                             .output_dtype = FP8D_F16,
                             .output_id = 5,
                             .context_id = 6,
                             .expect = {10, 11},
                             .time_compute = true};
    KEPT(fp8d_forward(b.c, &q, &some_call, NULL, &err));
    Fp8d__V1__ForwardRequest *m = SEEN(forward);
    check_head(m->head);
    ck_assert_uint_eq(seen.type, 30);
    ck_assert_str_eq(m->model, "m");
    ck_assert_str_eq(m->layer, "l/x");
    ck_assert_int_eq(m->mode, FP8D__V1__MODE__MODE_TRAIN);
    ck_assert_int_eq(m->first_microbatch, FP8D__V1__FIRST_MICROBATCH__FIRST_MICROBATCH_NO);
    ck_assert_int_eq(m->input->dtype, FP8D__V1__DTYPE__DTYPE_F8_E4M3);
    ck_assert_uint_eq(m->input->n_dims, 2);
    ck_assert_uint_eq(m->input->dims[1], 3);
    ck_assert_uint_eq(m->input->inline_bytes->length, 6);
    ck_assert(m->input->n_scale_inv == 1 && m->input->scale_inv[0] == 0.25f);
    ck_assert_int_eq(m->output_dtype, FP8D__V1__DTYPE__DTYPE_F16);
    ck_assert_uint_eq(m->output_id, 5);
    ck_assert_uint_eq(m->context_id, 6);
    ck_assert_uint_eq(m->expect->incarnation, 10);
    ck_assert_uint_eq(m->expect->weight_version, 11);
    ck_assert(m->time_compute);
    ck_assert_uint_eq(seen.payload_len, 6);
    ck_assert_mem_eq(seen.payload, codes, 6);
    FREE(forward, m);
    fake_end(b);
}
END_TEST

/* Two tensors share the payload end to end; a resident one has no bytes. */
START_TEST(test_edit_weight)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    struct fp8d_tensor bias = {
        .dtype = FP8D_F32, .rank = 1, .dims = {1}, .data = "bias", .size = 4};
    struct fp8d_edit_weight e = {
        .model = "m",
        .layer = "l",
        .bias = &bias,
        .weight = {.dtype = FP8D_BF16, .rank = 2, .dims = {1, 3}, .data = "weight", .size = 6}};
    KEPT(fp8d_edit_weight(b.c, &e, NULL, NULL, &err));
    Fp8d__V1__EditWeightRequest *m = SEEN(edit_weight);
    ck_assert_uint_eq(m->weight->inline_bytes->offset, 0);
    ck_assert_uint_eq(m->weight->inline_bytes->length, 6);
    ck_assert_uint_eq(m->bias->inline_bytes->offset, 6);
    ck_assert_uint_eq(m->bias->inline_bytes->length, 4);
    ck_assert_ptr_null(m->expect);
    ck_assert_mem_eq(seen.payload, "weightbias", 10);
    FREE(edit_weight, m);
    e.weight = (struct fp8d_tensor){.tensor_id = 12, .data = "ignored", .size = 7};
    KEPT(fp8d_edit_weight(b.c, &e, NULL, NULL, &err));
    m = SEEN(edit_weight);
    ck_assert_uint_eq(m->weight->tensor_id, 12);
    ck_assert_uint_eq(m->bias->inline_bytes->offset, 0);
    ck_assert_uint_eq(seen.payload_len, 4);
    FREE(edit_weight, m);
    fake_end(b);
}
END_TEST

/* A load: options, then the very file that was opened. */
START_TEST(test_load)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    const char *globs[2] = {"a*", "b?"};
    struct fp8d_load_options o = {
        .recipe = {FP8D_RECIPE_CURRENT, FP8D_FORMAT_E4M3, FP8D_AMAX_MOST_RECENT, 9, 4, true,
                   FP8D_ACCUMULATION_PRECISE},
        .no_strict = true,
        .only = globs,
        .only_count = 1,
        .skip = globs,
        .skip_count = 2};
    struct fp8d_load_begin begin = {.load_id = 3, .model = "m", .options = &o};
    KEPT(fp8d_load_begin(b.c, &begin, NULL, NULL, &err));
    Fp8d__V1__LoadBeginRequest *m = SEEN(load_begin);
    ck_assert_uint_eq(m->load_id, 3);
    ck_assert_int_eq(m->source, FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_DESCRIPTORS);
    ck_assert_int_eq(m->options->recipe->kind, FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT);
    ck_assert_int_eq(m->options->recipe->fp8_format, FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3);
    ck_assert_int_eq(m->options->recipe->amax_algo, FP8D__V1__AMAX_ALGO__AMAX_ALGO_MOST_RECENT);
    ck_assert_uint_eq(m->options->recipe->amax_history_len, 9);
    ck_assert_uint_eq(m->options->recipe->margin, 4);
    ck_assert_int_eq(m->options->recipe->fprop_accumulation,
                     FP8D__V1__FPROP_ACCUMULATION__FPROP_ACCUMULATION_PRECISE);
    ck_assert(m->options->no_strict && m->options->n_only == 1 && m->options->n_skip == 2);
    ck_assert_str_eq(m->options->skip[1], "b?");
    FREE(load_begin, m);
    char file[] = "/tmp/fp8d-load-XXXXXX";
    struct stat st;
    int fd = mkstemp(file);
    const char *name = "x.safetensors";
    ck_assert_int_eq(fstat(fd, &st), 0);
    KEPT(fp8d_load_attach(b.c, 3, &fd, &name, 1, NULL, NULL, &err));
    Fp8d__V1__LoadAttachRequest *a = SEEN(load_attach);
    ck_assert_uint_eq(seen.files, 1);
    ck_assert_uint_eq(seen.file.st_ino, st.st_ino);
    ck_assert(a->n_names == 1 && !strcmp(a->names[0], name));
    FREE(load_attach, a);
    close(fd);
    unlink(file);
    fake_end(b);
}
END_TEST

/* A load that fails says why its first request failed, not that the others needed it. */
static bool serve_load_fails(struct fake *s, int fd, unsigned n, const struct frame_header *h)
{
    for (unsigned i = 0; i < s->nfds; i++)
        close(s->fds[i]);
    if (h->type == REQUEST_LOAD_BEGIN)
        return fake_fail(fd, h, 3, "the first cause");
    return h->type == REQUEST_PING ? fake_answer(fd, h, n) : fake_fail(fd, h, 10, "needs");
}

START_TEST(test_load_first_cause)
{
    struct fake_pair b = fake_begin(serve_load_fails, NULL);
    struct fp8d_error err;
    ck_assert_int_eq(fp8d_load_file(b.c, "m", "/proc/self/exe", NULL, NULL, NULL, NULL, &err),
                     FP8D_EINVALID_ARGUMENT);
    ck_assert_str_eq(err.text, "the first cause");
    ck_assert_uint_eq(fake_mark(b.c, fake_ping(b.c)), 3);
    fake_end(b);
}
END_TEST

/* What remains: small requests with a field or two. */
START_TEST(test_small_requests)
{
    struct fake_pair b = fake_begin(serve_keep, NULL);
    struct fp8d_error err;
    KEPT(fp8d_query_scaling(b.c, "m", NULL, true, NULL, NULL, &err));
    Fp8d__V1__QueryScalingRequest *q = SEEN(query_scaling);
    ck_assert(!strcmp(q->model, "m") && !*q->layer && q->history);
    FREE(query_scaling, q);
    KEPT(fp8d_cancel(b.c, 44, NULL, NULL, &err));
    Fp8d__V1__CancelRequest *k = SEEN(cancel);
    ck_assert_uint_eq(k->id, 44);
    FREE(cancel, k);
    KEPT(fp8d_begin_scope(b.c, 2, "m", NULL, NULL, NULL, &err));
    Fp8d__V1__BeginScopeRequest *s = SEEN(begin_scope);
    ck_assert(s->scope_id == 2 && !strcmp(s->model, "m"));
    FREE(begin_scope, s);
    KEPT(fp8d_end_scope(b.c, 2, true, NULL, NULL, &err));
    Fp8d__V1__EndScopeRequest *e = SEEN(end_scope);
    ck_assert(e->scope_id == 2 && e->discard);
    FREE(end_scope, e);
    KEPT(fp8d_finish_calibration(b.c, "m", FP8D_CALIBRATION_ABORT, NULL, NULL, NULL, &err));
    Fp8d__V1__FinishCalibrationRequest *f = SEEN(finish_calibration);
    ck_assert_int_eq(f->action, FP8D__V1__CALIBRATION_ACTION__CALIBRATION_ACTION_ABORT);
    FREE(finish_calibration, f);
    fake_end(b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_request");
    TCase *t = tcase_create("request");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, test_hello);
    tcase_add_test(t, test_forward);
    tcase_add_test(t, test_edit_weight);
    tcase_add_test(t, test_load);
    tcase_add_test(t, test_load_first_cause);
    tcase_add_test(t, test_small_requests);
    suite_add_tcase(s, t);
    return run_suite(s);
}
