#include "tests/scenario/stash.h"

#include "tests/oracle/codes.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- blobs --- */

void blob_free(struct blob *b)
{
    free(b->bytes);
    *b = (struct blob){0};
}

static struct safetensors *parse(const struct blob *b)
{
    struct safetensors *s = NULL;
    struct fault f = {0};
    uint64_t n;
    memcpy(&n, b->bytes, 8);
    int rc = safetensors_parse((const char *)b->bytes + 8, (size_t)n, b->size, NULL, &s, &f);
    ck_assert_msg(rc == 0, "%s", f.text);
    return s;
}

bool blob_has(const struct blob *b, const char *name)
{
    struct safetensors *s = parse(b);
    bool there = safetensors_find(s, name) != NULL;
    safetensors_free(s);
    return there;
}

const void *blob_tensor(const struct blob *b, const char *name, struct safetensors_tensor *t)
{
    struct safetensors *s = parse(b);
    const struct safetensors_tensor *found = safetensors_find(s, name);
    ck_assert_msg(found != NULL, "the file has no tensor %s", name);
    const void *bytes = b->bytes + found->offset;
    if (t) {
        *t = *found;
        t->name = name;
    }
    safetensors_free(s);
    return bytes;
}

void blob_equal(const struct blob *a, const struct blob *b)
{
    struct safetensors *s = parse(a);
    for (size_t i = 0; i < s->count; i++) {
        struct safetensors_tensor t;
        const void *other = blob_tensor(b, s->tensors[i].name, &t);
        ck_assert_msg(t.bytes == s->tensors[i].bytes &&
                          !memcmp(other, a->bytes + s->tensors[i].offset, t.bytes),
                      "tensor %s differs", s->tensors[i].name);
    }
    safetensors_free(s);
    ck_assert_uint_eq(a->size, b->size);
    ck_assert_msg(!memcmp(a->bytes, b->bytes, a->size), "the headers differ");
}

struct blob blob_read(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    ck_assert_msg(fd >= 0 && fstat(fd, &st) == 0, "cannot open %s", path);
    struct blob b = {malloc((size_t)st.st_size + 1), (size_t)st.st_size};
    ck_assert(b.bytes && pread(fd, b.bytes, b.size, 0) == (ssize_t)b.size);
    close(fd);
    return b;
}

int blob_fd(const struct blob *b)
{
    int fd = memfd_create("checkpoint", MFD_CLOEXEC);
    ck_assert(fd >= 0 && pwrite(fd, b->bytes, b->size, 0) == (ssize_t)b->size);
    return fd;
}

/* --- putting together --- */

static struct stash_tensor *find(struct stash *s, const char *name)
{
    for (size_t i = 0; i < s->count; i++)
        if (!strcmp(s->t[i].name, name))
            return &s->t[i];
    return NULL;
}

struct stash_tensor *stash_find(struct stash *s, const char *name)
{
    struct stash_tensor *t = find(s, name);
    ck_assert_msg(t != NULL, "the file has no tensor %s", name);
    return t;
}

void stash_put(struct stash *s, const char *name, enum dtype dtype, unsigned rank, uint64_t d0,
               uint64_t d1, const void *bytes)
{
    struct stash_tensor *t = find(s, name);
    if (!t)
        t = &s->t[s->count++];
    else
        free(t->data);
    ck_assert_uint_lt(s->count, 128);
    *t = (struct stash_tensor){.dtype = dtype, .rank = rank, .dims = {d0, d1, 1, 1}};
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    ck_assert(dtype_bytes(dtype, (rank > 0 ? d0 : 1) * (rank > 1 ? d1 : 1), &t->bytes));
    t->data = malloc(t->bytes + 1);
    ck_assert_ptr_nonnull(t->data);
    memcpy(t->data, bytes, t->bytes);
}

void stash_drop(struct stash *s, const char *name)
{
    struct stash_tensor *t = stash_find(s, name);
    free(t->data);
    *t = s->t[--s->count];
}

void stash_meta(struct stash *s, const char *key, const char *value)
{
    size_t i = 0;
    while (i < s->meta_count && strcmp(s->meta[i].key, key) != 0)
        i++;
    if (!value && i < s->meta_count)
        s->meta[i] = s->meta[--s->meta_count];
    if (!value)
        return;
    ck_assert_uint_lt(i, 4);
    (void)snprintf(s->meta[i].key, sizeof s->meta[i].key, "%s", key);
    (void)snprintf(s->meta[i].value, sizeof s->meta[i].value, "%s", value);
    s->meta_count += i == s->meta_count;
}

void stash_from(struct stash *s, const struct blob *b)
{
    struct safetensors *from = parse(b);
    for (size_t i = 0; i < from->count; i++) {
        const struct safetensors_tensor *t = &from->tensors[i];
        stash_put(s, t->name, t->dtype, t->rank, t->dims[0], t->dims[1], b->bytes + t->offset);
    }
    for (size_t i = 0; i < from->meta_count; i++)
        stash_meta(s, from->meta[i].key, from->meta[i].value);
    safetensors_free(from);
}

struct blob stash_blob(const struct stash *s)
{
    struct safetensors_tensor t[128];
    struct safetensors_meta meta[4];
    struct safetensors_plan plan;
    struct fault f = {0};
    for (size_t i = 0; i < s->count; i++) {
        t[i] = (struct safetensors_tensor){.name = s->t[i].name,
                                           .dtype = s->t[i].dtype,
                                           .rank = s->t[i].rank,
                                           .bytes = s->t[i].bytes};
        memcpy(t[i].dims, s->t[i].dims, sizeof s->t[i].dims);
    }
    for (size_t i = 0; i < s->meta_count; i++)
        meta[i] = (struct safetensors_meta){s->meta[i].key, s->meta[i].value};
    int rc = safetensors_plan(t, s->count, meta, s->meta_count, &plan, &f);
    ck_assert_msg(rc == 0, "%s", f.text);
    struct blob b = {malloc(plan.file_bytes + 1), plan.file_bytes};
    ck_assert_ptr_nonnull(b.bytes);
    memcpy(b.bytes, plan.head, plan.head_bytes);
    for (size_t i = 0; i < s->count; i++)
        memcpy(b.bytes + t[i].offset, s->t[i].data, t[i].bytes);
    safetensors_plan_fini(&plan);
    return b;
}

void stash_free(struct stash *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->t[i].data);
    *s = (struct stash){0};
}

void *stash_draw(uint64_t seed, enum dtype dtype, size_t n, double spread)
{
    float *x = draw_normal(seed, n, spread);
    if (dtype == DTYPE_F32)
        return x;
    uint16_t *half = malloc(n * sizeof *half + 1);
    ck_assert_ptr_nonnull(half);
    for (size_t i = 0; i < n; i++)
        half[i] = half_code((double)x[i], dtype == DTYPE_BF16);
    free(x);
    return half;
}

struct blob stash_pair(void)
{
    struct stash s = {0};
    void *a = stash_draw(1, DTYPE_F32, (size_t)STASH_A_OUT * STASH_A_IN, 0.02);
    void *b = stash_draw(2, DTYPE_BF16, (size_t)STASH_B_OUT * STASH_B_IN, 3.0);
    void *bias = stash_draw(3, DTYPE_BF16, STASH_A_OUT, 1.0);
    stash_put(&s, "a.weight", DTYPE_F32, 2, STASH_A_OUT, STASH_A_IN, a);
    stash_put(&s, "a.bias", DTYPE_BF16, 1, STASH_A_OUT, 1, bias);
    stash_put(&s, "b-c.weight", DTYPE_BF16, 2, STASH_B_OUT, STASH_B_IN, b);
    struct blob out = stash_blob(&s);
    stash_free(&s);
    free(a);
    free(b);
    free(bias);
    return out;
}

void stash_put_site(struct stash *s, const char *layer, const char *site, uint32_t len,
                    const struct stash_site *v)
{
    char name[64];
    const float scaling[4] = {v->scale, v->scale_inv, v->amax_last, v->calibration_amax};
    float *zeros = calloc(len, sizeof *zeros);
    ck_assert_ptr_nonnull(zeros);
    (void)snprintf(name, sizeof name, "%s.fp8d.%s.scaling", layer, site);
    stash_put(s, name, DTYPE_F32, 1, 4, 1, scaling);
    (void)snprintf(name, sizeof name, "%s.fp8d.%s.amax_history", layer, site);
    stash_put(s, name, DTYPE_F32, 1, len, 1, v->history ? v->history : zeros);
    (void)snprintf(name, sizeof name, "%s.fp8d.%s.counters", layer, site);
    stash_put(s, name, DTYPE_U64, 1, 8, 1, v->counters);
    free(zeros);
}

void stash_put_model(struct stash *s, uint64_t version, bool frozen, bool calibrating,
                     uint32_t history_len)
{
    const uint64_t model[4] = {1, version, frozen, calibrating};
    char recipe[160];
    (void)snprintf(recipe, sizeof recipe,
                   "{\"kind\":\"delayed\",\"fp8_format\":\"hybrid\",\"amax_algo\":\"max\","
                   "\"amax_history_len\":%u,\"margin\":0}",
                   history_len);
    stash_put(s, "fp8d.model", DTYPE_U64, 1, 4, 1, model);
    stash_meta(s, "fp8d_format", "1");
    stash_meta(s, "fp8d_recipe", recipe);
}

/* --- through a client --- */

static char *str(const char *s)
{
    return (char *)(uintptr_t)s;
}

static unsigned send_fd(struct ask *a, uint16_t type, const ProtobufCMessage *m, int fd)
{
    return ask_take(a, desk_send(a->desk, a->conn, type, m, NULL, 0, &fd, 1));
}

static unsigned begin(struct ask *a, uint64_t id, const char *model, const Fp8d__V1__LoadOptions *o)
{
    Fp8d__V1__LoadBeginRequest m = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    m.load_id = id;
    m.model = str(model);
    m.options = (Fp8d__V1__LoadOptions *)(uintptr_t)o;
    return desk_call(a->desk, a->conn, REQUEST_LOAD_BEGIN, &m.base, NULL, 0, NULL, a->text);
}

unsigned stash_load_fd(struct ask *a, const char *model, int fd, const Fp8d__V1__LoadOptions *o,
                       Fp8d__V1__LoadCommitReply **reply)
{
    static uint64_t id = 5000;
    Fp8d__V1__LoadAttachRequest at = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest c = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    struct desk_frame *frame = NULL;
    char *name = str("the-file");
    at.load_id = c.load_id = ++id;
    at.n_names = 1;
    at.names = &name;
    unsigned code = begin(a, id, model, o);
    if (code) {
        close(fd);
        return code;
    }
    code = send_fd(a, REQUEST_LOAD_ATTACH, &at.base, fd);
    ck_assert_msg(code == 0, "attach: %s", a->text);
    code = desk_call(a->desk, a->conn, REQUEST_LOAD_COMMIT, &c.base, NULL, 0, &frame, a->text);
    if (!code && reply)
        *reply = fp8d__v1__load_commit_reply__unpack(NULL, frame->meta_len, frame->meta);
    desk_frame_free(frame);
    return code;
}

unsigned stash_load(struct ask *a, const char *model, const struct blob *file,
                    const Fp8d__V1__LoadOptions *o, Fp8d__V1__LoadCommitReply **reply)
{
    return stash_load_fd(a, model, blob_fd(file), o, reply);
}

static struct blob read_back(int fd)
{
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    struct blob out = {malloc((size_t)st.st_size + 1), (size_t)st.st_size};
    ck_assert(out.bytes && pread(fd, out.bytes, out.size, 0) == (ssize_t)out.size);
    close(fd);
    return out;
}

static struct blob save(struct ask *a, const char *model, bool no_optimizer)
{
    static uint64_t id = 9000;
    Fp8d__V1__SaveBeginRequest b = FP8D__V1__SAVE_BEGIN_REQUEST__INIT;
    Fp8d__V1__SaveAttachRequest at = FP8D__V1__SAVE_ATTACH_REQUEST__INIT;
    Fp8d__V1__SaveCommitRequest c = FP8D__V1__SAVE_COMMIT_REQUEST__INIT;
    char *name = str("a-save");
    int fd = memfd_create("save", MFD_CLOEXEC);
    b.save_id = at.save_id = c.save_id = ++id;
    b.model = str(model);
    b.no_optimizer = no_optimizer;
    at.n_names = 1;
    at.names = &name;
    unsigned code =
        desk_call(a->desk, a->conn, REQUEST_SAVE_BEGIN, &b.base, NULL, 0, NULL, a->text);
    if (!code)
        code = send_fd(a, REQUEST_SAVE_ATTACH, &at.base, dup(fd));
    if (!code)
        code = desk_call(a->desk, a->conn, REQUEST_SAVE_COMMIT, &c.base, NULL, 0, NULL, a->text);
    ck_assert_msg(code == 0, "save: %s", a->text);
    return read_back(fd);
}

struct blob stash_save(struct ask *a, const char *model)
{
    return save(a, model, false);
}

struct blob stash_save_weights(struct ask *a, const char *model)
{
    return save(a, model, true);
}

struct stash_saving stash_save_sent(struct desk *d, uint64_t conn, const char *model)
{
    struct stash_saving s = {ask_open(d, conn), memfd_create("save", MFD_CLOEXEC), 0};
    Fp8d__V1__SaveBeginRequest b = FP8D__V1__SAVE_BEGIN_REQUEST__INIT;
    Fp8d__V1__SaveAttachRequest at = FP8D__V1__SAVE_ATTACH_REQUEST__INIT;
    Fp8d__V1__SaveCommitRequest c = FP8D__V1__SAVE_COMMIT_REQUEST__INIT;
    char *name = str("a-save");
    int fd = dup(s.fd);
    b.model = str(model);
    b.save_id = at.save_id = c.save_id = 1;
    at.n_names = 1;
    at.names = &name;
    uint64_t sent[2] = {
        desk_send(d, conn, REQUEST_SAVE_BEGIN, &b.base, NULL, 0, NULL, 0),
        desk_send(d, conn, REQUEST_SAVE_ATTACH, &at.base, NULL, 0, &fd, 1),
    };
    s.commit = desk_send(d, conn, REQUEST_SAVE_COMMIT, &c.base, NULL, 0, NULL, 0);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(!ask_take(&s.a, sent[i]), "%s", s.a.text);
    return s;
}

struct blob stash_saved(struct stash_saving *s)
{
    ck_assert_msg(!ask_take(&s->a, s->commit), "save: %s", s->a.text);
    ask_close(&s->a);
    return read_back(s->fd);
}

static bool any(char **lines, size_t n, const char *part)
{
    for (size_t i = 0; i < n; i++)
        if (strstr(lines[i], part))
            return true;
    return false;
}

bool stash_noted(const Fp8d__V1__LoadCommitReply *r, const char *part)
{
    return any(r->report->notes, r->report->n_notes, part);
}

bool stash_converted(const Fp8d__V1__LoadCommitReply *r, const char *part)
{
    return any(r->report->converted, r->report->n_converted, part);
}

void stash_report_free(Fp8d__V1__LoadCommitReply *r)
{
    fp8d__v1__load_commit_reply__free_unpacked(r, NULL);
}
