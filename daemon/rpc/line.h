/* line.h - what session.c, which keeps lines and what runs, and sched.c, which decides who begins,
 * share with each other. Engine thread. */
#ifndef FP8D_DAEMON_RPC_LINE_H
#define FP8D_DAEMON_RPC_LINE_H

#include "daemon/rpc/session.h"

/* The first of a line that is not empty. */
struct request *line_take(struct session *s);
/* Whether the latest request of this id that ended went well; false for one that is not known. */
bool line_succeeded(const struct session *s, uint64_t id);

/* False for computing requests whose decisions no other of their kind can spoil: they read scales
 * and versions, and leave at most a copy of a weight behind that any of them would have made. */
bool request_changes(const struct request *rq);

void run_begins(struct session *s, struct request *rq);
void ahead_begins(struct session *s, struct request *rq);

#endif
