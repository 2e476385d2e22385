#include "client/ctl/bench_plan.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#define SIDE_MAX                                                                                   \
    16777216ull /* 2^24: no product of two of them and a size of an element overflows */
#define DEFAULT_M 16
#define DEFAULT_N 4096
#define DEFAULT_K 4096

const char *bench_plane_name(enum bench_plane plane)
{
    return plane == BENCH_RESIDENT ? "resident" : "inline";
}

/* --- --layer --- */

/* One whole number at *at, ended by `end`, which *at is moved behind. */
static bool take_number(const char **at, char end, uint64_t *out)
{
    char *stop;
    if (**at < '0' || **at > '9')
        return false;
    *out = strtoull(*at, &stop, 10); /* too large a number becomes the largest, which is refused */
    if (*stop != end)
        return false;
    *at = end ? stop + 1 : stop;
    return true;
}

static int check_side(const char *shown, char name, uint64_t value, uint64_t step, struct fault *f)
{
    if (value >= step && value <= SIDE_MAX && value % step == 0)
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "--layer is '%s': %c is %llu, needed %s from %llu to %llu", shown, name,
                     (unsigned long long)value, step == 1 ? "a number" : "a multiple of 16",
                     (unsigned long long)step, SIDE_MAX);
}

static int read_layer(const char *text, struct bench_plan *out, struct fault *f)
{
    char shown[128];
    const char *at = text;
    text_escape(shown, sizeof shown, text, strlen(text));
    if (!take_number(&at, ',', &out->m) || !take_number(&at, ',', &out->n) ||
        !take_number(&at, 0, &out->k))
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "--layer is '%s', needed three whole numbers M,N,K: tokens, out_features, "
                         "in_features",
                         shown);
    int rc = check_side(shown, 'M', out->m, 1, f);
    if (!rc)
        rc = check_side(shown, 'N', out->n, 16, f);
    return rc ? rc : check_side(shown, 'K', out->k, 16, f);
}

int bench_plan_read(const struct args *a, struct bench_plan *out, struct fault *f)
{
    static const enum fp8d_dtype dtypes[] = {FP8D_BF16, FP8D_BF16, FP8D_F16, FP8D_F32};
    int plane = args_choice(a, "plane"); /* 1: resident, 2: inline, else both */
    int mode = args_choice(a, "mode");
    struct bench_plan p = {
        .m = DEFAULT_M,
        .n = DEFAULT_N,
        .k = DEFAULT_K,
        .clients = args_has(a, "clients") ? args_number(a, "clients") : 1,
        .depth = args_has(a, "depth") ? args_number(a, "depth") : 1,
        .requests = args_number(a, "requests"),
        .dtype = dtypes[args_choice(a, "dtype")],
        .mode = mode ? (enum fp8d_mode)mode : FP8D_MODE_EVAL,
        .planes = {plane != 2, plane != 1},
    };
    int rc = args_has(a, "layer") ? read_layer(args_text(a, "layer"), &p, f) : 0;
    if (!rc)
        *out = p;
    return rc;
}

/* --- what a server takes --- */

static uint64_t bytes_of(const struct bench_plan *p, uint64_t rows, uint64_t cols)
{
    return rows * cols * (p->dtype == FP8D_F32 ? 4 : 2);
}

uint64_t bench_plan_input_bytes(const struct bench_plan *p)
{
    return bytes_of(p, p->m, p->k);
}

uint64_t bench_plan_output_bytes(const struct bench_plan *p)
{
    return bytes_of(p, p->m, p->n);
}

uint64_t bench_plan_weight_bytes(const struct bench_plan *p)
{
    return bytes_of(p, p->n, p->k);
}

double bench_plan_flop(const struct bench_plan *p)
{
    return 2.0 * (double)p->m * (double)p->n * (double)p->k;
}

static int check_payload(const struct bench_plan *p, const char *what, uint64_t bytes,
                         const struct fp8d_server *s, struct fault *f)
{
    if (bytes <= s->payload_bytes)
        return 0;
    return fault_set(
        f, FP8D_EINVALID_ARGUMENT,
        "--layer is '%llu,%llu,%llu': the %s has %llu bytes, needed at most %llu, this "
        "server's payload_bytes",
        (unsigned long long)p->m, (unsigned long long)p->n, (unsigned long long)p->k, what,
        (unsigned long long)bytes, (unsigned long long)s->payload_bytes);
}

static int check_depth(const struct bench_plan *p, const struct fp8d_server *s, struct fault *f)
{
    if (p->depth <= s->in_flight)
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "--depth is %u, needed at most %u, the requests that this server takes of a "
                     "connection at a time",
                     p->depth, s->in_flight);
}

/* A connection holds its input, an output for each under way, and one that replaces another. */
static int check_resident(const struct bench_plan *p, const struct fp8d_server *s, struct fault *f)
{
    double bytes = (double)bench_plan_input_bytes(p) +
                   (double)(p->depth + 1) * (double)bench_plan_output_bytes(p);
    if (bytes > (double)s->resident_bytes)
        return fault_set(
            f, FP8D_EINVALID_ARGUMENT,
            "--layer with --depth %u keeps %.0f bytes of a connection resident, needed "
            "at most %llu, this server's resident_bytes",
            p->depth, bytes, (unsigned long long)s->resident_bytes);
    return 0;
}

static int check_inline(const struct bench_plan *p, const struct fp8d_server *s, struct fault *f)
{
    return check_payload(p, "output", bench_plan_output_bytes(p), s, f);
}

int bench_plan_fits(const struct bench_plan *p, const struct fp8d_server *s, struct fault *f)
{
    if (p->clients >= s->connections) /* one more makes the model */
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "--clients is %u, needed at most %u: this server takes %u connections",
                         p->clients, s->connections ? s->connections - 1 : 0, s->connections);
    int rc = check_depth(p, s, f);
    if (!rc)
        rc = check_payload(p, "weight", bench_plan_weight_bytes(p), s, f);
    if (!rc)
        rc = check_payload(p, "input", bench_plan_input_bytes(p), s, f);
    if (!rc && p->planes[BENCH_RESIDENT])
        rc = check_resident(p, s, f);
    if (!rc && p->planes[BENCH_INLINE])
        rc = check_inline(p, s, f);
    return rc;
}
