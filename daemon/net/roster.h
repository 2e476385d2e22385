/* roster.h - the connections that are alive, by number.
 *
 * A number is serial << 16 | slot with a serial that only grows: never 0, never reused. Changed by
 * the loop thread only; roster_alive may be asked by any thread, without a lock.
 */
#ifndef FP8D_DAEMON_NET_ROSTER_H
#define FP8D_DAEMON_NET_ROSTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ROSTER_MAX 65536u

struct conn;

struct roster {
    unsigned cap;
    unsigned live;
    uint64_t serial;
    _Atomic uint64_t *number; /* [cap]; 0: free */
    struct conn **conn;       /* [cap] */
    unsigned *free;           /* [cap - live]: slots to hand out, the last first */
};

/* cap: 1 to ROSTER_MAX. -ENOMEM when memory is short. */
int roster_init(struct roster *r, unsigned cap);
void roster_fini(struct roster *r); /* also on a zeroed roster */

/* The number of the new connection, or 0 when the roster is full. */
uint64_t roster_add(struct roster *r, struct conn *c);

/* From now on the number is not alive. Unknown numbers are ignored. */
void roster_remove(struct roster *r, uint64_t number);

/* NULL if it is not alive. */
struct conn *roster_find(const struct roster *r, uint64_t number);
bool roster_alive(const struct roster *r, uint64_t number);

#endif
