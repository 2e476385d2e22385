#include "examples/charlm_checkpoint.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
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

int checkpoint_newest(const char *prefix)
{
    char pattern[CHECKPOINT_PATH];
    glob_t found;
    int step = 0;
    (void)snprintf(pattern, sizeof pattern, "%s-[0-9][0-9][0-9][0-9][0-9][0-9].safetensors",
                   prefix);
    if (!glob(pattern, 0, NULL, &found) && found.gl_pathc) /* sorted: the last is the greatest */
        step = atoi(found.gl_pathv[found.gl_pathc - 1] + strlen(prefix) + 1);
    globfree(&found);
    return step;
}

static int sync_folder(const char *path)
{
    char folder[CHECKPOINT_PATH];
    (void)snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    (void)snprintf(slash ? slash + 1 : folder, 2, "%s", slash ? "" : ".");
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
