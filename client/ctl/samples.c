#include "client/ctl/samples.h"

#include "base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_FIRST 1024u

void samples_fini(struct samples *s)
{
    mem_free(s->values);
    *s = (struct samples){0};
}

/* Counts are those of requests sent, which memory ends long before a size overflows. */
static int reserve(struct samples *s, size_t more)
{
    size_t room = s->room ? s->room : ROOM_FIRST;
    while (room < s->count + more)
        room *= 2;
    if (room == s->room)
        return 0;
    uint64_t *values = mem_realloc(s->values, room * sizeof *values);
    if (!values)
        return -ENOMEM;
    s->values = values;
    s->room = room;
    return 0;
}

int samples_add(struct samples *s, uint64_t value)
{
    int rc = reserve(s, 1);
    if (!rc)
        s->values[s->count++] = value;
    return rc;
}

int samples_append(struct samples *s, const struct samples *more)
{
    int rc = reserve(s, more->count);
    if (rc || !more->count)
        return rc;
    memcpy(s->values + s->count, more->values, more->count * sizeof *more->values);
    s->count += more->count;
    return 0;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void samples_sort(struct samples *s)
{
    if (s->count)
        qsort(s->values, s->count, sizeof *s->values, by_value);
}

uint64_t samples_percentile(const struct samples *s, unsigned percent)
{
    size_t rank = (s->count * percent + 99) / 100;
    return s->count ? s->values[rank ? rank - 1 : 0] : 0;
}

uint64_t samples_max(const struct samples *s)
{
    return samples_percentile(s, 100);
}

double samples_mean(const struct samples *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->count; i++)
        sum += (double)s->values[i];
    return s->count ? sum / (double)s->count : 0;
}
