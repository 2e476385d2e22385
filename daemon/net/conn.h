/* conn.h - one client: its socket, its reader, its writer, its deadlines.
 *
 * Lives from conn_open until its handles are closed, which is always later than the call that ends
 * it: a connection may be ended from anywhere, also from inside the handler's calls, and its memory
 * stays valid until the loop comes round. It ends at EOF (half-close counts), at an error, when the
 * connecting process ends (pidfd, where visible), at a deadline, or after a GOAWAY. Loop thread.
 */
#ifndef FP8D_DAEMON_NET_CONN_H
#define FP8D_DAEMON_NET_CONN_H

#include "daemon/net/hub.h"
#include "daemon/net/intake.h"
#include "daemon/net/outbox.h"

#define CONN_FLUSH_MS 1000u /* how long a GOAWAY may take to leave */

struct conn {
    struct hub *hub;
    uint64_t number;
    pid_t pid;
    int fd;
    int pidfd;        /* of the peer, or -1 */
    uv_poll_t poll;   /* of fd */
    uv_poll_t watch;  /* of pidfd */
    unsigned handles; /* open ones */
    int events;       /* what poll waits for */
    bool sending;     /* inside flush: do not start another */
    bool leaving;     /* a GOAWAY is queued: nothing is read any more */
    bool ended;
    bool waiting; /* counted in hub->waiting */
    struct intake intake;
    struct outbox outbox;
    /* in uv_now() milliseconds; 0: not running */
    uint64_t frame_due;  /* the frame under way, or the first one, must be here */
    uint64_t seen;       /* intake.progress when frame_due was set */
    uint64_t moved_ms;   /* when the outbox last moved, or was last below high water */
    uint64_t moved;      /* outbox.total then */
    uint64_t wait_until; /* the wait for memory ends */
    uint64_t leave_due;  /* the GOAWAY must have left */
};

/* Takes the descriptor, whatever happens. A client that is refused (by the handler, or because all
 * places are taken) gets the reason and is gone. */
void conn_open(struct hub *hub, int fd);

/* Refuse a client that has no place: GOAWAY if it fits at once, close. Takes the descriptor. */
void conn_refuse(struct hub *hub, int fd, uint64_t number, const struct fault *why);

/* Queue a frame and send what can be sent. Owns r. */
void conn_send(struct conn *c, struct reply *r);

/* GOAWAY with the sentence, then close: at once when it is sent, after CONN_FLUSH_MS at most. */
void conn_leave(struct conn *c, const struct fault *why);

/* Now. `why` is for the log. */
void conn_end(struct conn *c, const char *why);

/* Look at the deadlines: once a second. */
void conn_tick(struct conn *c);

/* Ask again about a frame that waits for memory; nothing if none does. */
void conn_retry(struct conn *c);

#endif
