#include "daemon/net/roster.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>

int roster_init(struct roster *r, unsigned cap)
{
    *r = (struct roster){.cap = cap};
    r->number = mem_array(cap, sizeof *r->number);
    r->conn = mem_array(cap, sizeof *r->conn);
    r->free = mem_array(cap, sizeof *r->free);
    if (!r->number || !r->conn || !r->free) {
        roster_fini(r);
        return -ENOMEM;
    }
    for (unsigned i = 0; i < cap; i++)
        r->free[i] = cap - 1 - i;
    return 0;
}

void roster_fini(struct roster *r)
{
    mem_free(r->number);
    mem_free(r->conn);
    mem_free(r->free);
    *r = (struct roster){0};
}

uint64_t roster_add(struct roster *r, struct conn *c)
{
    if (r->live == r->cap)
        return 0;
    unsigned slot = r->free[r->cap - ++r->live];
    uint64_t number = ++r->serial << 16 | slot;
    r->conn[slot] = c;
    atomic_store_explicit(&r->number[slot], number, memory_order_release);
    return number;
}

bool roster_alive(const struct roster *r, uint64_t number)
{
    unsigned slot = (unsigned)(number & 0xffff);
    return number && slot < r->cap &&
           atomic_load_explicit(&r->number[slot], memory_order_acquire) == number;
}

struct conn *roster_find(const struct roster *r, uint64_t number)
{
    return roster_alive(r, number) ? r->conn[number & 0xffff] : NULL;
}

void roster_remove(struct roster *r, uint64_t number)
{
    if (!roster_alive(r, number))
        return;
    unsigned slot = (unsigned)(number & 0xffff);
    atomic_store_explicit(&r->number[slot], 0, memory_order_release);
    r->conn[slot] = NULL;
    r->free[r->cap - r->live--] = slot;
}
