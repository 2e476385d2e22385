/* service.h - the daemon put together: backend, engine, rpc, server, service manager. Main thread,
 * which is the loop thread. */
#ifndef FP8D_DAEMON_SERVICE_H
#define FP8D_DAEMON_SERVICE_H

#include "base/ledger.h"
#include "daemon/config.h"
#include "daemon/net/server.h"
#include "daemon/notify.h"
#include "kernels/backend.h"

struct engine;
struct rpc;

/* Memory of the caller, zeroed. Owns all it points to but the config. */
struct service {
    const struct config *config;
    const char *version;
    struct notify notify;
    struct ledger ledger;
    struct ledger device_ledger; /* of a GPU's arena */
    struct backend *backend;
    struct server *server;
    struct engine *engine;
    struct rpc *rpc;
    struct net_handler handler;
    struct server_hooks hooks;
    struct exec_task settle; /* the second drain */
    void (*drained)(void *arg);
    void *drained_arg;
    bool drained_once;
    bool stalled; /* said so in the log */
    bool lost;    /* the device failed for good; likewise */
    char socket[4096];
    char reason[256]; /* why this backend */
};

/* Everything up to READY=1. The code tells bad configuration (FP8D_EINVALID_ARGUMENT,
 * FP8D_EFAILED_PRECONDITION) from a host that says no. On failure service_close is still due. */
int service_open(struct service *s, const struct config *c, const char *version, struct fault *f);

/* Until a signal: 0, or 75 (a stop timed out) or 76 (the device is lost), after which only _exit is
 * left. */
int service_run(struct service *s);

void service_close(struct service *s);

#endif
