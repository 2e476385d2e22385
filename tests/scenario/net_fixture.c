#include "tests/scenario/net_fixture.h"

#include "base/mem.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct net_fixture fx;

/* --- hooks --- */

struct drain {
    struct exec_task task;
    void (*done)(void *arg);
    void *arg;
};

static void drain_on_engine(struct exec_task *task)
{
    struct drain d = *(struct drain *)task;
    mem_free(task);
    d.done(d.arg);
}

static void fake_drain(void *self, void (*done)(void *arg), void *arg)
{
    (void)self;
    const struct exec *x = server_exec(fx.server);
    struct drain *d = mem_zalloc(sizeof *d);
    *d = (struct drain){.task.run = drain_on_engine, .done = done, .arg = arg};
    x->post(x->self, &d->task);
}

static void fake_tick(void *self, uint64_t now)
{
    (void)self;
    ck_assert(now != 0);
    atomic_fetch_add(&fx.ticks, 1);
}

static void fake_stopping(void *self)
{
    (void)self;
}

static void fake_describe(void *self, char *out, size_t size)
{
    (void)self;
    snprintf(out, size, "a stuck request");
}

/* --- fixture --- */

int open_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

void net_setup(void)
{
    memset(&fx, 0, sizeof fx);
    snprintf(fx.dir, sizeof fx.dir, "/tmp/fp8d-net-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(fx.dir));
    snprintf(fx.path, sizeof fx.path, "%s/s", fx.dir);
    fx.options = (struct net_options){
        .socket_path = fx.path,
        .listen_fd = -1,
        .socket_mode = 0660,
        .connections_max = 32,
        .caps = {.meta = 4096, .payload = 128 << 20, .fds = FRAME_FDS_MAX},
        .output_high_water = 8 << 20,
        .output_limit = 256 << 20,
        .handshake_ms = 30000,
        .output_stall_ms = 30000,
        .memory_wait_ms = 200,
        .drain_ms = 5000,
    };
    fx.handler = net_fake_handler();
    fx.hooks = (struct server_hooks){.drain = fake_drain,
                                     .tick = fake_tick,
                                     .stopping = fake_stopping,
                                     .describe = fake_describe};
}

static _Atomic int started; /* 1: listens, -1: could not */

static void *server_main(void *arg)
{
    struct fault f = {0};
    (void)arg;
    int rc = server_new(&fx.options, &fx.server, &f);
    if (!rc)
        rc = server_listen(fx.server, &fx.handler, &fx.hooks, &f);
    if (rc)
        fprintf(stderr, "server: %s\n", f.text);
    started = rc ? -1 : 1;
    fx.result = rc ? rc : server_run(fx.server);
    if (fx.result <= 0)
        server_free(fx.server);
    return NULL;
}

void net_start(void)
{
    mem_pages_keep(0);
    fx.fds_before = open_fds();
    fx.blocks_before = mem_live_blocks();
    started = 0;
    ck_assert_int_eq(pthread_create(&fx.thread, NULL, server_main, NULL), 0);
    while (!started)
        usleep(500);
    ck_assert_int_eq(started, 1);
    fx.running = true;
}

void net_stop(void)
{
    server_stop(fx.server);
    pthread_join(fx.thread, NULL);
    fx.running = false;
    ck_assert_int_eq(fx.result, 0);
    ck_assert_int_eq(fx.opened, fx.closed);
    ck_assert_int_eq(fx.live, 0);
    ck_assert_int_eq(mem_live_blocks(), fx.blocks_before);
    /* libuv keeps two descriptors of its signal pipe for the life of the process */
    ck_assert_int_le(open_fds(), fx.fds_before + 2);
    ck_assert_int_ne(access(fx.path, F_OK), 0);
}

void net_teardown(void)
{
    char lock[160];
    if (fx.running)
        net_stop();
    snprintf(lock, sizeof lock, "%s.lock", fx.path);
    unlink(lock);
    unlink(fx.path);
    rmdir(fx.dir);
}
