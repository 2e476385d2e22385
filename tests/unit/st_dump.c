/* st_dump.c - print what our reader sees in a safetensors file; write a sample with our writer.
 *
 *   st_dump FILE...       for each a line of JSON: {"tensors": {name: [dtype, [shape], offset,
 *                         bytes]}, "meta": {...}}, or {"error": sentence} and exit status 1 at last
 *   st_dump --write OUT   a file with every dtype, odd names and metadata; byte i of the data is i
 *
 * tests/oracle/check_safetensors.py compares both with the reference implementation.
 */
#include "base/mem.h"
#include "ckpt/json.h"
#include "ckpt/safetensors.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static void print_string(const char *s)
{
    json_t *v = json_string(s);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    fputs(text ? text : "null", stdout);
    mem_free(text);
    json_decref(v);
}

static void print_tensor(const struct safetensors_tensor *t)
{
    print_string(t->name);
    printf(": [\"%s\", [", dtype_name(t->dtype));
    for (unsigned i = 0; i < t->rank; i++)
        printf("%s%llu", i ? ", " : "", (unsigned long long)t->dims[i]);
    printf("], %llu, %llu]", (unsigned long long)t->offset, (unsigned long long)t->bytes);
}

static void print_file(const struct safetensors *s)
{
    printf("{\"tensors\": {");
    for (size_t i = 0; i < s->count; i++) {
        fputs(i ? ", " : "", stdout);
        print_tensor(&s->tensors[i]);
    }
    printf("}, \"meta\": {");
    for (size_t i = 0; i < s->meta_count; i++) {
        fputs(i ? ", " : "", stdout);
        print_string(s->meta[i].key);
        printf(": ");
        print_string(s->meta[i].value);
    }
    printf("}}\n");
}

static int fail(const struct fault *f)
{
    printf("{\"error\": ");
    print_string(f->text);
    printf("}\n");
    return 1;
}

static int dump(const char *path)
{
    struct io_stat st;
    struct fault f = {0};
    struct safetensors *s;
    int fd = io_open_read(&io_posix, path, &st, &f);
    if (fd < 0)
        return fail(&f);
    int rc = safetensors_read(&io_posix, fd, &st, NULL, &s, &f);
    (void)io_posix.close(NULL, fd);
    if (rc)
        return fail(&f);
    print_file(s);
    safetensors_free(s);
    return 0;
}

/* --- sample --- */

static const struct safetensors_tensor sample[] = {
#define X(type, number, width)                                                                     \
    {.name = "t." #type, .dtype = DTYPE_##type, .rank = 2, .dims = {2, 4}, .bytes = (width)},
    DTYPE_LIST(X)
#undef X
        {.name = "scalar", .dtype = DTYPE_F32, .bytes = 4},
    {.name = "nothing", .dtype = DTYPE_BF16, .rank = 3, .dims = {3, 0, 2}},
    {.name = "odd \"name\" \\ / \xc3\xa9\xf0\x9f\x98\x80",
     .dtype = DTYPE_U8,
     .rank = 1,
     .dims = {5},
     .bytes = 5},
};

static const struct safetensors_meta sample_meta[] = {
    {"format", "pt"},
    {"", "empty key"},
    {"quote\"", "line\nbreak\ttab \x01 del \x7f nel \xc2\x85 \xe2\x82\xac"},
};

#define SAMPLES (sizeof sample / sizeof sample[0])

static int write_all(const struct safetensors_plan *p, const char *path, struct fault *f)
{
    unsigned char data[4096];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)i;
    int fd = io_posix.open(NULL, path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0)
        return fault_set(f, fd, "cannot open %s", path);
    int rc = io_write_full(&io_posix, fd, p->head, p->head_bytes, 0, f);
    if (!rc)
        rc = io_write_full(&io_posix, fd, data, p->file_bytes - p->head_bytes, p->head_bytes, f);
    (void)io_posix.close(NULL, fd);
    return rc;
}

static int write_sample(const char *path)
{
    struct safetensors_tensor t[SAMPLES];
    struct safetensors_plan p;
    struct fault f = {0};
    memcpy(t, sample, sizeof t);
    int rc = safetensors_plan(t, SAMPLES, sample_meta, 3, &p, &f);
    if (rc)
        return fail(&f);
    rc = write_all(&p, path, &f);
    safetensors_plan_fini(&p);
    return rc ? fail(&f) : 0;
}

int main(int argc, char **argv)
{
    json_setup();
    if (argc == 3 && !strcmp(argv[1], "--write"))
        return write_sample(argv[2]);
    if (argc < 2) {
        fprintf(stderr, "usage: st_dump FILE... | st_dump --write OUT\n");
        return 2;
    }
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= dump(argv[i]);
    return failed;
}
