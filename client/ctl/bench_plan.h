/* bench_plan.h - what 'fp8ctl bench' is asked to do: its options, read and checked. Pure. */
#ifndef FP8D_CLIENT_CTL_BENCH_PLAN_H
#define FP8D_CLIENT_CTL_BENCH_PLAN_H

#include "base/fault.h"
#include "client/ctl/args.h"
#include "client/fp8d.h"

#include <stdbool.h>

#define BENCH_CLIENTS_MAX 256u
#define BENCH_DEPTH_MAX 512u /* with the freeing of each output: FP8D_PENDING_MAX */
#define BENCH_REQUESTS_MAX 1000000u

/* Where inputs and outputs of the forwards are. */
enum bench_plane {
    BENCH_RESIDENT = 0, /* both stay at the server */
    BENCH_INLINE = 1,   /* both travel */
    BENCH_PLANES,
};

struct bench_plan {
    uint64_t m, n, k; /* tokens, out_features, in_features */
    uint32_t clients, depth;
    uint32_t requests;     /* of each client on each plane; 0: as many as a time takes */
    enum fp8d_dtype dtype; /* of input, weight and output */
    enum fp8d_mode mode;
    bool planes[BENCH_PLANES];
};

const char *bench_plane_name(enum bench_plane plane); /* "resident", "inline" */

/* FP8D_EINVALID_ARGUMENT with a sentence that names option, value found and value needed. */
int bench_plan_read(const struct args *a, struct bench_plan *out, struct fault *f);

/* Does the plan fit the caps of this server? Likewise. */
int bench_plan_fits(const struct bench_plan *p, const struct fp8d_server *s, struct fault *f);

uint64_t bench_plan_input_bytes(const struct bench_plan *p);
uint64_t bench_plan_output_bytes(const struct bench_plan *p);
uint64_t bench_plan_weight_bytes(const struct bench_plan *p);
double bench_plan_flop(const struct bench_plan *p); /* of one forward: 2 M N K */

#endif
