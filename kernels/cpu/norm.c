/* The square of a norm. The tensor is cut into PARTS runs of elements, whatever the threads; each
 * is added up in ascending order, then the parts are. */
#include "kernels/cpu/element.h"
#include "kernels/cpu/queue.h"

#define PARTS 256u

struct norm_run {
    struct tensor tensor;
    struct norm_report *report;
    struct norm_report *parts; /* [PARTS], while it runs */
};

static void norm_part(void *arg, unsigned worker, uint64_t part)
{
    const struct norm_run *r = arg;
    uint64_t count = r->tensor.rows * r->tensor.cols, each = (count + PARTS - 1) / PARTS;
    uint64_t first = part * each < count ? part * each : count;
    uint64_t end = count - first < each ? count : first + each;
    struct norm_report sum = {0};
    (void)worker;
    for (uint64_t i = first; i < end; i++) {
        float x = tensor_element(&r->tensor, i);
        if (fp8_finite(x))
            sum.sum2 += (double)x * (double)x;
        else
            sum.nonfinite++;
    }
    r->parts[part] = sum;
}

static void norm_execute(struct cpu_queue *q, void *args)
{
    struct norm_run *r = args;
    struct norm_report parts[PARTS], all = {0};
    r->parts = parts;
    pool_run(&q->pool, norm_part, r, PARTS);
    for (unsigned i = 0; i < PARTS; i++) {
        all.sum2 += parts[i].sum2;
        all.nonfinite += parts[i].nonfinite;
    }
    *r->report = all;
}

int cpu_norm(struct queue *q, const struct tensor *t, struct norm_report *report, struct fault *f)
{
    struct norm_run r = {.tensor = *t, .report = report};
    return cpu_queue_post((struct cpu_queue *)q, norm_execute, &r, sizeof r, NULL, 0, f);
}
