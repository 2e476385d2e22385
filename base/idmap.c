#include "base/idmap.h"

#include "base/mem.h"

#include <errno.h>

static size_t home(const struct idmap *m, uint64_t id)
{
    return (size_t)((id * 0x9e3779b97f4a7c15u) >> 20) & (m->size - 1);
}

static size_t probe(const struct idmap *m, uint64_t id)
{
    size_t i = home(m, id);
    while (m->slots[i].id && m->slots[i].id != id)
        i = (i + 1) & (m->size - 1);
    return i;
}

void idmap_fini(struct idmap *m)
{
    mem_free(m->slots);
    *m = (struct idmap){0};
}

void *idmap_get(const struct idmap *m, uint64_t id)
{
    return id && m->size ? m->slots[probe(m, id)].value : NULL;
}

static int grow(struct idmap *m)
{
    struct idmap bigger = {.size = m->size ? m->size * 2 : 16, .count = m->count};
    bigger.slots = mem_array(bigger.size, sizeof *bigger.slots);
    if (!bigger.slots)
        return -ENOMEM;
    for (size_t i = 0; i < m->size; i++)
        if (m->slots[i].id)
            bigger.slots[probe(&bigger, m->slots[i].id)] = m->slots[i];
    mem_free(m->slots);
    *m = bigger;
    return 0;
}

int idmap_put(struct idmap *m, uint64_t id, void *value)
{
    if (m->count * 2 >= m->size) {
        int rc = grow(m);
        if (rc)
            return rc;
    }
    m->slots[probe(m, id)] = (struct idmap_slot){id, value};
    m->count++;
    return 0;
}

void *idmap_remove(struct idmap *m, uint64_t id)
{
    if (!id || !m->size)
        return NULL;
    size_t hole = probe(m, id);
    void *value = m->slots[hole].value;
    if (!m->slots[hole].id)
        return NULL;
    /* Close the gap: move back every later one of the run that may stand in the hole. */
    size_t mask = m->size - 1;
    for (size_t i = (hole + 1) & mask; m->slots[i].id; i = (i + 1) & mask) {
        size_t want = home(m, m->slots[i].id);
        if (((i - want) & mask) < ((i - hole) & mask))
            continue;
        m->slots[hole] = m->slots[i];
        hole = i;
    }
    m->slots[hole] = (struct idmap_slot){0, NULL};
    m->count--;
    return value;
}

void *idmap_next(const struct idmap *m, size_t *at)
{
    while (*at < m->size) {
        struct idmap_slot *s = &m->slots[(*at)++];
        if (s->id)
            return s->value;
    }
    return NULL;
}
