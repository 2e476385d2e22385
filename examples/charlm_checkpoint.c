#include "examples/charlm_checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAGIC 0x316d6c7261686331u

struct head {
    uint64_t magic, step, state, values;
};

static void path_of(char out[CHECKPOINT_PATH], const char *prefix, int step, const char *suffix)
{
    (void)snprintf(out, CHECKPOINT_PATH, "%s-%06d%s", prefix, step, suffix);
}

void checkpoint_model(char out[CHECKPOINT_PATH], const char *prefix, int step)
{
    path_of(out, prefix, step, ".safetensors");
}

/* The folder of a path, "." where it names none; and what follows. */
static const char *split(char folder[CHECKPOINT_PATH], const char *path)
{
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) + 1 : 1;
    (void)snprintf(folder, CHECKPOINT_PATH, "%.*s", n, slash ? path : ".");
    return slash ? slash + 1 : path;
}

/* N of "BASE-N.safetensors", else 0. */
static int number_of(const char *name, const char *base)
{
    size_t n = strlen(base);
    int at = 0, step = 0;
    if (strncmp(name, base, n) != 0 || sscanf(name + n, "-%d.safetensors%n", &step, &at) != 1)
        return 0;
    return at && !name[n + (size_t)at] ? step : 0;
}

int checkpoint_newest(const char *prefix)
{
    char folder[CHECKPOINT_PATH];
    const char *base = split(folder, prefix);
    DIR *d = opendir(folder);
    int newest = 0;
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        int step = number_of(e->d_name, base);
        newest = step > newest ? step : newest;
    }
    if (d)
        closedir(d);
    return newest;
}

static int sync_folder(const char *path)
{
    char folder[CHECKPOINT_PATH];
    (void)split(folder, path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd);
    if (fd >= 0)
        close(fd);
    return rc;
}

int checkpoint_write(const char *prefix, int step, uint64_t state, const float *values, size_t n)
{
    char path[CHECKPOINT_PATH], temporary[CHECKPOINT_PATH];
    struct head h = {MAGIC, (uint64_t)step, state, n};
    path_of(path, prefix, step, ".client");
    path_of(temporary, prefix, step, ".client.new");
    FILE *f = fopen(temporary, "wb");
    int rc = !f || fwrite(&h, sizeof h, 1, f) != 1 || fwrite(values, sizeof *values, n, f) != n ||
             fflush(f) || fsync(fileno(f));
    if (f && fclose(f))
        rc = 1;
    if (!rc)
        rc = rename(temporary, path) || sync_folder(path);
    if (rc)
        perror(path);
    return rc;
}

int checkpoint_read(const char *prefix, int step, uint64_t *state, float *values, size_t n)
{
    char path[CHECKPOINT_PATH];
    struct head h = {0};
    path_of(path, prefix, step, ".client");
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    int rc = fread(&h, sizeof h, 1, f) != 1 || h.magic != MAGIC || h.step != (uint64_t)step ||
             h.values != n || fread(values, sizeof *values, n, f) != n;
    fclose(f);
    if (rc)
        fprintf(stderr, "charlm: %s is not the client's half of checkpoint %d\n", path, step);
    *state = h.state;
    return rc;
}

void checkpoint_remove(const char *prefix, int step)
{
    char path[CHECKPOINT_PATH];
    checkpoint_model(path, prefix, step);
    (void)unlink(path);
    path_of(path, prefix, step, ".client");
    (void)unlink(path);
}
