/* lease.h - what one connection owns in the engine: tensors, contexts, scopes, loads.
 *
 * Ids are chosen by the client and looked up only here. Everything ends with the connection; named
 * models never refer to it. Engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_LEASE_H
#define FP8D_DAEMON_ENGINE_LEASE_H

#include "base/idmap.h"
#include "daemon/engine/engine.h"

struct lease {
    struct engine *engine;
    uint64_t conn; /* for sentences: "connection 7 (pid 12, uid 0)" */
    pid_t pid;
    uid_t uid;
    struct idmap tensors;  /* struct resident */
    struct idmap contexts; /* struct context */
    struct idmap scopes;   /* struct scope */
    struct idmap loads;    /* struct load */
    struct idmap saves;    /* struct save */
    uint64_t resident_bytes; /* of tensors and contexts */
};

void lease_init(struct lease *l, struct engine *e, uint64_t conn, pid_t pid, uid_t uid);

/* Ends everything. No request of the connection is running. */
void lease_fini(struct lease *l);

/* Account `bytes` against the connection's cap. */
int lease_charge(struct lease *l, uint64_t bytes, const char *what, struct fault *f);
void lease_release(struct lease *l, uint64_t bytes);

/* FP8D_EINVALID_ARGUMENT for 0, FP8D_EALREADY_EXISTS if in use; `field` names it. */
int lease_id_free(const struct idmap *m, uint64_t id, const char *field, struct fault *f);

#endif
