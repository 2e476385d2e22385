/* table.h - what is known of each request type: generated from proto/requests.h. */
#ifndef FP8D_DAEMON_RPC_TABLE_H
#define FP8D_DAEMON_RPC_TABLE_H

#include "proto/fp8d.pb-c.h"
#include "proto/requests.h"

#include <stdbool.h>

struct request;

struct request_row {
    uint16_t type;
    const char *name;
    enum request_class class;
    enum request_order order;
    const ProtobufCMessageDescriptor *descriptor;
    void (*run)(struct request *rq); /* engine thread; loop thread for ORDER_LOOP */
    bool computes; /* uses the compute queue: one of these at a time */
    bool pins;     /* takes a version of a model as it is: does not begin beside a change */
    bool payload;  /* may carry one */
    bool fds;      /* may carry descriptors */
};

/* NULL for an unknown type. */
const struct request_row *request_row(uint16_t type);

/* Handlers, one per row; each ends with request_answer or request_fail, at once or later. */
#define X(Name, NAME, type, class, order, snake) void rpc_##snake(struct request *rq);
REQUEST_LIST(X)
#undef X

#endif
