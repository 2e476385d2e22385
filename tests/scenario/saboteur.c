#include "tests/scenario/saboteur.h"

#include "tests/unit/rig.h"

#include <stdatomic.h>

static struct {
    struct backend_ops ops;
    const struct backend_ops *real;
    _Atomic int countdown[SABOTEUR_KINDS]; /* -1: none */
    _Atomic bool fired;
    bool left_out; /* what is enqueued up to the next note */
    int left_out_code;
    void (*done)(struct queue_note *note, int status); /* of the note that fails */
} S;

const char *saboteur_words(enum saboteur_what what)
{
    return what == SABOTEUR_NOTES && rig_cuda() ? "the operation was dropped"
                                                : "the test failed it";
}

const char *saboteur_left_out(void)
{
    return "an operation that this one follows failed";
}

void saboteur_leave_out_with(int code)
{
    S.left_out_code = code;
}

static bool strikes(enum saboteur_what what)
{
    if (atomic_load(&S.countdown[what]) < 0 || atomic_fetch_sub(&S.countdown[what], 1) > 0)
        return false;
    atomic_store(&S.fired, true);
    return true;
}

static bool call_fails(struct fault *f)
{
    if (!strikes(SABOTEUR_CALLS))
        return false;
    (void)fault_set(f, FP8D_EINTERNAL, "%s", saboteur_words(SABOTEUR_CALLS));
    return true;
}

/* --- calls that enqueue --- */

static int copy(struct queue *q, struct buffer *dst, uint64_t dst_off, const struct buffer *src,
                uint64_t src_off, uint64_t bytes, struct fault *f)
{
    return call_fails(f) ? f->code : S.real->copy(q, dst, dst_off, src, src_off, bytes, f);
}

static int cast(struct queue *q, const struct cast *c, struct qtensor *out, struct fault *f)
{
    return call_fails(f) ? f->code : S.real->cast(q, c, out, f);
}

static int adopt(struct queue *q, const struct buffer *bytes, uint64_t offset, float scale_inv,
                 struct qtensor *out, struct fault *f)
{
    return call_fails(f) ? f->code : S.real->adopt(q, bytes, offset, scale_inv, out, f);
}

static int export_qtensor(struct queue *q, struct qtensor *t, qtensor_export_cb cb, void *arg,
                          struct fault *f)
{
    return call_fails(f) ? f->code : S.real->export_qtensor(q, t, cb, arg, f);
}

static int dequantize(struct queue *q, const struct qtensor *t, const struct tensor *out,
                      struct fault *f)
{
    return call_fails(f) ? f->code : S.real->dequantize(q, t, out, f);
}

static int transpose(struct queue *q, const struct qtensor *t, struct qtensor *out, struct fault *f)
{
    return call_fails(f) ? f->code : S.real->transpose(q, t, out, f);
}

static int measure(struct queue *q, const struct tensor *t, struct cast_report *report,
                   struct fault *f)
{
    return call_fails(f) ? f->code : S.real->measure(q, t, report, f);
}

static int gemm(struct queue *q, const struct gemm *g, struct fault *f)
{
    return call_fails(f) ? f->code : S.real->gemm(q, g, f);
}

static int gemm_high(struct queue *q, const struct gemm_high *g, struct fault *f)
{
    return call_fails(f) ? f->code : S.real->gemm_high(q, g, f);
}

static int apply(struct queue *q, const struct apply *a, struct fault *f)
{
    return call_fails(f) ? f->code : S.real->apply(q, a, f);
}

static int convert(struct queue *q, const struct tensor *from, const struct tensor *to,
                   struct fault *f)
{
    return call_fails(f) ? f->code : S.real->convert(q, from, to, f);
}

static int zero(struct queue *q, const struct tensor *t, struct fault *f)
{
    return call_fails(f) ? f->code : S.real->zero(q, t, f);
}

static int compare(struct queue *q, const struct tensor *a, const struct tensor *b,
                   struct compare_report *report, struct fault *f)
{
    return call_fails(f) ? f->code : S.real->compare(q, a, b, report, f);
}

static int update(struct queue *q, const struct update *u, const struct cast *c,
                  struct qtensor *out, struct fault *f)
{
    return call_fails(f) ? f->code : S.real->update(q, u, c, out, f);
}

static int norm(struct queue *q, const struct tensor *t, struct norm_report *report,
                struct fault *f)
{
    return call_fails(f) ? f->code : S.real->norm(q, t, report, f);
}

/* --- memory --- */

static int alloc(struct backend *b, struct buffer *buf, struct fault *f)
{
    if (strikes(SABOTEUR_ALLOCS))
        return fault_set(f, FP8D_EINTERNAL, "%s", saboteur_words(SABOTEUR_ALLOCS));
    return S.real->alloc(b, buf, f);
}

/* --- notes --- */

static void failed(struct queue_note *note, int status)
{
    S.done(note, status ? status : FP8D_EINTERNAL);
}

static void fail_note(struct queue *q, struct queue_note *note, int code, const char *words)
{
    static uint64_t never;
    struct fault f;
    if (rig_cuda()) {
        S.real->hold(q);
        (void)S.real->stamp(q, &never, &f);
        S.real->release(q, false);
        return;
    }
    (void)fault_set(note->fault, code, "%s", words);
    S.done = note->done;
    note->done = failed;
}

/* Notes without a place for a sentence are the test's own. */
static void notify(struct queue *q, struct queue_note *note)
{
    if (note->fault && strikes(SABOTEUR_NOTES))
        fail_note(q, note, FP8D_EINTERNAL, saboteur_words(SABOTEUR_NOTES));
    else if (note->fault && S.left_out && !rig_cuda())
        fail_note(q, note, S.left_out_code, saboteur_left_out());
    if (note->fault)
        S.left_out = false;
    S.real->notify(q, note);
}

static int follow(struct queue *q, const struct queue_note *note, struct fault *f)
{
    S.left_out = atomic_load(&S.fired);
    return S.real->follow(q, note, f);
}

/* --- life --- */

void saboteur_open(struct backend *b)
{
    S.real = b->ops;
    S.ops = *S.real;
    S.ops.copy = copy;
    S.ops.cast = cast;
    S.ops.adopt = adopt;
    S.ops.export_qtensor = export_qtensor;
    S.ops.dequantize = dequantize;
    S.ops.transpose = transpose;
    S.ops.measure = measure;
    S.ops.gemm = gemm;
    S.ops.gemm_high = gemm_high;
    S.ops.apply = apply;
    S.ops.convert = convert;
    S.ops.zero = zero;
    S.ops.compare = compare;
    S.ops.update = update;
    S.ops.norm = norm;
    S.ops.alloc = alloc;
    S.ops.notify = notify;
    S.ops.follow = follow;
    S.left_out = false;
    S.left_out_code = FP8D_EABORTED;
    for (int i = 0; i < SABOTEUR_KINDS; i++)
        saboteur_arm((enum saboteur_what)i, -1);
    b->ops = &S.ops;
}

void saboteur_close(struct backend *b)
{
    b->ops = S.real;
}

void saboteur_arm(enum saboteur_what what, int at)
{
    atomic_store(&S.countdown[what], at);
    atomic_store(&S.fired, false);
}

bool saboteur_fired(void)
{
    return atomic_load(&S.fired);
}
