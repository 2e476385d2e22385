#include "daemon/service.h"

#include "base/io.h"
#include "daemon/device.h"
#include "daemon/engine/engine.h"
#include "daemon/log.h"
#include "daemon/rpc/rpc.h"

#include <errno.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define EXIT_LOST 76
/* On a GPU: forwards that change no state, enqueued beside each other so that it does not run dry. On
 * the CPU one computes with all threads, and what waits can still be cancelled. */
#define OVERLAP 16

/* --- what the loop asks (server_hooks) --- */

static void settled(struct exec_task *task)
{
    struct service *s = (struct service *)(void *)((char *)task - offsetof(struct service, settle));
    s->drained(s->drained_arg);
}

/* The first time rpc lets running work end. The second time nothing runs; what the closed
 * connections posted is ahead of us in the engine thread's line. */
static void drain(void *self, void (*done)(void *arg), void *arg)
{
    struct service *s = self;
    const struct exec *exec = server_exec(s->server);
    if (!s->drained_once) {
        s->drained_once = true;
        rpc_drain(s->rpc, done, arg);
        return;
    }
    s->drained = done;
    s->drained_arg = arg;
    s->settle.run = settled;
    exec->post(exec->self, &s->settle);
}

/* A lost device never comes back in this process: what is pending has been answered with its fault,
 * so stop, and let the service manager start another. */
static void look_for_loss(struct service *s)
{
    struct backend_info info;
    char line[400];
    backend_info(s->backend, &info);
    if (!info.lost || s->lost)
        return;
    s->lost = true;
    log_line(LOG_ERROR, NULL, "the device is lost: %s", info.lost_why);
    snprintf(line, sizeof line, "STATUS=the device is lost: %s\n", info.lost_why);
    notify_send(&s->notify, line);
    raise(SIGTERM);
}

static void tick(void *self, uint64_t now)
{
    struct service *s = self;
    look_for_loss(s);
    bool alive = rpc_alive(s->rpc, now, s->config->stall_limit * 1000000);
    if (alive)
        notify_feed(&s->notify, now);
    if (!alive && !s->stalled)
        log_line(LOG_ERROR, LOG_PAIRS(LOG_NUM("age_ms", rpc_progress_age_ms(s->rpc))),
                 "work does not progress (stall_limit): the watchdog is not fed");
    s->stalled = !alive;
}

static void stopping(void *self)
{
    struct service *s = self;
    notify_send(&s->notify, "STOPPING=1\nSTATUS=waiting for running work\n");
}

static void describe(void *self, char *out, size_t size)
{
    struct service *s = self;
    snprintf(out, size, "the compute queue last moved %llu ms ago",
             (unsigned long long)rpc_progress_age_ms(s->rpc));
}

/* --- the socket --- */

static bool is_service_user(void)
{
    if (geteuid() == 0)
        return true;
    const struct passwd *pw = getpwuid(geteuid());
    return pw && strcmp(pw->pw_name, "fp8d") == 0;
}

/* Where no unit or tmpfiles.d made it: the directory of the standard socket. */
static void make_standard_directory(void)
{
    (void)!mkdir("/run/fp8d", 0750);
    (void)!mkdir("/run/fp8d/0", 0750);
}

/* Where the passed socket is bound, for the log. */
static void name_listener(int fd, char *out, size_t size)
{
    struct sockaddr_un a = {0};
    socklen_t len = sizeof a - 1;
    if (getsockname(fd, (struct sockaddr *)&a, &len) || a.sun_path[0] != '/')
        snprintf(out, size, "the socket of the service manager");
    else
        snprintf(out, size, "%s", a.sun_path);
}

static int find_socket(struct service *s, int *listen_fd, struct fault *f)
{
    *listen_fd = notify_take_listener(f);
    if (*listen_fd >= 0) {
        name_listener(*listen_fd, s->socket, sizeof s->socket);
        return 0;
    }
    if (*listen_fd < -1)
        return *listen_fd;
    bool standard = !*s->config->socket && is_service_user();
    if (standard)
        make_standard_directory();
    return config_socket(s->config, standard, getenv("XDG_RUNTIME_DIR"), s->socket,
                         sizeof s->socket, f);
}

static struct net_options net_options(const struct service *s, int listen_fd)
{
    const struct config *c = s->config;
    return (struct net_options){
        .socket_path = listen_fd < 0 ? s->socket : NULL,
        .listen_fd = listen_fd,
        .socket_mode = (unsigned)c->socket_mode,
        .connections_max = (unsigned)c->connections_max,
        .caps = {.meta = (uint32_t)c->meta_max, .payload = c->payload_max, .fds = FRAME_FDS_MAX},
        .output_high_water = c->output_high_water,
        .output_limit = c->output_limit,
        .handshake_ms = (unsigned)c->handshake_timeout,
        .output_stall_ms = (unsigned)c->output_stall_timeout,
        .memory_wait_ms = (unsigned)c->memory_wait,
        .drain_ms = (unsigned)c->drain_timeout,
    };
}

/* --- parts --- */

/* A GPU's arena is bounded by its own size, and takes nothing of the host's limit. */
static void open_ledgers(struct service *s)
{
    struct backend_info info;
    backend_info(s->backend, &info);
    ledger_init(&s->ledger, s->config->memory_limit);
    if (info.unified)
        return;
    ledger_init(&s->device_ledger, info.memory_total);
    s->device_ledger.name = "device memory";
    s->ledger.device = &s->device_ledger;
}

static int open_engine(struct service *s, struct fault *f)
{
    const struct config *c = s->config;
    open_ledgers(s);
    struct engine_options o = {
        .backend = s->backend,
        .ledger = &s->ledger,
        .exec = server_exec(s->server),
        .io = &io_posix,
        .resident_max = c->resident_max,
        .contexts_max = (uint32_t)c->contexts_max,
        .tensors_max = (uint32_t)c->tensors_max,
        .header_cap = c->header_max,
        .plans = (enum plans)c->plans,
        .load_roots = c->load_roots,
    };
    return engine_new(&o, &s->engine, f);
}

static int open_rpc(struct service *s, const struct net_options *net, struct fault *f)
{
    struct rpc_options o = {
        .engine = s->engine,
        .exec = server_exec(s->server),
        .caps = net->caps,
        .in_flight_max = (uint32_t)s->config->in_flight_max,
        .connections_max = net->connections_max,
        .overlap = s->engine->unified ? 1 : OVERLAP,
        .version = s->version,
        .backend_reason = s->reason,
    };
    if (getrandom(&o.instance_id, sizeof o.instance_id, 0) != sizeof o.instance_id)
        return fault_set(f, -errno, "getrandom failed: %s", strerror(errno));
    int rc = rpc_new(&o, &s->rpc, f);
    if (rc)
        return rc;
    s->handler = rpc_handler(s->rpc);
    s->hooks = (struct server_hooks){
        .self = s, .drain = drain, .tick = tick, .stopping = stopping, .describe = describe};
    return 0;
}

static void say_ready(struct service *s)
{
    struct backend_info info;
    char lines[1024];
    backend_info(s->backend, &info);
    log_line(LOG_INFO,
             LOG_PAIRS(LOG_TEXT("backend", info.name), LOG_TEXT("device", info.device),
                       LOG_TEXT("socket", s->socket), LOG_NUM("memory_limit", s->ledger.cap),
                       LOG_NUM("device_memory", info.memory_total)),
             "fp8d %s is ready, computing on %s: %s", s->version, info.name, s->reason);
    snprintf(lines, sizeof lines, "READY=1\nSTATUS=serving on %.200s, computing on %s: %s\n",
             s->socket, info.name, s->reason);
    notify_send(&s->notify, lines);
}

int service_open(struct service *s, const struct config *c, const char *version, struct fault *f)
{
    int listen_fd = -1;
    s->config = c;
    s->version = version;
    int rc = notify_init(&s->notify, f);
    if (!rc)
        rc = find_socket(s, &listen_fd, f);
    if (rc)
        return rc;
    struct net_options net = net_options(s, listen_fd);
    rc = device_open(c, &s->backend, s->reason, sizeof s->reason, f);
    if (!rc)
        rc = server_new(&net, &s->server, f);
    if (!rc)
        rc = open_engine(s, f);
    if (!rc)
        rc = open_rpc(s, &net, f);
    if (!rc)
        rc = server_listen(s->server, &s->handler, &s->hooks, f);
    if (!rc)
        say_ready(s);
    return rc;
}

int service_run(struct service *s)
{
    int rc = server_run(s->server);
    if (s->lost)
        return EXIT_LOST;
    if (!rc)
        log_line(LOG_INFO, NULL, "stopped");
    return rc;
}

void service_close(struct service *s)
{
    rpc_free(s->rpc);
    engine_free(s->engine);
    server_free(s->server);
    backend_close(s->backend);
    notify_fini(&s->notify);
}
