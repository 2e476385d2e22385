#include "daemon/engine/lease.h"

#include "daemon/engine/context.h"
#include "daemon/engine/load.h"
#include "daemon/engine/resident.h"
#include "daemon/engine/save.h"
#include "daemon/engine/scope.h"

#include <assert.h>
#include <string.h>

void lease_init(struct lease *l, struct engine *e, uint64_t conn, pid_t pid, uid_t uid)
{
    memset(l, 0, sizeof *l);
    l->engine = e;
    l->conn = conn;
    l->pid = pid;
    l->uid = uid;
}

/* Any value of the map, or NULL when it is empty: each end call removes what it ends. */
static void *first_of(const struct idmap *m)
{
    size_t at = 0;
    return idmap_next(m, &at);
}

void lease_fini(struct lease *l)
{
    void *p;
    while ((p = first_of(&l->scopes)))
        scope_end_dropped(p);
    while ((p = first_of(&l->contexts)))
        context_end(p);
    while ((p = first_of(&l->tensors)))
        resident_end(p);
    while ((p = first_of(&l->loads)))
        load_end(p);
    while ((p = first_of(&l->saves)))
        save_end(p);
    idmap_fini(&l->scopes);
    idmap_fini(&l->contexts);
    idmap_fini(&l->tensors);
    idmap_fini(&l->loads);
    idmap_fini(&l->saves);
    assert(l->resident_bytes == 0);
}

int lease_charge(struct lease *l, uint64_t bytes, const char *what, struct fault *f)
{
    uint64_t cap = l->engine->o.resident_max;
    if (bytes > cap || l->resident_bytes > cap - bytes)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "%s needs %llu bytes, this connection holds %llu of at most %llu", what,
                         (unsigned long long)bytes, (unsigned long long)l->resident_bytes,
                         (unsigned long long)cap);
    l->resident_bytes += bytes;
    return 0;
}

void lease_release(struct lease *l, uint64_t bytes)
{
    assert(l->resident_bytes >= bytes);
    l->resident_bytes -= bytes;
}

int lease_id_free(const struct idmap *m, uint64_t id, const char *field, struct fault *f)
{
    if (!id)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s is 0, needed a number from 1 up", field);
    if (idmap_get(m, id))
        return fault_set(f, FP8D_EALREADY_EXISTS, "%s %llu is in use on this connection", field,
                         (unsigned long long)id);
    return 0;
}
