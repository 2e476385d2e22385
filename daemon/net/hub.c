#include "daemon/net/hub.h"

#include "base/mem.h"
#include "daemon/net/conn.h"

#include <fcntl.h>
#include <unistd.h>

static void on_warm(uv_poll_t *poll, int status, int events)
{
    (void)poll, (void)status, (void)events;
}

/* Poll a descriptor with a number as high as connections_max will need, once. Each connection has
 * two, socket and pidfd. Where that many are not allowed, no growth will be needed either. */
static int grow_tables(struct hub *hub)
{
    uv_poll_t poll;
    int pair[2];
    int rc = uv_pipe(pair, UV_NONBLOCK_PIPE, UV_NONBLOCK_PIPE);
    if (rc)
        return rc;
    int high = fcntl(pair[0], F_DUPFD_CLOEXEC, (int)hub->options.connections_max * 2 + 64);
    int fd = high < 0 ? pair[0] : high;
    rc = uv_poll_init(&hub->loop, &poll, fd);
    if (!rc) {
        rc = uv_poll_start(&poll, UV_READABLE, on_warm);
        uv_close((uv_handle_t *)&poll, NULL);
        uv_run(&hub->loop, UV_RUN_NOWAIT);
    }
    if (high >= 0)
        close(high);
    close(pair[0]);
    close(pair[1]);
    return rc;
}

int hub_init(struct hub *hub, const struct net_options *o, struct fault *f)
{
    *hub = (struct hub){.options = *o};
    unsigned cap = o->connections_max < ROSTER_MAX ? o->connections_max : ROSTER_MAX;
    int rc = uv_loop_init(&hub->loop);
    if (rc)
        return fault_set(f, rc, "making the event loop failed: %s", uv_strerror(rc));
    rc = roster_init(&hub->roster, cap ? cap : 1);
    hub->scratch = mem_alloc(HUB_SCRATCH);
    if (!rc && !hub->scratch)
        rc = UV_ENOMEM;
    if (!rc)
        rc = grow_tables(hub);
    if (rc) {
        uv_loop_close(&hub->loop);
        hub_fini(hub);
        return fault_set(f, rc, "making the tables of the event loop failed: %s", uv_strerror(rc));
    }
    uv_timer_init(&hub->loop, &hub->retry);
    hub->retry.data = hub;
    return 0;
}

void hub_close(struct hub *hub)
{
    uv_close((uv_handle_t *)&hub->retry, NULL);
}

void hub_fini(struct hub *hub)
{
    roster_fini(&hub->roster);
    mem_free(hub->scratch);
    hub->scratch = NULL;
}

void hub_each(struct hub *hub, void (*fn)(struct conn *c))
{
    for (unsigned i = 0; i < hub->roster.cap; i++)
        if (hub->roster.conn[i])
            fn(hub->roster.conn[i]);
}

static void on_retry(uv_timer_t *timer)
{
    hub_each(timer->data, conn_retry);
}

void hub_wait_begin(struct hub *hub)
{
    if (hub->waiting++ == 0)
        uv_timer_start(&hub->retry, on_retry, HUB_RETRY_MS, HUB_RETRY_MS);
}

void hub_wait_end(struct hub *hub)
{
    if (--hub->waiting == 0)
        uv_timer_stop(&hub->retry);
}
