/* replay_main.c - runs a fuzz target over files, without libFuzzer: `replay PATH...`, where a PATH
 * is a file, or a directory whose files are run (not those of its subdirectories). Speaks TAP: one
 * test for each PATH. A crash or abort is the failure. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Files run, or -1. */
static int replay_file(const char *path)
{
    FILE *in = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t len = 0, room = 0, n = 0;
    if (!in)
        return -1;
    do {
        len += n;
        if (len == room) {
            room = room * 2 + 4096;
            uint8_t *bigger = realloc(data, room);
            if (!bigger)
                break;
            data = bigger;
        }
        n = fread(data + len, 1, room - len, in);
    } while (n > 0);
    int good = feof(in);
    (void)fclose(in);
    /* a copy of the exact size, so that a sanitizer sees a read past the end */
    uint8_t *exact = good ? malloc(len ? len : 1) : NULL;
    if (exact) {
        memcpy(exact, data, len);
        (void)LLVMFuzzerTestOneInput(exact, len);
    }
    free(data);
    free(exact);
    return exact ? 1 : -1;
}

static int replay_dir(const char *path, DIR *dir)
{
    int count = 0;
    for (struct dirent *d; (d = readdir(dir));) {
        char file[4096];
        struct stat st;
        int n = snprintf(file, sizeof file, "%s/%s", path, d->d_name);
        if (n < 0 || (size_t)n >= sizeof file || stat(file, &st) || !S_ISREG(st.st_mode))
            continue;
        if (replay_file(file) < 0)
            return -1;
        count++;
    }
    return count;
}

static int replay(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return replay_file(path);
    int count = replay_dir(path, dir);
    (void)closedir(dir);
    return count;
}

int main(int argc, char **argv)
{
    int failed = argc < 2;
    printf("1..%d\n", argc - 1);
    for (int i = 1; i < argc; i++) {
        int n = replay(argv[i]);
        printf("%sok %d - %s: %d inputs\n", n > 0 ? "" : "not ", i, argv[i], n);
        failed |= n <= 0;
    }
    return failed;
}
