#include "ckpt/safetensors.h" /* first: fp8d.h then leaves the status codes to base */

#include "tests/scenario/service.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

struct daemon_process server;
bool told;
struct fp8d_error err;

void service_start(void)
{
    const char *backend = getenv("FP8D_TEST_BACKEND");
    const char *args[] = {"--backend", backend ? backend : "cpu", "--set", "cpu_threads=1", NULL};
    char program[512];
    const char *build = getenv("FP8D_BUILDDIR");
    (void)snprintf(program, sizeof program, "%s/fp8d", build ? build : ".");
    told = false;
    ck_assert_int_eq(daemon_start(&server, program, args), 0);
}

void service_stop(void)
{
    int status = told ? daemon_wait(&server) : daemon_stop(&server);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}

struct fp8d *client(void)
{
    struct fp8d *c;
    ck_assert_msg(!fp8d_connect(server.socket, NULL, &c, &err), "%s", err.text);
    return c;
}

void load_square(struct fp8d *c, const char *model, uint64_t n)
{
    struct fault f = {0};
    char path[160];
    struct safetensors_plan plan;
    struct safetensors_tensor t = {
        .name = "big.weight", .dtype = DTYPE_F32, .rank = 2, .dims = {n, n}, .bytes = n * n * 4};
    (void)snprintf(path, sizeof path, "%s/%s.safetensors", server.dir, model);
    ck_assert_int_eq(safetensors_plan(&t, 1, NULL, 0, &plan, &f), 0);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    float *w = malloc(t.bytes);
    for (uint64_t i = 0; i < n * n; i++)
        w[i] = 1.0f / 64;
    ck_assert_int_eq(io_write_full(&io_posix, fd, plan.head, plan.head_bytes, 0, &f), 0);
    ck_assert_int_eq(io_write_full(&io_posix, fd, w, t.bytes, t.offset, &f), 0);
    free(w);
    close(fd);
    safetensors_plan_fini(&plan);
    ck_assert_msg(!fp8d_load_file(c, model, path, NULL, NULL, NULL, NULL, &err), "%s", err.text);
    unlink(path);
}
