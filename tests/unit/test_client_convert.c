/* Replies of the wire become the structs of fp8d.h: every field its own. */
#include "client/convert.h"

#include "tests/unit/run.h"

#include <stdlib.h>
#include <string.h>

/* --- helpers --- */

/* Parse message m as a reply to `type` with `payload` bytes behind it. */
static int parse(uint16_t type, const void *m, uint64_t payload, struct fp8d_result **out,
                 struct fault *f)
{
    size_t len = protobuf_c_message_get_packed_size(m);
    unsigned char *meta = malloc(len + 1);
    protobuf_c_message_pack(m, meta);
    *f = (struct fault){0};
    *out = NULL;
    int rc = result_parse(type, meta, len, payload, out, f);
    free(meta);
    return rc;
}

static struct fp8d_result *good(uint16_t type, const void *m)
{
    struct fp8d_result *r;
    struct fault f;
    ck_assert_msg(parse(type, m, 0, &r, &f) == 0, "%s", f.text);
    return r;
}

static Fp8d__V1__Recipe some_recipe(void)
{
    Fp8d__V1__Recipe m = FP8D__V1__RECIPE__INIT;
    m.kind = FP8D__V1__RECIPE_KIND__RECIPE_KIND_CURRENT;
    m.fp8_format = FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3;
    m.amax_algo = FP8D__V1__AMAX_ALGO__AMAX_ALGO_MOST_RECENT;
    m.amax_history_len = 17;
    m.margin = 3;
    m.fprop_accumulation = FP8D__V1__FPROP_ACCUMULATION__FPROP_ACCUMULATION_PRECISE;
    return m;
}

static void check_recipe(const struct fp8d_recipe *r)
{
    ck_assert(r->kind == FP8D_RECIPE_CURRENT && r->format == FP8D_FORMAT_E4M3);
    ck_assert(r->amax_algo == FP8D_AMAX_MOST_RECENT && r->amax_history_len == 17);
    ck_assert(r->margin == 3 && r->margin_set);
    ck_assert_int_eq(r->fprop_accumulation, FP8D_ACCUMULATION_PRECISE);
}

static Fp8d__V1__CastInfo some_cast(float base)
{
    Fp8d__V1__CastInfo m = FP8D__V1__CAST_INFO__INIT;
    m.fp8_dtype = FP8D__V1__DTYPE__DTYPE_F8_E5M2;
    m.scale = base + 1;
    m.scale_inv = base + 2;
    m.amax = base + 3;
    m.saturated = 4;
    m.flushed = 5;
    m.nonfinite = 6;
    m.uncalibrated = true;
    return m;
}

static void check_cast(const struct fp8d_cast *c, float base)
{
    ck_assert_int_eq(c->dtype, FP8D_F8_E5M2);
    ck_assert(c->scale == base + 1 && c->scale_inv == base + 2 && c->amax == base + 3);
    ck_assert(c->saturated == 4 && c->flushed == 5 && c->nonfinite == 6 && c->uncalibrated);
}

/* --- cases: fields --- */

/* The head of every reply. */
START_TEST(test_head)
{
    Fp8d__V1__PingReply m = FP8D__V1__PING_REPLY__INIT;
    Fp8d__V1__ReplyHead head = FP8D__V1__REPLY_HEAD__INIT;
    head.incarnation = 1;
    head.weight_version = 2;
    head.queue_us = 3;
    head.run_us = 4;
    m.head = &head;
    struct fp8d_result *r = good(REQUEST_PING, &m);
    const struct fp8d_reply *reply = fp8d_result_reply(r);
    ck_assert(reply->incarnation == 1 && reply->weight_version == 2);
    ck_assert(reply->queue_us == 3 && reply->run_us == 4);
    fp8d_result_free(r);
}
END_TEST

/* Status: each number is its own. */
START_TEST(test_status)
{
    Fp8d__V1__StatusReply m = FP8D__V1__STATUS_REPLY__INIT;
    m.server_version = (char *)"1.2.3";
    m.instance_id = UINT64_MAX;
    m.pid = 11;
    m.uptime_ms = 12;
    m.backend = (char *)"cpu";
    m.device = (char *)"dev";
    m.backend_reason = (char *)"why";
    m.plans = (char *)"timed";
    m.memory_used = 13;
    m.memory_limit = 14;
    m.memory_peak = 15;
    m.connections = 16;
    m.models = 17;
    m.queued = 18;
    m.running = 19;
    m.requests_done = 20;
    m.forwards_done = 21;
    m.progress_age_ms = 22;
    m.contexts = 23;
    m.scopes = 24;
    m.device_memory_used = 25;
    m.device_memory_total = 26;
    m.parameters = 27;
    m.model_bytes = 28;
    m.draining = true;
    struct fp8d_result *r = good(REQUEST_STATUS, &m);
    const struct fp8d_status *s = fp8d_result_status(r);
    ck_assert_str_eq(s->server_version, "1.2.3");
    ck_assert_uint_eq(s->instance_id, UINT64_MAX);
    ck_assert(!strcmp(s->backend, "cpu") && !strcmp(s->device, "dev"));
    ck_assert_str_eq(s->backend_reason, "why");
    ck_assert_str_eq(s->plans, "timed");
    uint64_t got[] = {s->pid,         s->uptime_ms,     s->memory_used,   s->memory_limit,
                      s->memory_peak, s->connections,   s->models,        s->queued,
                      s->running,     s->requests_done, s->forwards_done, s->progress_age_ms,
                      s->contexts,    s->scopes,        s->device_memory_used, s->device_memory_total,
                      s->parameters,  s->model_bytes};
    for (uint64_t i = 0; i < 18; i++)
        ck_assert_uint_eq(got[i], 11 + i);
    ck_assert(s->draining);
    ck_assert_ptr_null(fp8d_result_models(r));
    fp8d_result_free(r);
}
END_TEST

/* Models and layers. */
START_TEST(test_description)
{
    Fp8d__V1__DescribeModelReply m = FP8D__V1__DESCRIBE_MODEL_REPLY__INIT;
    Fp8d__V1__ModelInfo info = FP8D__V1__MODEL_INFO__INIT;
    Fp8d__V1__LayerInfo layer = FP8D__V1__LAYER_INFO__INIT, *layers[1] = {&layer};
    Fp8d__V1__Recipe recipe = some_recipe();
    info.name = (char *)"m";
    info.incarnation = 1;
    info.weight_version = 2;
    info.layers = 3;
    info.parameters = 4;
    info.bytes = 5;
    info.recipe = &recipe;
    info.creator_uid = 6;
    info.scope_open = true;
    info.contexts = 7;
    layer.name = (char *)"l";
    layer.kind = (char *)"linear";
    layer.in_features = 8;
    layer.out_features = 9;
    layer.weight_dtype = FP8D__V1__DTYPE__DTYPE_BF16;
    layer.bias_dtype = FP8D__V1__DTYPE__DTYPE_F32;
    layer.weight_version = 10;
    layer.cached_version = 11;
    layer.bytes = 12;
    layer.weight_scale_inv = 0.125f;
    m.model = &info;
    m.layers = layers;
    m.n_layers = 1;
    struct fp8d_result *r = good(REQUEST_DESCRIBE_MODEL, &m);
    const struct fp8d_description *d = fp8d_result_description(r);
    const struct fp8d_layer *l = &d->layers[0];
    uint64_t got[] = {d->model.incarnation, d->model.weight_version, d->model.layers,
                      d->model.parameters,  d->model.bytes,          d->model.creator_uid,
                      d->model.contexts,    l->in_features,          l->out_features,
                      l->weight_version,    l->cached_version,       l->bytes};
    for (uint64_t i = 0; i < 12; i++)
        ck_assert_uint_eq(got[i], 1 + i);
    ck_assert(d->model.scope_open && !d->model.calibrating);
    check_recipe(&d->model.recipe);
    ck_assert_str_eq(l->name, "l");
    ck_assert_str_eq(l->kind, "linear");
    ck_assert_int_eq(l->weight_dtype, FP8D_BF16);
    ck_assert_int_eq(l->bias_dtype, FP8D_F32);
    ck_assert(l->weight_scale_inv == 0.125f);
    fp8d_result_free(r);
}
END_TEST

/* Scaling state, history included. */
START_TEST(test_scaling)
{
    Fp8d__V1__QueryScalingReply m = FP8D__V1__QUERY_SCALING_REPLY__INIT;
    Fp8d__V1__LayerScaling layer = FP8D__V1__LAYER_SCALING__INIT, *layers[1] = {&layer};
    Fp8d__V1__SiteState site = FP8D__V1__SITE_STATE__INIT, *sites[1] = {&site};
    float history[3] = {9, 8, 7};
    site.name = (char *)"input";
    site.fp8_dtype = FP8D__V1__DTYPE__DTYPE_F8_E4M3;
    site.set = true;
    site.scale = 1;
    site.scale_inv = 2;
    site.scale_inv_in_use = 3;
    site.amax_last = 4;
    site.collecting = 5;
    site.calibration_amax = 6;
    site.updates = 7;
    site.skipped_updates = 8;
    site.saturated = 9;
    site.flushed = 10;
    site.nonfinite = 11;
    site.uncalibrated_casts = 12;
    site.history = history;
    site.n_history = 3;
    layer.weight_version = 13;
    layer.cached_version = 14;
    layer.sites = sites;
    layer.n_sites = 1;
    m.frozen = true;
    m.layers = layers;
    m.n_layers = 1;
    struct fp8d_result *r = good(REQUEST_QUERY_SCALING, &m);
    const struct fp8d_scaling *s = fp8d_result_scaling(r);
    const struct fp8d_site *t = &s->layers[0].sites[0];
    float floats[] = {t->scale,     t->scale_inv,  t->scale_inv_in_use,
                      t->amax_last, t->collecting, t->calibration_amax};
    uint64_t counts[] = {t->updates,
                         t->skipped_updates,
                         t->saturated,
                         t->flushed,
                         t->nonfinite,
                         t->uncalibrated_casts,
                         s->layers[0].weight_version,
                         s->layers[0].cached_version};
    for (int i = 0; i < 6; i++)
        ck_assert(floats[i] == (float)(1 + i));
    for (uint64_t i = 0; i < 8; i++)
        ck_assert_uint_eq(counts[i], 7 + i);
    ck_assert(s->frozen && !s->calibrating && !s->scope_open && t->set);
    ck_assert_uint_eq(t->history_count, 3);
    ck_assert(t->history[0] == 9 && t->history[2] == 7);
    fp8d_result_free(r);
}
END_TEST

/* Forward with a resident output: both casts, the copy, the flag. */
START_TEST(test_forward)
{
    Fp8d__V1__ForwardReply m = FP8D__V1__FORWARD_REPLY__INIT;
    Fp8d__V1__TensorRef t = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__CastInfo input = some_cast(100), weight = some_cast(200);
    uint64_t dims[2] = {3, 5};
    t.dtype = FP8D__V1__DTYPE__DTYPE_F16, t.dims = dims, t.n_dims = 2;
    t.place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
    t.tensor_id = 77;
    m.output = &t;
    m.input = &input;
    m.weight = &weight;
    m.weight_copy = FP8D__V1__WEIGHT_COPY__WEIGHT_COPY_RECAST;
    m.scales_applied = true;
    m.compute_ns = 1ull << 40;
    struct fp8d_result *r = good(REQUEST_FORWARD, &m);
    const struct fp8d_forward_result *y = fp8d_result_forward(r);
    ck_assert(y->has_input && y->has_weight && y->scales_applied);
    ck_assert_uint_eq(y->compute_ns, 1ull << 40);
    check_cast(&y->input, 100);
    check_cast(&y->weight, 200);
    ck_assert_int_eq(y->weight_copy, FP8D_WEIGHT_RECAST);
    ck_assert_uint_eq(y->output.tensor_id, 77);
    ck_assert_uint_eq(y->output.size, 30);
    ck_assert_uint_eq(y->output.dims[1], 5);
    fp8d_result_free(r);
}
END_TEST

/* Check, scope end, calibration, cancel. */
START_TEST(test_small_replies)
{
    Fp8d__V1__CheckNumericsReply check = FP8D__V1__CHECK_NUMERICS_REPLY__INIT;
    Fp8d__V1__EndScopeReply scope = FP8D__V1__END_SCOPE_REPLY__INIT;
    Fp8d__V1__FinishCalibrationReply calibration = FP8D__V1__FINISH_CALIBRATION_REPLY__INIT;
    Fp8d__V1__CancelReply cancel = FP8D__V1__CANCEL_REPLY__INIT;
    check.max_abs_error = 1;
    check.max_abs_reference = 2;
    check.relative_error = 3;
    check.input_elements = 4;
    check.weight_elements = 5;
    check.nonfinite_outputs = 6;
    struct fp8d_result *r = good(REQUEST_CHECK_NUMERICS, &check);
    const struct fp8d_check *k = fp8d_result_check(r);
    ck_assert(k->max_abs_error == 1 && k->max_abs_reference == 2 && k->relative_error == 3);
    ck_assert(k->input_elements == 4 && k->weight_elements == 5 && k->nonfinite_outputs == 6);
    ck_assert(!k->has_input && !k->has_weight);
    fp8d_result_free(r);
    scope.sites_updated = 7;
    scope.sites_skipped = 8;
    r = good(REQUEST_END_SCOPE, &scope);
    ck_assert_uint_eq(fp8d_result_scope_end(r)->sites_updated, 7);
    ck_assert_uint_eq(fp8d_result_scope_end(r)->sites_skipped, 8);
    fp8d_result_free(r);
    calibration.sites_set = 9;
    calibration.sites_unset = 10;
    r = good(REQUEST_FINISH_CALIBRATION, &calibration);
    ck_assert_uint_eq(fp8d_result_calibration(r)->sites_set, 9);
    ck_assert_uint_eq(fp8d_result_calibration(r)->sites_unset, 10);
    fp8d_result_free(r);
    cancel.outcome = FP8D__V1__CANCEL_OUTCOME__CANCEL_OUTCOME_RUNNING;
    r = good(REQUEST_CANCEL, &cancel);
    ck_assert_int_eq(fp8d_result_cancel(r), FP8D_CANCEL_RUNNING);
    fp8d_result_free(r);
}
END_TEST

/* The report of a load: each list and each number its own. */
START_TEST(test_load)
{
    Fp8d__V1__LoadCommitReply m = FP8D__V1__LOAD_COMMIT_REPLY__INIT;
    Fp8d__V1__LoadReport from = FP8D__V1__LOAD_REPORT__INIT;
    char *texts[] = {(char *)"a", (char *)"b", (char *)"c", (char *)"d"};
    from.layers = 1;
    from.parameters = 2;
    from.bytes_read = 3;
    from.read_us = 4;
    from.ignored_count = 5;
    from.nan_codes = 6;
    from.loaded = &texts[0], from.n_loaded = 1;
    from.ignored = &texts[1], from.n_ignored = 1;
    from.notes = &texts[2], from.n_notes = 1;
    from.converted = &texts[2], from.n_converted = 2;
    m.report = &from;
    struct fp8d_result *r = good(REQUEST_LOAD_COMMIT, &m);
    const struct fp8d_load_report *s = fp8d_result_load(r);
    ck_assert(s->layers == 1 && s->parameters == 2 && s->bytes_read == 3 && s->read_us == 4);
    ck_assert(s->ignored_total == 5 && s->nan_codes == 6 && s->converted_count == 2);
    ck_assert(s->loaded_count == 1 && s->ignored_count == 1 && s->notes_count == 1);
    const char *got[] = {s->loaded[0], s->ignored[0], s->notes[0], s->converted[1]};
    for (int i = 0; i < 4; i++)
        ck_assert_str_eq(got[i], texts[i]);
    fp8d_result_free(r);
}
END_TEST

/* Saves, scaling, recipe, created models; a report or recipe that is missing is no good reply. */
START_TEST(test_state_replies)
{
    Fp8d__V1__SaveCommitReply save = FP8D__V1__SAVE_COMMIT_REPLY__INIT;
    Fp8d__V1__SaveReport report = FP8D__V1__SAVE_REPORT__INIT;
    Fp8d__V1__SetScalingReply scaling = FP8D__V1__SET_SCALING_REPLY__INIT;
    Fp8d__V1__SetRecipeReply set = FP8D__V1__SET_RECIPE_REPLY__INIT;
    Fp8d__V1__CreateModelReply create = FP8D__V1__CREATE_MODEL_REPLY__INIT;
    Fp8d__V1__Recipe recipe = some_recipe();
    char *note = (char *)"n";
    struct fault f;
    struct fp8d_result *r;
    ck_assert_int_eq(parse(REQUEST_SAVE_COMMIT, &save, 0, &r, &f), FP8D_EPROTOCOL);
    ck_assert_int_eq(parse(REQUEST_SET_RECIPE, &set, 0, &r, &f), FP8D_EPROTOCOL);
    report.bytes_written = 1;
    report.write_us = 2;
    report.tensors = 3;
    save.report = &report;
    r = good(REQUEST_SAVE_COMMIT, &save);
    const struct fp8d_save_report *s = fp8d_result_save(r);
    ck_assert(s->bytes_written == 1 && s->write_us == 2 && s->tensors == 3);
    fp8d_result_free(r);
    scaling.sites = 4;
    r = good(REQUEST_SET_SCALING, &scaling);
    ck_assert_uint_eq(fp8d_result_scaling_set(r)->sites, 4);
    fp8d_result_free(r);
    set.recipe = &recipe;
    set.notes = &note, set.n_notes = 1;
    r = good(REQUEST_SET_RECIPE, &set);
    check_recipe(&fp8d_result_recipe_set(r)->recipe);
    ck_assert_str_eq(fp8d_result_recipe_set(r)->notes[0], "n");
    fp8d_result_free(r);
    create.layers = 5;
    create.parameters = 6;
    r = good(REQUEST_CREATE_MODEL, &create);
    ck_assert(fp8d_result_created(r)->layers == 5 && fp8d_result_created(r)->parameters == 6);
    fp8d_result_free(r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("client_convert");
    TCase *t = tcase_create("convert");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, test_head);
    tcase_add_test(t, test_status);
    tcase_add_test(t, test_description);
    tcase_add_test(t, test_scaling);
    tcase_add_test(t, test_forward);
    tcase_add_test(t, test_small_replies);
    tcase_add_test(t, test_load);
    tcase_add_test(t, test_state_replies);
    suite_add_tcase(s, t);
    return run_suite(s);
}
