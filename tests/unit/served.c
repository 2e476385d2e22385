#include "tests/unit/served.h"

#include "base/mem.h"
#include "ckpt/safetensors.h"
#include "daemon/rpc/table.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void fill(float *v, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        v[i] = (float)(int)(seed >> 16) / 16384.0f - 2.0f;
    }
}

static void train(struct served *s, const char *layer, uint64_t in, uint64_t out)
{
    struct desk_forward f = {.model = "m",
                             .layer = layer,
                             .mode = FP8D__V1__MODE__MODE_TRAIN,
                             .x = s->x,
                             .tokens = 2,
                             .in = in,
                             .out = out};
    ck_assert_uint_eq(desk_forward(s->d, BYSTANDER, &f, NULL), 0);
}

void served_open(struct served *s, const struct engine_options *o, unsigned threads)
{
    Fp8d__V1__Recipe recipe = FP8D__V1__RECIPE__INIT;
    char text[1024];
    memset(s, 0, sizeof *s);
    s->blocks = mem_live_blocks();
    fill(s->wa, SERVED_OUT * SERVED_IN, 1);
    fill(s->wb, SERVED_IN * SERVED_OUT, 2);
    fill(s->bias, SERVED_OUT, 3);
    fill(s->x, SERVED_TOKENS * SERVED_IN, 4);
    recipe.amax_history_len = 4;
    s->d = desk_new(o, threads);
    desk_open(s->d, ATTACKER);
    desk_open(s->d, BYSTANDER);
    const struct desk_layer layers[] = {{"a", SERVED_OUT, SERVED_IN, s->wa, s->bias},
                                        {"b", SERVED_IN, SERVED_OUT, s->wb, NULL}};
    unsigned code = desk_load(s->d, BYSTANDER, "m", layers, 2, &recipe, text);
    ck_assert_msg(code == 0, "load: %s", text);
    for (unsigned i = 0; i < 2; i++) {
        train(s, "a", SERVED_IN, SERVED_OUT);
        train(s, "b", SERVED_OUT, SERVED_IN);
    }
}

void served_close(struct served *s)
{
    desk_close(s->d, ATTACKER);
    desk_close(s->d, BYSTANDER);
    desk_free(s->d);
    ck_assert_int_eq(mem_live_blocks(), s->blocks);
}

/* --- pictures --- */

void picture_take(struct served *s, struct picture *p)
{
    Fp8d__V1__ListModelsRequest list = FP8D__V1__LIST_MODELS_REQUEST__INIT;
    Fp8d__V1__DescribeModelRequest describe = FP8D__V1__DESCRIBE_MODEL_REQUEST__INIT;
    struct desk_forward f = {.model = "m",
                             .layer = "a",
                             .x = s->x,
                             .tokens = SERVED_TOKENS,
                             .in = SERVED_IN,
                             .out = SERVED_OUT,
                             .y = p->y};
    char text[1024];
    describe.model = str("m");
    unsigned code = desk_forward(s->d, BYSTANDER, &f, text);
    ck_assert_msg(code == 0, "the bystander's forward: %s", text);
    p->scaling = desk_scaling(s->d, BYSTANDER, "m");
    code = desk_call(s->d, BYSTANDER, REQUEST_LIST_MODELS, &list.base, NULL, 0, &p->models, NULL);
    code |= desk_call(s->d, BYSTANDER, REQUEST_DESCRIBE_MODEL, &describe.base, NULL, 0, &p->layers,
                      NULL);
    ck_assert(code == 0 && p->scaling);
    p->ledger = ledger_used(&s->d->ledger);
}

void picture_fini(struct picture *p)
{
    desk_frame_free(p->scaling);
    desk_frame_free(p->models);
    desk_frame_free(p->layers);
}

static void same_bytes(const struct desk_frame *a, const struct desk_frame *b, const char *what)
{
    ck_assert_msg(a->meta_len == b->meta_len && !memcmp(a->meta, b->meta, a->meta_len),
                  "%s changed", what);
}

void picture_same(struct served *s, const struct picture *p)
{
    struct picture now;
    picture_take(s, &now);
    same_bytes(p->scaling, now.scaling, "the scaling state");
    same_bytes(p->models, now.models, "the list of models");
    same_bytes(p->layers, now.layers, "the list of layers");
    ck_assert_mem_eq(p->y, now.y, sizeof now.y);
    ck_assert_uint_eq(p->ledger, now.ledger);
    picture_fini(&now);
}

/* --- calls --- */

unsigned served_call(struct served *s, uint64_t conn, uint16_t type, const ProtobufCMessage *m,
                     const void *payload, uint64_t payload_len, int *fds, unsigned nfds, char *text)
{
    uint64_t id = desk_send(s->d, conn, type, m, payload, payload_len, fds, nfds);
    struct desk_frame *f = desk_take(s->d, conn, id);
    ck_assert_msg(f != NULL, "no reply to a request of type %u", type);
    Fp8d__V1__ErrorReply *r = desk_head(f);
    unsigned code = r->head->code;
    (void)snprintf(text, 1024, "%s", r->head->message);
    fp8d__v1__error_reply__free_unpacked(r, NULL);
    desk_frame_free(f);
    return code;
}

uint64_t served_forward(struct served *s, uint64_t conn, Fp8d__V1__RequestHead *head,
                        uint64_t context_id)
{
    Fp8d__V1__ForwardRequest m = FP8D__V1__FORWARD_REQUEST__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    uint64_t dims[] = {SERVED_TOKENS, SERVED_IN};
    m.head = head;
    m.model = str("m");
    m.layer = str("a");
    m.context_id = context_id;
    m.mode = context_id ? FP8D__V1__MODE__MODE_TRAIN : FP8D__V1__MODE__MODE_EVAL;
    m.input = &ref;
    ref.dtype = FP8D__V1__DTYPE__DTYPE_F32;
    ref.n_dims = 2;
    ref.dims = dims;
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    ref.inline_bytes = &place;
    place.length = sizeof s->x;
    return desk_send(s->d, conn, REQUEST_FORWARD, &m.base, s->x, sizeof s->x, NULL, 0);
}

uint64_t served_start_forward(struct served *s, uint64_t conn, uint64_t context_id)
{
    desk_hold(s->d);
    uint64_t id = served_forward(s, conn, NULL, context_id);
    ck_assert(desk_step(s->d));
    desk_set_aside(s->d);
    desk_release(s->d);
    return id;
}

int served_code(struct served *s, uint64_t conn, uint64_t id, char *text)
{
    struct desk_frame *f = desk_peek(s->d, conn, id);
    if (!f)
        return -1;
    Fp8d__V1__ErrorReply *r = desk_head(f);
    int code = (int)r->head->code;
    (void)snprintf(text, 1024, "%s", r->head->message);
    fp8d__v1__error_reply__free_unpacked(r, NULL);
    desk_frame_free(f);
    return code;
}

Fp8d__V1__StatusReply *served_status(struct served *s, uint64_t conn)
{
    Fp8d__V1__StatusRequest m = FP8D__V1__STATUS_REQUEST__INIT;
    struct desk_frame *f = NULL;
    ck_assert_uint_eq(desk_call(s->d, conn, REQUEST_STATUS, &m.base, NULL, 0, &f, NULL), OK);
    Fp8d__V1__StatusReply *r = fp8d__v1__status_reply__unpack(NULL, f->meta_len, f->meta);
    desk_frame_free(f);
    ck_assert(r != NULL);
    return r;
}

uint64_t served_forwards_done(struct served *s)
{
    Fp8d__V1__StatusReply *r = served_status(s, BYSTANDER);
    uint64_t n = r->forwards_done;
    fp8d__v1__status_reply__free_unpacked(r, NULL);
    return n;
}

void served_says(const char *what, const char *text, const char *parts)
{
    char part[256];
    while (*parts) {
        size_t n = strcspn(parts, "|");
        (void)snprintf(part, sizeof part, "%.*s", (int)n, parts);
        ck_assert_msg(strstr(text, part), "%s: \"%s\" does not say \"%s\"", what, text, part);
        parts += n + (parts[n] == '|');
    }
}

void served_refuses(struct served *s, const struct picture *p, uint16_t type,
                    const ProtobufCMessage *m, unsigned code, const char *parts)
{
    char text[1024];
    unsigned got = desk_call(s->d, ATTACKER, type, m, NULL, 0, NULL, text);
    const char *what = request_row(type)->name;
    ck_assert_msg(got == code, "%s: code %u, needed %u: %s", what, got, code, text);
    served_says(what, text, parts);
    picture_same(s, p);
}

void served_accepts(struct served *s, uint64_t conn, uint16_t type, const ProtobufCMessage *m)
{
    char text[1024];
    unsigned code = desk_call(s->d, conn, type, m, NULL, 0, NULL, text);
    ck_assert_msg(code == OK, "%s: %s", request_row(type)->name, text);
}

unsigned served_load_fd(struct served *s, uint64_t conn, const char *name, int fd, char *text)
{
    Fp8d__V1__LoadBeginRequest b = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__LoadAttachRequest a = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest c = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    char *file = str("the-file");
    static uint64_t next = 1000;
    b.load_id = a.load_id = c.load_id = next++;
    b.model = str(name);
    a.n_names = 1;
    a.names = &file;
    unsigned code = served_call(s, conn, REQUEST_LOAD_BEGIN, &b.base, NULL, 0, NULL, 0, text);
    ck_assert_msg(code == 0, "begin: %s", text);
    code = served_call(s, conn, REQUEST_LOAD_ATTACH, &a.base, NULL, 0, &fd, 1, text);
    return code ? code : served_call(s, conn, REQUEST_LOAD_COMMIT, &c.base, NULL, 0, NULL, 0, text);
}

int served_file(unsigned layers)
{
    struct fault f = {0};
    struct safetensors_tensor t[16];
    char names[16][24];
    static const float zeros[256];
    struct safetensors_plan plan;
    ck_assert_uint_le(layers, 16);
    for (unsigned i = 0; i < layers; i++) {
        (void)snprintf(names[i], sizeof names[i], "l%u.weight", i);
        t[i] = (struct safetensors_tensor){names[i], DTYPE_F32, 2, {16, 16}, 0, sizeof zeros};
    }
    int rc = safetensors_plan(t, layers, NULL, 0, &plan, &f);
    int fd = memfd_create("served", MFD_CLOEXEC);
    ck_assert(!rc && fd >= 0);
    rc = io_write_full(&io_posix, fd, plan.head, plan.head_bytes, 0, &f);
    for (unsigned i = 0; !rc && i < layers; i++)
        rc = io_write_full(&io_posix, fd, zeros, sizeof zeros, t[i].offset, &f);
    ck_assert_int_eq(rc, 0);
    safetensors_plan_fini(&plan);
    return fd;
}
