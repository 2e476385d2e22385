/* LoadBegin, LoadAttach, LoadCommit. */
#include "daemon/engine/load.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"

#include <string.h>

#define GLOBS_MAX 256
#define REPORT_BYTES ((size_t)700 << 10) /* of lines in a report: a meta is at most 1 MiB */

static int check_globs(char *const *globs, size_t n, const char *field, struct fault *f)
{
    if (n > GLOBS_MAX)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s has %zu globs, at most %d", field, n,
                         GLOBS_MAX);
    for (size_t i = 0; i < n; i++)
        if (!globs[i][0] || strlen(globs[i]) > 1024)
            return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s[%zu] has %zu bytes, needed 1 to 1024",
                             field, i, strlen(globs[i]));
    return 0;
}

static int check_conversion(const Fp8d__V1__LoadOptions *w, struct fault *f)
{
    enum dtype d = (enum dtype)w->dequantize;
    if (d != DTYPE_NONE && d != DTYPE_F32 && d != DTYPE_BF16)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "options.dequantize is %s, needed F32 or BF16",
                         dtype_name(d));
    if (d != DTYPE_NONE && w->primary_fp8)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "options.primary_fp8 and options.dequantize are both set, needed one");
    return 0;
}

static int take_options(const Fp8d__V1__LoadBeginRequest *in, struct load_options *o,
                        struct fault *f)
{
    const Fp8d__V1__LoadOptions *w = in->options;
    memset(o, 0, sizeof *o);
    int rc = reply_check_model_name(in->model, "model", f);
    if (!rc)
        rc = reply_recipe_in(w ? w->recipe : NULL, &o->recipe, f);
    if (!rc && w)
        rc = check_globs(w->only, w->n_only, "options.only", f);
    if (!rc && w)
        rc = check_globs(w->skip, w->n_skip, "options.skip", f);
    bool path = in->source == FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_SERVER_PATH;
    if (!rc)
        rc = reply_check_server_path(in->server_path, path, "source", f);
    if (!rc && w)
        rc = check_conversion(w, f);
    if (rc)
        return rc;
    memcpy(o->model, in->model, strlen(in->model) + 1);
    o->server_path = path ? in->server_path : NULL;
    if (w) {
        o->no_strict = w->no_strict;
        o->primary_fp8 = w->primary_fp8;
        o->dequantize = (enum dtype)w->dequantize;
        o->allow_nan = w->allow_nan;
        o->finish_calibration = w->finish_calibration;
        o->no_optimizer = w->no_optimizer;
        o->only = w->only;
        o->only_count = w->n_only;
        o->skip = w->skip;
        o->skip_count = w->n_skip;
    }
    if (in->expect)
        o->expect = (struct expect){in->expect->incarnation, in->expect->weight_version};
    return 0;
}

void rpc_load_begin(struct request *rq)
{
    const Fp8d__V1__LoadBeginRequest *in =
        (const Fp8d__V1__LoadBeginRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct load_options o;
    if (take_options(in, &o, &f) || load_begin(&rq->session->lease, in->load_id, &o, &f)) {
        request_fail(rq, &f);
        return;
    }
    Fp8d__V1__LoadBeginReply m = FP8D__V1__LOAD_BEGIN_REPLY__INIT;
    request_answer(rq, &m.base, NULL, 0);
}

void rpc_load_attach(struct request *rq)
{
    const Fp8d__V1__LoadAttachRequest *in =
        (const Fp8d__V1__LoadAttachRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct load *ld;
    int rc = reply_check_names(rq, in->names, in->n_names, &f);
    if (!rc)
        rc = load_find(&rq->session->lease, in->load_id, &ld, &f);
    if (!rc && in->n_names > 1)
        rc = fault_set(&f, FP8D_EUNIMPLEMENTED,
                       "names has %zu entries; checkpoints of several files are not supported yet",
                       in->n_names);
    if (!rc)
        rc = load_attach(ld, in->names[0], rq->fds[0], &f);
    if (!rc)
        rq->fds[0] = -1; /* the load's now */
    if (rc) {
        request_fail(rq, &f);
        return;
    }
    Fp8d__V1__LoadAttachReply m = FP8D__V1__LOAD_ATTACH_REPLY__INIT;
    request_answer(rq, &m.base, NULL, 0);
}

/* --- commit --- */

static void on_progress(void *arg, const struct load_progress *p)
{
    struct request *rq = arg;
    Fp8d__V1__LoadCommitReply m = FP8D__V1__LOAD_COMMIT_REPLY__INIT;
    Fp8d__V1__LoadProgress out = FP8D__V1__LOAD_PROGRESS__INIT;
    out.bytes_done = p->bytes_done;
    out.bytes_total = p->bytes_total;
    out.tensors_done = p->tensors_done;
    out.tensors_total = p->tensors_total;
    out.stage = (char *)(uintptr_t)p->stage;
    m.progress = &out;
    (void)request_progress(rq, &m.base);
}

/* As many lines as fit the report. */
static size_t fitting(const char *const *lines, size_t n, size_t *room)
{
    size_t i = 0;
    for (; lines && i < n; i++) {
        size_t need = strlen(lines[i]) + 8;
        if (need > *room)
            break;
        *room -= need;
    }
    return i;
}

static void answer_report(struct request *rq, const struct load_report *r, const char **names)
{
    const struct claim *c = r->claim;
    size_t room = REPORT_BYTES;
    Fp8d__V1__LoadCommitReply m = FP8D__V1__LOAD_COMMIT_REPLY__INIT;
    Fp8d__V1__LoadReport out = FP8D__V1__LOAD_REPORT__INIT;
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    reply_recipe_out(&r->recipe, &recipe);
    out.recipe = &recipe;
    out.layers = (uint32_t)c->layer_count;
    out.parameters = r->parameters;
    out.bytes_read = r->bytes_read;
    out.read_us = r->read_us;
    out.n_notes = fitting(c->notes.line, c->notes.count, &room);
    out.notes = (char **)(uintptr_t)c->notes.line;
    out.n_loaded =
        fitting(names, c->layer_count < CLAIM_LINES_MAX ? c->layer_count : CLAIM_LINES_MAX, &room);
    out.loaded = (char **)(uintptr_t)names;
    out.n_converted = fitting(r->converted->line, r->converted->count, &room);
    out.converted = (char **)(uintptr_t)r->converted->line;
    out.nan_codes = r->nan_codes;
    out.n_ignored = fitting(c->ignored.line, c->ignored.count, &room);
    out.ignored = (char **)(uintptr_t)c->ignored.line;
    out.ignored_count = (uint32_t)(c->ignored.count + c->ignored.dropped);
    m.report = &out;
    request_stamp(rq, r->incarnation, r->weight_version);
    request_answer(rq, &m.base, NULL, 0);
}

static void on_done(void *arg, const struct fault *f, const struct load_report *r)
{
    struct request *rq = arg;
    rq->load = NULL;
    if (f->code) {
        request_fail(rq, f);
        return;
    }
    const char **names = mem_array(r->claim->layer_count + 1, sizeof *names);
    struct load_report shorter = *r;
    struct claim none = {0};
    if (names)
        for (size_t i = 0; i < r->claim->layer_count; i++)
            names[i] = r->claim->layers[i].name;
    else
        shorter.claim = &none; /* the load stands, though its report cannot be told */
    answer_report(rq, &shorter, names);
    mem_free(names);
}

/* Once the swap is done there must be an answer that says so. */
static int prepare(struct request *rq, struct fault *f)
{
    Fp8d__V1__LoadCommitReply m = FP8D__V1__LOAD_COMMIT_REPLY__INIT;
    Fp8d__V1__LoadReport report = FP8D__V1__LOAD_REPORT__INIT;
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    char *note = (char *)(uintptr_t) "the model is loaded; memory was short for the report";
    report.recipe = &recipe;
    report.n_notes = 1;
    report.notes = &note;
    m.report = &report;
    return request_prepare(rq, &m.base, f);
}

void rpc_load_commit(struct request *rq)
{
    const Fp8d__V1__LoadCommitRequest *in =
        (const Fp8d__V1__LoadCommitRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct load *ld;
    int rc = load_find(&rq->session->lease, in->load_id, &ld, &f);
    if (!rc)
        rc = prepare(rq, &f);
    if (!rc) {
        rq->load = ld;
        rc = load_commit(ld, in->progress ? on_progress : NULL, on_done, rq, &f);
    }
    if (rc) {
        rq->load = NULL;
        request_fail(rq, &f);
    }
}
