/* exec.h - where threads meet, as a table.
 *
 * rpc and engine know only this; net/worker implements it with a thread and a loop, tests with an
 * inline twin (tests/unit/desk.h) that has neither. "Engine thread" below is the one thread
 * that owns all models, sessions and requests that have left the loop.
 */
#ifndef FP8D_DAEMON_EXEC_H
#define FP8D_DAEMON_EXEC_H

#include <stdbool.h>
#include <stdint.h>

/* Something to do on the engine thread. Intrusive: embedded in what it is about, so that posting
 * cannot fail. May be freed or posted again inside run. */
struct exec_task {
    void (*run)(struct exec_task *task);
    struct exec_task *next; /* the executor's */
};

/* One frame to a client. Made by rpc (on the engine or the loop thread), owned by the executor from
 * `reply` on, which calls `done` exactly once, on any thread, when the bytes are sent or dropped. */
struct reply {
    struct reply *next; /* the executor's */
    uint64_t conn;      /* number of the connection */
    uint64_t id;        /* request id; 0 for events */
    uint16_t type;
    uint16_t flags;     /* FRAME_FLAG_* */
    bool close_after;   /* close the connection once it is sent (GOAWAY) */
    uint32_t meta_len;
    const unsigned char *meta;
    uint64_t payload_len;
    const void *payload; /* host memory, constant until done */
    void (*done)(struct reply *r);
};

struct exec {
    void *self;
    /* Any thread. Runs in the order posted. */
    void (*post)(void *self, struct exec_task *task);
    /* Any thread. Frames of one connection are sent in the order given. A connection that is gone
     * swallows the reply. */
    void (*reply)(void *self, struct reply *r);
    /* Any thread: true once the connection has ended; what it waits for need not be started. */
    bool (*cancelled)(void *self, uint64_t conn);
    /* Monotonic nanoseconds. */
    uint64_t (*now)(void *self);
    /* How many tasks a thread that computes will post: while there are any, the engine thread looks
     * for them longer before it sleeps. NULL: it need not. */
    _Atomic unsigned *under_way;
};

#endif
