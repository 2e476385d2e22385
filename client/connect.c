/* The beginning and the end of a connection. */
#include "client/conn.h"

#include "base/mem.h"
#include "client/transport.h"
#include "proto/fp8d.pb-c.h"

#include <errno.h>
#include <unistd.h>

#define CONNECT_TIMEOUT_MS 5000

/* What may be sent before the server has said what it takes: the greeting. */
static const struct fp8d_server before_hello = {
    .meta_bytes = FRAME_META_DEFAULT,
    .in_flight = 1,
};

static void free_handle(struct fp8d *c)
{
    transport_close(c->fd);
    pending_fini(&c->pending);
    reader_fini(&c->reader);
    fp8d_result_free(c->hello);
    mem_free(c->packed);
    mem_free(c);
}

static int new_handle(const char *path, uint64_t deadline, struct fp8d **out, struct fault *f)
{
    struct fp8d *c = mem_zalloc(sizeof *c);
    if (!c)
        return fault_set(f, -ENOMEM, "no memory for a connection");
    c->pid = getpid();
    c->server = before_hello;
    c->caps = (struct frame_caps){.meta = FRAME_META_HARD};
    reader_init(&c->reader);
    c->fd = transport_connect(path, deadline, f);
    if (c->fd < 0) {
        int rc = c->fd;
        free_handle(c);
        return rc;
    }
    *out = c;
    return 0;
}

/* Every refusal of the greeting names both sides, so that a mismatch of versions explains itself.
 */
static int refused(struct fp8d_error *err)
{
    struct fault f = {.code = err->code,
                      .stage = (enum fault_stage)err->stage,
                      .retry_after_ms = err->retry_after_ms};
    fault_set(&f, err->code, "%s (this is libfp8d %s, framing %d, schema %d.%d)", err->text,
              fp8d_version(), FRAME_VERSION, SCHEMA_MAJOR, SCHEMA_MINOR);
    f.retry_after_ms = err->retry_after_ms;
    return call_error(&f, err);
}

static int check_versions(const struct fp8d_server *s, struct fp8d_error *err)
{
    struct fault f = {0};
    int64_t minor = s->schema_minor; /* signed, for a minimum of 0 */
    if (s->schema_major == SCHEMA_MAJOR && minor >= SCHEMA_MIN_MINOR &&
        s->min_schema_minor <= SCHEMA_MINOR)
        return 0;
    fault_set(&f, FP8D_EFAILED_PRECONDITION,
              "the server speaks schema %u.%u and serves clients from %u.%u on", s->schema_major,
              s->schema_minor, s->schema_major, s->min_schema_minor);
    call_error(&f, err);
    return refused(err);
}

/* Caps the server left out are those of fp8d-protocol(7). */
static void take_server(struct fp8d *c)
{
    struct fp8d_server *s = &c->server;
    *s = *(const struct fp8d_server *)c->hello->body;
    s->meta_bytes = s->meta_bytes ? s->meta_bytes : FRAME_META_DEFAULT;
    s->payload_bytes = s->payload_bytes ? s->payload_bytes : FRAME_PAYLOAD_DEFAULT;
    s->in_flight = s->in_flight ? s->in_flight : 1;
    c->caps.payload = s->payload_bytes;
}

static int greet(struct fp8d *c, const struct fp8d_options *o, struct fp8d_error *err)
{
    Fp8d__V1__HelloRequest m = FP8D__V1__HELLO_REQUEST__INIT;
    m.schema_major = SCHEMA_MAJOR;
    m.schema_minor = SCHEMA_MINOR;
    m.min_schema_minor = SCHEMA_MIN_MINOR;
    m.client_name = (char *)(o->client_name ? o->client_name : "libfp8d");
    m.client_version = (char *)(o->client_version ? o->client_version : fp8d_version());
    struct request r = {.type = REQUEST_HELLO, .msg = &m.base};
    uint64_t id = 0;
    int rc = call_submit(c, &r, NULL, &id, err);
    rc = call_finish(c, rc, id, &c->hello, err);
    if (rc)
        return refused(err);
    rc = check_versions(c->hello->body, err);
    if (!rc)
        take_server(c);
    return rc;
}

static int connect_path(const char *path, const struct fp8d_options *o, struct fp8d **out,
                        struct fp8d_error *err)
{
    struct fault f = {0};
    struct fp8d *c = NULL;
    uint32_t ms = o->connect_timeout_ms ? o->connect_timeout_ms : CONNECT_TIMEOUT_MS;
    int rc = new_handle(path, call_deadline(ms), &c, &f);
    if (rc)
        return call_error(&f, err);
    c->call_timeout_ms = ms;
    rc = greet(c, o, err);
    if (rc) {
        free_handle(c);
        return rc;
    }
    c->call_timeout_ms = o->call_timeout_ms;
    c->spin_ns = (uint64_t)o->spin_us * 1000;
    *out = c;
    return 0;
}

int fp8d_connect(const char *path, const struct fp8d_options *options, struct fp8d **out,
                 struct fp8d_error *err)
{
    static const struct fp8d_options defaults;
    struct fp8d_error unwanted;
    char found[108];
    err = err ? err : &unwanted;
    if (!path) {
        int rc = fp8d_default_socket(found, sizeof found, err);
        if (rc)
            return rc;
        path = found;
    }
    return connect_path(path, options ? options : &defaults, out, err);
}

void fp8d_close(struct fp8d *c)
{
    if (c)
        free_handle(c);
}

const struct fp8d_server *fp8d_server_info(const struct fp8d *c)
{
    return &c->server;
}
