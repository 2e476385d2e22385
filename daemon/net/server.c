#include "daemon/net/server.h"

#include "base/mem.h"
#include "daemon/log.h"
#include "daemon/net/conn.h"
#include "daemon/net/hub.h"
#include "daemon/net/listener.h"
#include "daemon/net/worker.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#define EXIT_DRAIN 75
#define ACCEPTS_AT_ONCE 64

/* The stages of a stop, in order. */
enum stage {
    STAGE_SERVING,
    STAGE_DRAINING, /* hooks->drain: running work ends */
    STAGE_LEAVING,  /* every client is sent away */
    STAGE_SETTLING, /* hooks->drain again: what the closed connections left */
    STAGE_CLOSING,  /* the server's own handles */
};

struct server {
    struct hub hub; /* first: emptied() gets it back */
    struct worker worker;
    struct listener listener;
    const struct server_hooks *hooks;
    uv_poll_t accept;
    uv_timer_t tick;
    uv_signal_t term, intr, hang;
    uv_async_t stop; /* of server_stop and of drain's done */
    _Atomic unsigned stops_asked, drains_done;
    enum stage stage;
    bool listening;     /* accept is an open handle */
    bool accept_paused; /* until the next tick: no descriptor, not even the reserve */
    uint64_t drain_due; /* uv_now ms */
    int result;
};

/* --- clients --- */

static void on_accept(uv_poll_t *poll, int status, int events);

static void poll_accept(struct server *s)
{
    s->accept_paused = false;
    (void)uv_poll_start(&s->accept, UV_READABLE, on_accept);
}

static void refuse_starved(struct server *s, int fd)
{
    struct fault f = {0};
    fault_set(&f, FP8D_ERESOURCE_EXHAUSTED,
              "the daemon has no file descriptor left (RLIMIT_NOFILE) for another connection");
    conn_refuse(&s->hub, fd, 0, &f);
    listener_rearm(&s->listener);
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
    struct server *s = poll->data;
    (void)status, (void)events;
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        bool starved;
        int fd = listener_accept(&s->listener, &starved);
        if (fd == -EAGAIN)
            return;
        if (fd < 0) {
            log_line(LOG_ERROR, NULL, "accepting a client failed, next try in a second: %s",
                     strerror(-fd));
            s->accept_paused = true;
            uv_poll_stop(&s->accept);
            return;
        }
        if (starved)
            refuse_starved(s, fd);
        else
            conn_open(&s->hub, fd);
    }
}

static void deliver(void *self, struct reply *r)
{
    struct server *s = self;
    struct conn *c = roster_find(&s->hub.roster, r->conn);
    if (c)
        conn_send(c, r);
    else
        r->done(r);
}

/* --- stop --- */

static void on_drained(void *arg)
{
    struct server *s = arg;
    atomic_fetch_add(&s->drains_done, 1);
    uv_async_send(&s->stop);
}

static void give_up(struct server *s, const char *why)
{
    char what[512] = "";
    s->hooks->describe(s->hooks->self, what, sizeof what);
    log_line(LOG_ERROR, LOG_PAIRS(LOG_NUM("connections", s->hub.roster.live)),
             "the stop is given up, %s; still there: %s", why, what);
    s->result = EXIT_DRAIN;
    uv_stop(&s->hub.loop);
}

static void close_handle(void *handle)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static void stop_listening(struct server *s)
{
    if (s->listening)
        close_handle(&s->accept);
    s->listening = false;
    listener_close(&s->listener);
}

static void close_own(struct server *s)
{
    s->stage = STAGE_CLOSING;
    worker_stop(&s->worker);
    stop_listening(s);
    hub_close(&s->hub);
    close_handle(&s->tick);
    close_handle(&s->term);
    close_handle(&s->intr);
    close_handle(&s->hang);
    close_handle(&s->stop);
}

static void begin_stop(struct server *s)
{
    log_line(LOG_INFO, LOG_PAIRS(LOG_NUM("connections", s->hub.roster.live)),
             "stopping: running work has %u ms to end", s->hub.options.drain_ms);
    s->stage = STAGE_DRAINING;
    s->drain_due = uv_now(&s->hub.loop) + s->hub.options.drain_ms;
    s->hooks->stopping(s->hooks->self);
    stop_listening(s);
    s->hooks->drain(s->hooks->self, on_drained, s);
}

static void send_away(struct conn *c)
{
    struct fault f = {0};
    fault_set(&f, FP8D_EUNAVAILABLE, "the server stops");
    conn_leave(c, &f);
}

static void on_emptied(struct hub *hub)
{
    struct server *s = (struct server *)hub;
    if (s->stage != STAGE_LEAVING)
        return;
    s->stage = STAGE_SETTLING;
    s->hooks->drain(s->hooks->self, on_drained, s);
}

/* Something happened that may let the stop go on. */
static void on_stop(uv_async_t *async)
{
    struct server *s = async->data;
    unsigned asked = atomic_load(&s->stops_asked);
    if (asked && s->stage == STAGE_SERVING)
        begin_stop(s);
    if (asked > 1 && s->stage != STAGE_CLOSING) {
        give_up(s, "it was asked for again");
        return;
    }
    if (s->stage == STAGE_DRAINING && atomic_load(&s->drains_done) >= 1) {
        s->stage = STAGE_LEAVING;
        hub_each(&s->hub, send_away);
        if (!s->hub.roster.live && !s->hub.closing)
            on_emptied(&s->hub);
    }
    if (s->stage == STAGE_SETTLING && atomic_load(&s->drains_done) >= 2)
        close_own(s);
}

void server_stop(struct server *s)
{
    atomic_fetch_add(&s->stops_asked, 1);
    uv_async_send(&s->stop);
}

static bool is_ignored(int number)
{
    struct sigaction now;
    return !sigaction(number, NULL, &now) && now.sa_handler == SIG_IGN;
}

static void on_signal(uv_signal_t *signal, int number)
{
    (void)number;
    server_stop(signal->data);
}

static void on_tick(uv_timer_t *timer)
{
    struct server *s = timer->data;
    if (s->accept_paused && s->listening)
        poll_accept(s);
    hub_each(&s->hub, conn_tick);
    s->hooks->tick(s->hooks->self, uv_hrtime());
    bool stopping = s->stage != STAGE_SERVING && s->stage != STAGE_CLOSING;
    if (stopping && uv_now(&s->hub.loop) >= s->drain_due + CONN_FLUSH_MS)
        give_up(s, "drain_timeout has passed");
}

/* --- life --- */

static void set_process(void)
{
    struct rlimit files;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

/* None of these fails for want of anything but memory, of which libuv aborts. */
static void init_handles(struct server *s)
{
    uv_loop_t *loop = &s->hub.loop;
    uv_timer_init(loop, &s->tick);
    uv_async_init(loop, &s->stop, on_stop);
    uv_signal_init(loop, &s->term);
    uv_signal_init(loop, &s->intr);
    uv_signal_init(loop, &s->hang);
    s->tick.data = s->stop.data = s->term.data = s->intr.data = s->hang.data = s;
    uv_signal_start(&s->term, on_signal, SIGTERM);
    uv_signal_start(&s->intr, on_signal, SIGINT);
    if (!is_ignored(SIGHUP)) /* the end of a terminal; nohup(1) ignores it */
        uv_signal_start(&s->hang, on_signal, SIGHUP);
    s->hub.emptied = on_emptied;
}

int server_new(const struct net_options *o, struct server **out, struct fault *f)
{
    struct server *s = mem_zalloc(sizeof *s);
    if (!s)
        return fault_set(f, -ENOMEM, "no memory for the server");
    s->listener = (struct listener){.fd = -1, .reserve = -1, .lock = -1};
    set_process();
    int rc = hub_init(&s->hub, o, f);
    if (rc) {
        mem_free(s);
        return rc;
    }
    rc = worker_init(&s->worker, &s->hub.loop, &s->hub.roster, o->cores, deliver, s, f);
    if (rc) {
        hub_close(&s->hub);
        uv_run(&s->hub.loop, UV_RUN_DEFAULT);
        uv_loop_close(&s->hub.loop);
        hub_fini(&s->hub);
        mem_free(s);
        return rc;
    }
    init_handles(s);
    *out = s;
    return 0;
}

const struct exec *server_exec(struct server *s)
{
    return &s->worker.exec;
}

int server_listen(struct server *s, const struct net_handler *h, const struct server_hooks *hooks,
                  struct fault *f)
{
    s->hub.handler = h;
    s->hooks = hooks;
    int rc = listener_open(&s->listener, &s->hub.options, f);
    if (rc)
        return rc;
    rc = uv_poll_init(&s->hub.loop, &s->accept, s->listener.fd);
    if (rc) {
        listener_close(&s->listener);
        return fault_set(f, rc, "polling the listening socket failed: %s", uv_strerror(rc));
    }
    s->accept.data = s;
    s->listening = true;
    poll_accept(s);
    uv_timer_start(&s->tick, on_tick, SERVER_TICK_MS, SERVER_TICK_MS);
    return 0;
}

static void close_loop(struct server *s)
{
    int rc = uv_loop_close(&s->hub.loop);
    assert(rc == 0);
    (void)rc;
}

int server_run(struct server *s)
{
    uv_run(&s->hub.loop, UV_RUN_DEFAULT);
    if (!s->result)
        close_loop(s);
    return s->result;
}

void server_free(struct server *s)
{
    if (!s)
        return;
    if (s->stage != STAGE_CLOSING) { /* it never ran */
        close_own(s);
        uv_run(&s->hub.loop, UV_RUN_DEFAULT);
        close_loop(s);
    }
    worker_fini(&s->worker);
    hub_fini(&s->hub);
    mem_free(s);
}

static void count_timer(uv_handle_t *handle, void *arg)
{
    unsigned *n = arg;
    *n += handle->type == UV_TIMER && uv_is_active(handle);
}

unsigned server_timers(struct server *s)
{
    unsigned n = 0;
    uv_walk(&s->hub.loop, count_timer, &n);
    return n;
}

unsigned server_connections(const struct server *s)
{
    return s->hub.roster.live;
}
