#include "base/hist.h"

#include <string.h>

void hist_init(struct hist *h)
{
    memset(h, 0, sizeof *h);
}

static unsigned index_of(uint64_t v)
{
    if (v < HIST_SUB)
        return (unsigned)v;
    unsigned top = 63 - (unsigned)__builtin_clzll(v); /* >= 5 */
    unsigned sub = (unsigned)(v >> (top - 5)) & (HIST_SUB - 1);
    return HIST_SUB + (top - 5) * HIST_SUB + sub;
}

static uint64_t upper_of(unsigned i)
{
    if (i < HIST_SUB)
        return i;
    unsigned shift = (i - HIST_SUB) / HIST_SUB;
    uint64_t sub = (i - HIST_SUB) % HIST_SUB + HIST_SUB;
    return ((sub + 1) << shift) - 1;
}

void hist_add(struct hist *h, uint64_t v)
{
    if (!h->count || v < h->min)
        h->min = v;
    if (v > h->max)
        h->max = v;
    h->count++;
    h->sum += v;
    h->bucket[index_of(v)]++;
}

void hist_merge(struct hist *into, const struct hist *from)
{
    if (!from->count)
        return;
    if (!into->count || from->min < into->min)
        into->min = from->min;
    if (from->max > into->max)
        into->max = from->max;
    into->count += from->count;
    into->sum += from->sum;
    for (unsigned i = 0; i < HIST_BUCKETS; i++)
        into->bucket[i] += from->bucket[i];
}

uint64_t hist_quantile(const struct hist *h, double q)
{
    if (!h->count)
        return 0;
    uint64_t rank = (uint64_t)(q * (double)h->count);
    if (rank >= h->count)
        rank = h->count - 1;
    uint64_t seen = 0;
    unsigned i = 0;
    for (; i < HIST_BUCKETS - 1; i++) {
        seen += h->bucket[i];
        if (seen > rank)
            break;
    }
    uint64_t up = upper_of(i);
    return up < h->max ? up : h->max;
}
