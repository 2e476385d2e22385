/* net_fixture.h - a server of daemon/net on a socket in a directory of its own, with a fake handler
 * that echoes, refuses, waits or stalls as the frame's type says; and a blocking client. */
#ifndef FP8D_TESTS_NET_FIXTURE_H
#define FP8D_TESTS_NET_FIXTURE_H

#include "daemon/net/server.h"

#include <pthread.h>
#include <stdatomic.h>

/* Types the fake handler knows; others are echoed from the loop thread. */
enum {
    FAKE_HELLO = 1,       /* must be first */
    FAKE_PING = 2,        /* empty reply from the loop thread */
    FAKE_ECHO = 3,        /* meta and payload come back from the engine thread */
    FAKE_ECHO_LOOP = 4,   /* the same from the loop thread */
    FAKE_REFUSE = 5,      /* answered in begin, NET_DISCARD */
    FAKE_WAIT = 6,        /* meta "TDn": NET_WAIT n times, then T(ake), D(iscard) or F(atal) */
    FAKE_FDS = 7,         /* meta of the reply: the first byte of each descriptor's file */
    FAKE_TIMERS = 8,      /* meta of the reply: one byte, server_timers */
    FAKE_BIG = 9,         /* meta "bytes": that much payload comes back, from the engine thread */
    FAKE_STUCK = 10,      /* the engine thread is held until fixture.release */
    FAKE_FATAL = 11,      /* NET_FATAL in begin */
    FAKE_WAIT_BEGIN = 12, /* begin itself says NET_WAIT, three times */
    FAKE_GOAWAY = 0x8001, /* the event; its meta is the sentence */
};

struct net_fixture {
    char dir[64];
    char path[128];
    struct net_options options;
    struct net_handler handler;
    struct server_hooks hooks;
    struct server *server;
    pthread_t thread;
    bool running;
    int result; /* of server_run */
    _Atomic int opened, closed, completed, abandoned, live, ticks;
    _Atomic bool release, refuse_clients;
    int fds_before; /* descriptors of this process before the server */
    int64_t blocks_before;
    uint64_t greeted[64]; /* loop thread: connections that said Hello, by slot */
};

extern struct net_fixture fx;

struct net_handler net_fake_handler(void);

/* Defaults, changed by the test before net_start. */
void net_setup(void);
void net_start(void);
/* SIGTERM's way; asserts a clean end, no leak of memory or descriptors, every request accounted
 * for. */
void net_stop(void);
/* net_stop if it runs, and remove the directory. */
void net_teardown(void);

/* Until the condition holds; fails the test after 5 s. */
#define net_until(cond)                                                                            \
    do {                                                                                           \
        int net_left = 5000;                                                                       \
        while (!(cond) && net_left-- > 0)                                                          \
            usleep(1000);                                                                          \
        ck_assert_msg(net_left > 0, "never came true: %s", #cond);                                 \
    } while (0)

int open_fds(void);

/* --- client --- */

struct frame_in {
    struct frame_header h;
    unsigned char meta[4096];
    unsigned char *payload; /* of malloc; free it */
};

int client_connect(void);
int client_hello(void); /* connected and greeted */
void client_send(int fd, unsigned type, uint64_t id, const void *meta, uint32_t meta_len,
                 const void *payload, uint64_t payload_len);
/* Header bytes of a frame into out[32]. */
void client_header(unsigned char *out, unsigned type, uint64_t id, uint32_t meta_len,
                   uint64_t payload_len, unsigned fds);
/* One sendmsg of all of it, with descriptors. Returns what sendmsg does. */
ssize_t client_sendmsg(int fd, const void *bytes, size_t len, const int *fds, unsigned n);
/* False at EOF or reset. */
bool client_recv(int fd, struct frame_in *in);
/* The next frame is a reply to id; its header. */
struct frame_header client_reply(int fd, uint64_t id);
/* The next frame is GOAWAY with this text somewhere in it, then comes EOF; closes fd. */
void client_goaway(int fd, const char *text);
/* n descriptors of unlinked files whose content is one byte, 'a' + i + first. */
void client_files(int *fds, unsigned n, unsigned first);
void client_close_files(int *fds, unsigned n);

#endif
