/* BeginScope, EndScope, FinishCalibration. */
#include "daemon/engine/calibration.h"
#include "daemon/engine/scope.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/session.h"

void rpc_begin_scope(struct request *rq)
{
    const Fp8d__V1__BeginScopeRequest *in =
        (const Fp8d__V1__BeginScopeRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct model *m;
    struct scope *s;
    int rc = reply_find_model(rq, in->model, &m, &f);
    if (!rc)
        rc = reply_expect(in->expect, m, &f);
    if (!rc)
        rc = scope_begin(&rq->session->lease, in->scope_id, m, &s, &f);
    if (rc) {
        request_fail(rq, &f);
        return;
    }
    Fp8d__V1__BeginScopeReply out = FP8D__V1__BEGIN_SCOPE_REPLY__INIT;
    request_answer(rq, &out.base, NULL, 0);
}

static void on_end(void *arg, const struct fault *f, uint32_t updated, uint32_t skipped)
{
    struct request *rq = arg;
    if (f->code) {
        request_fail(rq, f);
        return;
    }
    Fp8d__V1__EndScopeReply m = FP8D__V1__END_SCOPE_REPLY__INIT;
    m.sites_updated = updated;
    m.sites_skipped = skipped;
    request_answer(rq, &m.base, NULL, 0);
}

void rpc_end_scope(struct request *rq)
{
    const Fp8d__V1__EndScopeRequest *in =
        (const Fp8d__V1__EndScopeRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct scope *s;
    if (scope_find(&rq->session->lease, in->scope_id, &s, &f)) {
        request_fail(rq, &f);
        return;
    }
    if (s->model)
        request_stamp(rq, s->model->incarnation, s->model->weight_version);
    if (in->discard) {
        scope_end_dropped(s);
        on_end(rq, &(struct fault){0}, 0, 0);
        return;
    }
    scope_end(s, on_end, rq);
}

static void on_finished(void *arg, const struct fault *f, const struct calibration_counts *c)
{
    struct request *rq = arg;
    if (f->code) {
        request_fail(rq, f);
        return;
    }
    Fp8d__V1__FinishCalibrationReply m = FP8D__V1__FINISH_CALIBRATION_REPLY__INIT;
    m.sites_set = c->set;
    m.sites_unset = c->unset;
    request_answer(rq, &m.base, NULL, 0);
}

void rpc_finish_calibration(struct request *rq)
{
    const Fp8d__V1__FinishCalibrationRequest *in =
        (const Fp8d__V1__FinishCalibrationRequest *)(const void *)rq->message;
    struct fault f = {.stage = STAGE_DECODE};
    struct calibration_counts counts;
    struct model *m;
    int rc = reply_find_model(rq, in->model, &m, &f);
    if (!rc)
        rc = reply_expect(in->expect, m, &f);
    if (!rc && in->action == FP8D__V1__CALIBRATION_ACTION__CALIBRATION_ACTION_FINISH) {
        rc = calibration_finish(m, on_finished, rq, &f);
    } else if (!rc && in->action == FP8D__V1__CALIBRATION_ACTION__CALIBRATION_ACTION_ABORT) {
        rc = calibration_abort(m, &counts, &f);
        if (!rc)
            on_finished(rq, &f, &counts);
    } else if (!rc) {
        rc = fault_set(&f, FP8D_EINVALID_ARGUMENT, "action is unset, needed FINISH or ABORT");
    }
    if (rc)
        request_fail(rq, &f);
}
