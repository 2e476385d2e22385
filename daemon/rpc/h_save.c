/* SaveBegin, SaveAttach, SaveCommit. */
#include "daemon/engine/save.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"

#include <string.h>

void rpc_save_begin(struct request *rq)
{
    const Fp8d__V1__SaveBeginRequest *in =
        (const Fp8d__V1__SaveBeginRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct save_options o = {0};
    bool path = in->target == FP8D__V1__LOAD_SOURCE__LOAD_SOURCE_SERVER_PATH;
    int rc = reply_check_model_name(in->model, "model", &f);
    if (!rc)
        rc = reply_check_server_path(in->server_path, path, "target", &f);
    if (!rc) {
        memcpy(o.model, in->model, strlen(in->model) + 1);
        o.server_path = path ? in->server_path : NULL;
        o.no_optimizer = in->no_optimizer;
        if (in->expect)
            o.expect = (struct expect){in->expect->incarnation, in->expect->weight_version};
        rc = save_begin(&rq->session->lease, in->save_id, &o, &f);
    }
    if (rc) {
        request_fail(rq, &f);
        return;
    }
    Fp8d__V1__SaveBeginReply m = FP8D__V1__SAVE_BEGIN_REPLY__INIT;
    request_answer(rq, &m.base, NULL, 0);
}

void rpc_save_attach(struct request *rq)
{
    const Fp8d__V1__SaveAttachRequest *in =
        (const Fp8d__V1__SaveAttachRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct save *s;
    int rc = reply_check_names(rq, in->names, in->n_names, &f);
    if (!rc && in->n_names > 1)
        rc = fault_set(&f, FP8D_EINVALID_ARGUMENT, "names has %zu entries, a save is one file",
                       in->n_names);
    if (!rc)
        rc = save_find(&rq->session->lease, in->save_id, &s, &f);
    if (!rc)
        rc = save_attach(s, in->names[0], rq->fds[0], &f);
    if (rc) {
        request_fail(rq, &f);
        return;
    }
    rq->fds[0] = -1; /* the save's now */
    Fp8d__V1__SaveAttachReply m = FP8D__V1__SAVE_ATTACH_REPLY__INIT;
    request_answer(rq, &m.base, NULL, 0);
}

static void on_progress(void *arg, const struct save_progress *p)
{
    struct request *rq = arg;
    Fp8d__V1__SaveCommitReply m = FP8D__V1__SAVE_COMMIT_REPLY__INIT;
    Fp8d__V1__LoadProgress out = FP8D__V1__LOAD_PROGRESS__INIT;
    out.bytes_done = p->bytes_done;
    out.bytes_total = p->bytes_total;
    out.tensors_done = p->tensors_done;
    out.tensors_total = p->tensors_total;
    out.stage = (char *)(uintptr_t)"write";
    m.progress = &out;
    (void)request_progress(rq, &m.base);
}

static void on_done(void *arg, const struct fault *f, const struct save_report *r)
{
    struct request *rq = arg;
    rq->save = NULL;
    if (f->code) {
        request_fail(rq, f);
        return;
    }
    Fp8d__V1__SaveCommitReply m = FP8D__V1__SAVE_COMMIT_REPLY__INIT;
    Fp8d__V1__SaveReport out = FP8D__V1__SAVE_REPORT__INIT;
    out.bytes_written = r->bytes_written;
    out.write_us = r->write_us;
    out.tensors = r->tensors;
    m.report = &out;
    request_stamp(rq, r->incarnation, r->weight_version);
    request_answer(rq, &m.base, NULL, 0);
}

void rpc_save_commit(struct request *rq)
{
    const Fp8d__V1__SaveCommitRequest *in =
        (const Fp8d__V1__SaveCommitRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct save *s;
    int rc = save_find(&rq->session->lease, in->save_id, &s, &f);
    if (!rc) {
        rq->save = s;
        rc = save_commit(s, in->progress ? on_progress : NULL, on_done, rq, &f);
    }
    if (rc) {
        rq->save = NULL;
        request_fail(rq, &f);
    }
}
