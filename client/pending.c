#include "client/pending.h"

#include "base/mem.h"

#include <errno.h>

static struct pending **slot(struct pending_table *t, uint64_t id)
{
    return &t->slots[id % PENDING_SLOTS];
}

int pending_add(struct pending_table *t, uint16_t type, struct pending **out, struct fault *f)
{
    if (t->used == PENDING_SLOTS)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "%u requests are under way or not waited for yet, at most %u are possible",
                         t->used, PENDING_SLOTS);
    struct pending *p = mem_zalloc(sizeof *p);
    if (!p)
        return fault_set(f, -ENOMEM, "no memory for a request");
    do {
        t->last_id++;
    } while (*slot(t, t->last_id));
    p->id = t->last_id;
    p->type = type;
    *slot(t, p->id) = p;
    t->used++;
    t->flying++;
    *out = p;
    return 0;
}

struct pending *pending_find(const struct pending_table *t, uint64_t id)
{
    struct pending *p = t->slots[id % PENDING_SLOTS];
    return p && p->id == id ? p : NULL;
}

void pending_replied(struct pending_table *t, struct pending *p)
{
    p->replied = true;
    t->flying--;
    if (p->forgotten)
        pending_drop(t, p);
}

void pending_drop(struct pending_table *t, struct pending *p)
{
    if (!p->replied)
        t->flying--;
    *slot(t, p->id) = NULL;
    t->used--;
    fp8d_result_free(p->result);
    mem_free(p->why);
    mem_free(p->parts);
    mem_free(p);
}

void pending_fini(struct pending_table *t)
{
    for (size_t i = 0; i < PENDING_SLOTS; i++)
        if (t->slots[i])
            pending_drop(t, t->slots[i]);
}
