/* chain.h - requests sent without waiting in between, each of which needs the one before.
 *
 *   rc = chain_sent(s, fp8d_submit_x(..., chain_next(s), err));    for each, with chain_call(s)
 *   return chain_collect(c, s, rc, out, err);
 *
 * Zeroed: empty. Lives on the stack of the call that sends them.
 */
#ifndef FP8D_CLIENT_CHAIN_H
#define FP8D_CLIENT_CHAIN_H

#include "client/conn.h"

#define CHAIN_MAX 3

struct chain {
    uint64_t ids[CHAIN_MAX]; /* of the requests sent, in order */
    unsigned sent;
};

/* Where the id of the next request goes. */
static inline uint64_t *chain_next(struct chain *s)
{
    return &s->ids[s->sent];
}

/* Count it if rc says that it was sent; returns rc. */
static inline int chain_sent(struct chain *s, int rc)
{
    s->sent += !rc;
    return rc;
}

/* What the next one says: it needs the last. Not for the first; valid while s is. */
static inline struct fp8d_call chain_call(const struct chain *s)
{
    return (struct fp8d_call){.needs = &s->ids[s->sent - 1], .needs_count = 1};
}

/* Take all replies, of which the last is for *out. The first failure, which explains the others, is
 * what is returned; with rc, that one, and what was sent is forgotten. */
int chain_collect(struct fp8d *c, const struct chain *s, int rc, struct fp8d_result **out,
                  struct fp8d_error *err);

#endif
