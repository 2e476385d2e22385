/* desk.h - rpc, engine and CPU backend with neither sockets nor threads of their own: requests go in
 * as frames and replies come out, in one thread (the loader's apart). The inline twin of exec.h. */
#ifndef FP8D_TESTS_DESK_H
#define FP8D_TESTS_DESK_H

#include "daemon/engine/engine.h"
#include "daemon/rpc/rpc.h"
#include "proto/fp8d.pb-c.h"
#include "proto/requests.h"

/* One frame that the daemon sent. */
struct desk_frame {
    struct desk_frame *next;
    uint64_t conn, id;
    uint16_t type, flags;
    uint32_t meta_len;
    unsigned char *meta;
    uint64_t payload_len;
    unsigned char *payload; /* 64-byte aligned */
};

struct desk {
    struct exec exec;
    struct ledger ledger;
    struct backend *backend;
    struct engine *engine;
    struct rpc *rpc;
    struct net_handler handler;
    struct exec_task *tasks, **tasks_last; /* posted, not yet run */
    struct desk_frame *frames, **frames_last;
    uint64_t now_ns;    /* the clock; tests move it */
    uint64_t gone;      /* a connection that `cancelled` reports as ended; 0: none */
    uint64_t next_id;
    enum net_verdict verdict; /* on the last frame sent */
    bool held;          /* tasks wait until desk_release */
    bool settles;       /* every task run is followed by desk_settle */
    void *lock;         /* of the task list: the loader posts from its own thread */
    struct exec_task *aside, **aside_last; /* set aside, see below */
};

/* NULL fields of the options are filled in; inline queues unless threads is not 0. With
 * FP8D_TEST_BACKEND=cuda the backend is that of rig.h, whose queue is waited for after every task
 * where an inline queue was asked for: what a task enqueued is complete when the next one runs. */
struct desk *desk_new(const struct engine_options *o, unsigned threads);
void desk_free(struct desk *d); /* asserts that nothing is left in the ledger */

void desk_open(struct desk *d, uint64_t conn);  /* connects and says Hello */
void desk_open_raw(struct desk *d, uint64_t conn);
void desk_close(struct desk *d, uint64_t conn);

/* Send one frame; returns its id. fds are taken. Runs what it posts unless held. */
uint64_t desk_send(struct desk *d, uint64_t conn, uint16_t type, const ProtobufCMessage *m,
                   const void *payload, uint64_t payload_len, int *fds, unsigned nfds);
/* The same for any bytes; *verdict (may be NULL) is what `begin` or `payload` said. */
uint64_t desk_send_raw(struct desk *d, uint64_t conn, const struct frame_header *h,
                       const void *meta, const void *payload, int *fds, enum net_verdict *verdict,
                       struct fault *f);

void desk_hold(struct desk *d);    /* posted tasks wait */
void desk_release(struct desk *d); /* and run */
void desk_pump(struct desk *d);    /* run what is posted, even if held */
bool desk_step(struct desk *d);    /* run one posted task, even if held; false: there was none */

/* All that the engine has enqueued is complete, its callbacks are called, what they posted waits. */
void desk_settle(struct desk *d);

/* Live blocks of base/mem.h, to compare before and after; 0 on a GPU, whose backend describes its
 * free memory in blocks that come and go with its layout. What it leaks all the same,
 * memory_returns_to_the_start counts. */
int64_t desk_blocks(void);

/* Stop a computing request in the middle: start it by desk_hold, desk_send and desk_step, then set
 * what the queue posted aside: it counts as running until desk_resume. */
void desk_set_aside(struct desk *d);
void desk_resume(struct desk *d);  /* post it again, and run it unless held */

/* Wait (pumping) for the final frame of an id and take it; NULL after 20 s of real time. */
struct desk_frame *desk_take(struct desk *d, uint64_t conn, uint64_t id);
/* Take it only if it is there. */
struct desk_frame *desk_peek(struct desk *d, uint64_t conn, uint64_t id);
void desk_frame_free(struct desk_frame *f);

/* The head of any reply. Unpacked; free with fp8d__v1__error_reply__free_unpacked(r, NULL). */
Fp8d__V1__ErrorReply *desk_head(const struct desk_frame *f);

/* Send, wait, and return the google.rpc code; the sentence goes to text (1024 bytes) if not NULL. */
unsigned desk_call(struct desk *d, uint64_t conn, uint16_t type, const ProtobufCMessage *m,
                   const void *payload, uint64_t payload_len, struct desk_frame **frame, char *text);

/* --- whole requests --- */

/* Put a safetensors file of one or more layers together and load it; code of the commit. */
struct desk_layer {
    const char *name;
    uint64_t out, in;
    const float *weight; /* F32 */
    const float *bias;   /* [out] or NULL */
};
unsigned desk_load(struct desk *d, uint64_t conn, const char *model, const struct desk_layer *layers,
                   size_t n, const Fp8d__V1__Recipe *recipe, char *text);

struct desk_forward {
    const char *model, *layer;
    Fp8d__V1__Mode mode;
    Fp8d__V1__FirstMicrobatch first;
    const float *x;      /* [tokens, in] */
    uint64_t tokens, in, out;
    uint64_t context_id;
    float *y;            /* [tokens, out], filled */
    Fp8d__V1__WeightCopy copy;   /* filled */
    float input_scale, weight_scale_inv; /* filled */
    bool uncalibrated;   /* of the input; filled */
};
unsigned desk_forward(struct desk *d, uint64_t conn, struct desk_forward *f, char *text);

/* QueryScaling with history, the whole model, as bytes: two equal states give equal bytes. */
struct desk_frame *desk_scaling(struct desk *d, uint64_t conn, const char *model);

#endif
