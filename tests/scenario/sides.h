/* sides.h - one script of training requests run twice: sent one by one, and all at once. For tests
 * alone; every failure is a failed check. One thread. */
#ifndef FP8D_TESTS_SCENARIO_SIDES_H
#define FP8D_TESTS_SCENARIO_SIDES_H

#include "tests/scenario/ask_grad.h"

#define A_OUT 16
#define A_IN 32
#define B_OUT 32
#define B_IN 16
#define TOKENS 5
#define SENT 40 /* requests of a script, at most */

#define MANY 20 /* layers of model n */

/* Layers "a" and "b" (whose input is a's output) of model m, Adam; layers "0" to "19" of model n,
 * each like a; and a client that sends without waiting. */
struct side {
    struct desk *desk;
    struct ask a;
    uint64_t ids[SENT];
    struct desk_frame *frames[SENT];
    unsigned sent;
    uint64_t steps, contexts; /* for scripts to count in */
};

void side_open(struct side *s);
void side_close(struct side *s);

/* Requests: each adds its id. An input comes from a seed, unless it is the tensor `x_id`; an output
 * goes into the reply, or is filed as y_id, replacing what is there. */
void side_sent(struct side *s);
void side_forward(struct side *s, bool b, uint64_t seed, uint64_t x_id, uint64_t context,
                  uint64_t y_id);
void side_backward(struct side *s, bool b, uint64_t context, uint64_t seed, uint64_t dy_id,
                   uint64_t dx_id);
void side_forward_many(struct side *s, unsigned layer, uint64_t context); /* of model n */
void side_step(struct side *s, uint64_t number);
void side_gradient(struct side *s, bool b);
void side_eval(struct side *s, bool b);

typedef void (*script_cb)(struct side *s, uint64_t seed);

void side_loop(struct side *s, uint64_t seed); /* a script: layer a forward, backward, step, ... */

/* Opens a side, sends the script's requests, takes all answers. */
void side_run(struct side *s, script_cb script, uint64_t seed, bool at_once);
/* Replies and scaling state are the same, to the bit. */
void sides_equal(const struct side *one, const struct side *all, uint64_t seed);
/* Both; returns how many requests began ahead where they were sent at once. */
uint64_t sides_compare(script_cb script, uint64_t seed);

#endif
