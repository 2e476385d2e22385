/* hello.c - connect to fp8d and ask how it is.
 *
 *     cc hello.c -o hello $(pkg-config --cflags --libs libfp8d)
 *     ./hello [SOCKET]
 */
#include <fp8d.h>

#include <inttypes.h>
#include <stdio.h>

/* Each call returns 0 or a negative code; the sentence is in the error. */
static int fail(const struct fp8d_error *err)
{
    fprintf(stderr, "hello: %s (%s)\n", err->text, fp8d_code_name(err->code));
    return 1;
}

int main(int argc, char **argv)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    struct fp8d *c;

    /* No path: $FP8D_SOCKET, or where the system's daemon listens. */
    if (fp8d_connect(argc > 1 ? argv[1] : NULL, NULL, &c, &err))
        return fail(&err);

    const struct fp8d_server *server = fp8d_server_info(c);
    printf("this is libfp8d %s, there is %s %s on %s\n", fp8d_version(), server->name,
           server->version, server->device);

    /* A result owns all that its accessor points to, until it is freed. */
    if (fp8d_get_status(c, NULL, &r, &err)) {
        fp8d_close(c);
        return fail(&err);
    }
    const struct fp8d_status *s = fp8d_result_status(r);
    printf("backend %s (%s)\n", s->backend, s->backend_reason);
    printf("%u models, %" PRIu64 " forwards so far, %" PRIu64 " bytes in use\n", s->models,
           s->forwards_done, s->memory_used);
    fp8d_result_free(r);
    fp8d_close(c);
    return 0;
}
