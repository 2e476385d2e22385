/* bench_files - loads and saves beside a plain parallel read into memory and a plain write + fsync of
 * the same bytes, in the same folder, interleaved; the page cache is warm.
 *
 *   bench_files FP8D-PROGRAM      one JSON object a line
 */
#include "base/mem.h"
#include "ckpt/safetensors.h"
#include "tests/bench/daemon_process.h"

#include "client/fp8d.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAYERS 8
#define SIDE 2896u /* about 32 MiB of F32 a layer: a multiple of 16 */
#define ROUNDS 7
#define BLOCK ((size_t)8 << 20)

static uint64_t file_bytes;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_files: %s: %s\n", what, why);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

static void say(const char *name, double ms, double base_ms, const char *baseline)
{
    printf("{\"name\":\"%s\",\"value\":%.4g,\"unit\":\"GB/s\",\"ratio\":%.4g,\"baseline\":\"%s\","
           "\"aim\":\"at least\",\"aim_ratio\":0.7}\n",
           name, (double)file_bytes / 1e6 / ms, base_ms / ms, baseline);
    fflush(stdout);
}

/* --- the file --- */

static void make_checkpoint(const char *path)
{
    struct fault f = {0};
    struct safetensors_plan plan;
    struct safetensors_tensor t[LAYERS];
    char names[LAYERS][32];
    float *w = malloc((size_t)SIDE * SIDE * 4);
    for (size_t i = 0; i < (size_t)SIDE * SIDE; i++)
        w[i] = (float)(int)(i * 2654435761u % 2001 - 1000) / 40000.0f;
    for (unsigned i = 0; i < LAYERS; i++) {
        (void)snprintf(names[i], sizeof names[i], "layer%u.weight", i);
        t[i] = (struct safetensors_tensor){names[i], DTYPE_F32, 2, {SIDE, SIDE}, 0,
                                           (uint64_t)SIDE * SIDE * 4};
    }
    if (safetensors_plan(t, LAYERS, NULL, 0, &plan, &f))
        die("plan", f.text);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || io_write_full(&io_posix, fd, plan.head, plan.head_bytes, 0, &f))
        die(path, "cannot be written");
    for (unsigned i = 0; i < LAYERS; i++)
        if (io_write_full(&io_posix, fd, w, t[i].bytes, t[i].offset, &f))
            die(path, f.text);
    file_bytes = plan.file_bytes;
    free(w);
    fsync(fd);
    close(fd);
    safetensors_plan_fini(&plan);
}

/* --- plain peers --- */

struct part {
    int fd;
    char *to;
    uint64_t begin, end;
};

static void *read_part(void *arg)
{
    struct part *p = arg;
    for (uint64_t at = p->begin; at < p->end;) {
        size_t n = p->end - at < BLOCK ? (size_t)(p->end - at) : BLOCK;
        ssize_t got = pread(p->fd, p->to + at, n, (off_t)at);
        if (got <= 0)
            die("plain read", "short");
        at += (uint64_t)got;
    }
    return NULL;
}

/* One thread a core, into memory that is fresh each time, as a load's is. */
static double plain_read(const char *path)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned n = cores < 1 ? 1 : cores > 16 ? 16 : (unsigned)cores;
    pthread_t thread[16];
    struct part part[16];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    double begin = clock_ms();
    char *to = mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (unsigned i = 0; i < n; i++) {
        part[i] = (struct part){fd, to, file_bytes * i / n, file_bytes * (i + 1) / n};
        pthread_create(&thread[i], NULL, read_part, &part[i]);
    }
    for (unsigned i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    double ms = clock_ms() - begin;
    munmap(to, file_bytes);
    close(fd);
    return ms;
}

static double plain_write(const char *path, const char *bytes)
{
    struct fault f;
    double begin = clock_ms();
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    for (uint64_t at = 0; at < file_bytes; at += BLOCK) {
        size_t n = file_bytes - at < BLOCK ? (size_t)(file_bytes - at) : BLOCK;
        if (io_write_full(&io_posix, fd, bytes + at, n, at, &f))
            die(path, f.text);
    }
    fsync(fd);
    close(fd);
    return clock_ms() - begin;
}

/* --- fp8d --- */

static double load(struct fp8d *c, const char *path)
{
    struct fp8d_error err;
    double begin = clock_ms();
    if (fp8d_load_file(c, "m", path, NULL, NULL, NULL, NULL, &err))
        die("load", err.text);
    return clock_ms() - begin;
}

static double save(struct fp8d *c, const char *path)
{
    struct fp8d_error err;
    double begin = clock_ms();
    if (fp8d_save_file(c, "m", path, NULL, NULL, NULL, NULL, &err))
        die("save", err.text);
    return clock_ms() - begin;
}

/* Peak of a load that replaces a model: old + new are the limit's, the rest is what it costs. */
static void say_peak(const struct daemon_process *d)
{
    double beyond = (double)daemon_memory(d, "VmHWM") - 2.0 * (double)file_bytes;
    printf("{\"name\":\"replacing_load_peak_beyond_old_and_new\",\"value\":%.4g,\"unit\":\"MiB\","
           "\"ratio\":%.4g,\"baseline\":\"64 MiB\",\"aim\":\"at most\",\"aim_ratio\":1}\n",
           beyond / 1048576, beyond / (64.0 * 1048576));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *args[] = {"--backend", "cpu", NULL};
    struct daemon_process d;
    struct fp8d_error err;
    struct fp8d *c;
    char in[128];
    char out[128];
    double ours[ROUNDS], theirs[ROUNDS];
    if (argc != 2)
        die("usage", "bench_files FP8D-PROGRAM");
    if (daemon_start(&d, argv[1], args))
        return 1;
    if (fp8d_connect(d.socket, NULL, &c, &err))
        die("connect", err.text);
    (void)snprintf(in, sizeof in, "%s/in.safetensors", d.dir);
    (void)snprintf(out, sizeof out, "%s/out.safetensors", d.dir);
    make_checkpoint(in);
    (void)load(c, in);
    for (size_t i = 0; i < ROUNDS; i++) {
        theirs[i] = plain_read(in);
        ours[i] = load(c, in);
    }
    say("load", median(ours, ROUNDS), median(theirs, ROUNDS),
        "plain parallel read of the file into fresh memory, page cache warm");
    say_peak(&d);
    char *bytes = malloc(file_bytes);
    memset(bytes, 1, file_bytes);
    for (size_t i = 0; i < ROUNDS; i++) {
        theirs[i] = plain_write(out, bytes);
        ours[i] = save(c, out);
    }
    say("save", median(ours, ROUNDS), median(theirs, ROUNDS),
        "plain write and fsync of the same bytes");
    free(bytes);
    unlink(in);
    unlink(out);
    fp8d_close(c);
    int status = daemon_stop(&d);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
