#include "tests/scenario/bound.h"

#include "tests/parity/reference.h"
#include "tests/unit/rig.h"

#include <math.h>

#define CPU_BOUND 1e-5

struct bound bound_new(uint64_t k, uint64_t count)
{
    struct bound b = {.k = k, .count = count};
    b.want = calloc(count + 1, sizeof *b.want);
    b.cut = calloc(count + 1, sizeof *b.cut);
    ck_assert(b.want && b.cut);
    return b;
}

void bound_free(struct bound *b)
{
    free(b->want);
    free(b->cut);
}

double bound_most(const struct bound *b)
{
    double most = 0;
    for (uint64_t i = 0; i < b->count; i++)
        if (isfinite(b->want[i]))
            most = fmax(most, fabs(b->want[i]));
    return most;
}

double bound_at(const struct bound *b, uint64_t i)
{
    if (!rig_cuda())
        return CPU_BOUND * bound_most(b);
    const struct cut *c = &b->cut[i];
    double sum = b->high ? reference_bound_high(b->k, true) * c->magnitude : c->fast;
    return sum + fabs(b->want[i]) * 0x1p-21;
}

void bound_check(const struct bound *b, const float *y)
{
    double cpu = CPU_BOUND * bound_most(b);
    for (uint64_t i = 0; i < b->count; i++) {
        double got = (double)y[i], want = b->want[i];
        if (got == want || (isnan(got) && isnan(want)))
            continue;
        double bound = rig_cuda() ? bound_at(b, i) : cpu;
        ck_assert_msg(fabs(got - want) <= bound, "output %llu is %.9g, needed %.9g +- %g",
                      (unsigned long long)i, got, want, bound);
    }
}
