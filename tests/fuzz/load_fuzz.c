/* load_fuzz.c - any file loaded in the place of a served model: it is refused and changes nothing,
 * or it becomes a model that forwards, trains and steps, and is the same after a save and a load.
 *
 * Byte 0 of an input: 1 no_strict, 2 primary_fp8, 4 allow_nan, 8 finish_calibration, 16
 * no_optimizer, 32 and 64 dequantize (to F32, to BF16). Byte 1, of the recipe: kind, format,
 * algorithm and accumulation in two bits each. The rest is the file. load_mutate.c makes new ones.
 */
#include "base/mem.h"
#include "base/text.h"
#include "ckpt/safetensors.h"
#include "daemon/engine/model.h"
#include "tests/unit/desk.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(what)                                                                              \
    do {                                                                                           \
        if (!(what))                                                                               \
            abort();                                                                               \
    } while (0)

#define INPUT_MAX 65536
#define MEMORY_CAP ((uint64_t)12 << 20)    /* for the served model and the one that is loaded */
#define MEMORY_AFTER ((uint64_t)128 << 20) /* and for three of it, and what a step takes */
#define CHANGES_MAX ((uint64_t)1 << 62)    /* docs/checkpoints.md 4 */
#define SAVED_NAME_MAX 994                 /* of a layer; docs/checkpoints.md 1 */
#define CLIENT 1
#define TOKENS 2

/* google.rpc codes. */
enum { INVALID_ARGUMENT = 3, RESOURCE_EXHAUSTED = 8, FAILED_PRECONDITION = 9, DATA_LOSS = 15 };

struct blob {
    unsigned char *bytes;
    size_t size;
};

struct player {
    struct desk *d;
    struct ledger ledger;
    uint64_t next; /* load_id, save_id */
    char text[1024];
};

/* --- requests --- */

static char *str(const char *s)
{
    return (char *)(uintptr_t)s;
}

static unsigned ask(struct player *p, uint16_t type, const ProtobufCMessage *m)
{
    return desk_call(p->d, CLIENT, type, m, NULL, 0, NULL, p->text);
}

/* A request with a descriptor, which it takes; it must succeed. */
static void attach(struct player *p, uint16_t type, const ProtobufCMessage *m, int fd)
{
    uint64_t id = desk_send(p->d, CLIENT, type, m, NULL, 0, &fd, 1);
    struct desk_frame *f = desk_take(p->d, CLIENT, id);
    REQUIRE(f);
    Fp8d__V1__ErrorReply *r = desk_head(f);
    REQUIRE(r->head->code == 0);
    fp8d__v1__error_reply__free_unpacked(r, NULL);
    desk_frame_free(f);
}

static unsigned load(struct player *p, const char *model, const Fp8d__V1__LoadOptions *o,
                     const void *bytes, size_t size)
{
    Fp8d__V1__LoadBeginRequest b = FP8D__V1__LOAD_BEGIN_REQUEST__INIT;
    Fp8d__V1__LoadAttachRequest a = FP8D__V1__LOAD_ATTACH_REQUEST__INIT;
    Fp8d__V1__LoadCommitRequest c = FP8D__V1__LOAD_COMMIT_REQUEST__INIT;
    char *name = str("the-file");
    b.load_id = a.load_id = c.load_id = ++p->next;
    b.model = str(model);
    b.options = (Fp8d__V1__LoadOptions *)(uintptr_t)o;
    unsigned code = ask(p, REQUEST_LOAD_BEGIN, &b.base);
    if (code)
        return code;
    int fd = memfd_create("load", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && pwrite(fd, bytes, size, 0) == (ssize_t)size);
    a.n_names = 1;
    a.names = &name;
    attach(p, REQUEST_LOAD_ATTACH, &a.base, fd);
    return ask(p, REQUEST_LOAD_COMMIT, &c.base);
}

static struct blob save(struct player *p, const char *model)
{
    Fp8d__V1__SaveBeginRequest b = FP8D__V1__SAVE_BEGIN_REQUEST__INIT;
    Fp8d__V1__SaveAttachRequest a = FP8D__V1__SAVE_ATTACH_REQUEST__INIT;
    Fp8d__V1__SaveCommitRequest c = FP8D__V1__SAVE_COMMIT_REQUEST__INIT;
    char *name = str("a-save");
    struct stat st;
    int fd = memfd_create("save", MFD_CLOEXEC);
    b.save_id = a.save_id = c.save_id = ++p->next;
    b.model = str(model);
    a.n_names = 1;
    a.names = &name;
    REQUIRE(ask(p, REQUEST_SAVE_BEGIN, &b.base) == 0);
    attach(p, REQUEST_SAVE_ATTACH, &a.base, dup(fd));
    REQUIRE(ask(p, REQUEST_SAVE_COMMIT, &c.base) == 0);
    REQUIRE(fstat(fd, &st) == 0);
    struct blob out = {malloc((size_t)st.st_size), (size_t)st.st_size};
    REQUIRE(out.bytes && pread(fd, out.bytes, out.size, 0) == (ssize_t)out.size);
    close(fd);
    return out;
}

/* The model is, to the byte, what the save says. */
static void check_saved(struct player *p, const char *model, const struct blob *is)
{
    struct blob now = save(p, model);
    REQUIRE(now.size == is->size && !memcmp(now.bytes, is->bytes, is->size));
    free(now.bytes);
}

/* A save can be loaded, and gives the same save. */
static void check_loads_again(struct player *p, const char *model, const struct blob *b)
{
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    o.allow_nan = true;
    REQUIRE(load(p, model, &o, b->bytes, b->size) == 0);
    check_saved(p, model, b);
}

/* --- what a model that was loaded does --- */

/* [rows, cols] of small numbers. */
static float *numbers(uint64_t rows, uint64_t cols)
{
    float *x = malloc(rows * cols * sizeof *x);
    REQUIRE(x);
    for (uint64_t i = 0; i < rows * cols; i++)
        x[i] = (float)(i % 7) * 0.25f - 0.75f;
    return x;
}

/* Of the context 1, which it ends. */
static struct desk_frame *backward(struct player *p, const struct layer *l)
{
    Fp8d__V1__BackwardRequest m = FP8D__V1__BACKWARD_REQUEST__INIT;
    Fp8d__V1__TensorRef ref = FP8D__V1__TENSOR_REF__INIT;
    Fp8d__V1__InlinePlace place = FP8D__V1__INLINE_PLACE__INIT;
    struct desk_frame *f = NULL;
    float *dy = numbers(TOKENS, l->out);
    uint64_t dims[2] = {TOKENS, l->out};
    m.context_id = 1;
    m.grad_output = &ref;
    ref.dtype = FP8D__V1__DTYPE__DTYPE_F32;
    ref.n_dims = 2;
    ref.dims = dims;
    ref.place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    ref.inline_bytes = &place;
    place.length = TOKENS * l->out * sizeof *dy;
    REQUIRE(!desk_call(p->d, CLIENT, REQUEST_BACKWARD, &m.base, dy, place.length, &f, p->text));
    free(dy);
    return f;
}

/* One layer of both models gives the same answers. In eval it gives one; in training it need not,
 * as with a weight of E5M2, but goes on to a backward if it does. */
static void run(struct player *p, const struct layer *l, Fp8d__V1__Mode mode)
{
    bool train = mode == FP8D__V1__MODE__MODE_TRAIN;
    uint64_t n = TOKENS * l->out;
    float *x = numbers(TOKENS, l->in), *y = numbers(2 * TOKENS, l->out);
    struct desk_frame *back[2] = {NULL, NULL};
    unsigned code[2];
    for (unsigned i = 0; i < 2; i++) {
        struct desk_forward f = {.model = i ? "n" : "m",
                                 .layer = l->name,
                                 .mode = mode,
                                 .x = x,
                                 .tokens = TOKENS,
                                 .in = l->in,
                                 .out = l->out,
                                 .context_id = train,
                                 .y = y + i * n};
        code[i] = desk_forward(p->d, CLIENT, &f, p->text);
        if (!code[i] && train)
            back[i] = backward(p, l);
    }
    REQUIRE(code[0] == code[1] && (!code[0] || (train && code[0] == FAILED_PRECONDITION)));
    REQUIRE(code[0] || !memcmp(y, y + n, n * sizeof *y));
    REQUIRE(!back[0] || !memcmp(back[0]->payload, back[1]->payload, back[0]->payload_len));
    desk_frame_free(back[0]);
    desk_frame_free(back[1]);
    free(x);
    free(y);
}

static const struct model *loaded(struct player *p)
{
    struct model *m;
    struct fault f;
    REQUIRE(engine_find(p->d->engine, "m", &m, &f) == 0);
    return m;
}

static void run_all(struct player *p, Fp8d__V1__Mode mode)
{
    const struct model *m = loaded(p);
    for (size_t i = 0; i < m->layer_count; i++)
        run(p, &m->layers[i], mode);
}

static struct safetensors *parse(const unsigned char *bytes, size_t size)
{
    struct safetensors *s = NULL;
    struct fault f = {0};
    uint64_t head;
    memcpy(&head, bytes, 8);
    REQUIRE(!safetensors_parse((const char *)bytes + 8, (size_t)head, size, NULL, &s, &f));
    return s;
}

/* The number of the next step by the save's metadata; 0: no optimizer. */
static uint64_t next_step(const struct blob *b)
{
    struct safetensors *s = parse(b->bytes, b->size);
    const char *json = safetensors_meta(s, "fp8d_optimizer");
    const char *steps = json ? strstr(json, "\"steps\":") : NULL;
    uint64_t next = steps ? strtoull(steps + strlen("\"steps\":"), NULL, 10) + 1 : 0;
    REQUIRE(!json == !next);
    safetensors_free(s);
    return next;
}

/* No load changes masters, moments and gradients: a save has the file's, if it has them. */
static void check_carried(const uint8_t *file, size_t size, const struct blob *b)
{
    struct safetensors *from = parse(file, size), *to = parse(b->bytes, b->size);
    for (size_t i = 0; i < from->count; i++) {
        const struct safetensors_tensor *t = &from->tensors[i];
        const struct safetensors_tensor *u = safetensors_find(to, t->name);
        const char *own = strstr(t->name, ".fp8d.optimizer.options");
        if (!u || own ||
            (!strstr(t->name, ".fp8d.optimizer.") && !strstr(t->name, ".fp8d.gradient.")))
            continue;
        REQUIRE(t->bytes == u->bytes && !memcmp(file + t->offset, b->bytes + u->offset, t->bytes));
    }
    safetensors_free(from);
    safetensors_free(to);
}

static unsigned step(struct player *p, const char *model, uint64_t number)
{
    Fp8d__V1__StepRequest m = FP8D__V1__STEP_REQUEST__INIT;
    m.model = str(model);
    m.step = number;
    return ask(p, REQUEST_STEP, &m.base);
}

/* With an optimizer the next step is taken, unless there is no gradient that it could use, or it
 * could not be counted. */
static void step_both(struct player *p, uint64_t number)
{
    const struct model *m = loaded(p);
    bool can = false;
    for (size_t i = 0; i < m->layer_count; i++)
        can = can || (m->layers[i].gradient.held && !m->layers[i].own.frozen);
    can = can && number && number <= CHANGES_MAX && m->weight_version < CHANGES_MAX;
    unsigned code = can ? 0 : FAILED_PRECONDITION;
    REQUIRE(step(p, "m", number) == code && step(p, "n", number) == code);
}

static bool can_be_saved(struct player *p)
{
    const struct model *m = loaded(p);
    for (size_t i = 0; i < m->layer_count; i++)
        if (strlen(m->layers[i].name) > SAVED_NAME_MAX)
            return false;
    return true;
}

static void check_accepted(struct player *p, const uint8_t *file, size_t size)
{
    if (!can_be_saved(p))
        return;
    p->ledger.cap = MEMORY_AFTER;
    struct blob first = save(p, "m");
    check_carried(file, size, &first);
    check_loads_again(p, "n", &first);
    run_all(p, FP8D__V1__MODE__MODE_EVAL);
    check_saved(p, "m", &first);
    run_all(p, FP8D__V1__MODE__MODE_TRAIN);
    step_both(p, next_step(&first));
    struct blob last = save(p, "m");
    check_saved(p, "n", &last);
    check_loads_again(p, "o", &last);
    free(first.bytes);
    free(last.bytes);
}

static void check_refused(struct player *p, unsigned code, const struct blob *before, uint64_t used)
{
    REQUIRE(code == INVALID_ARGUMENT || code == DATA_LOSS || code == RESOURCE_EXHAUSTED ||
            code == FAILED_PRECONDITION);
    REQUIRE(p->text[0] && utf8_printable(p->text, strlen(p->text)));
    check_saved(p, "m", before);
    REQUIRE(ledger_used(&p->ledger) == used);
}

/* --- one input --- */

/* A client, and the model "m" that it serves: layer "l" [16, 16], trained a little. */
static void open_table(struct player *p)
{
    static const float weight[256] = {1.0f, -2.0f, 0.5f}, x[16] = {0.5f, -1.5f};
    const struct desk_layer layer = {"l", 16, 16, weight, NULL};
    struct engine_options o = {.ledger = &p->ledger, .resident_max = 1 << 16};
    ledger_init(&p->ledger, MEMORY_CAP);
    p->d = desk_new(&o, 0);
    desk_open(p->d, CLIENT);
    REQUIRE(desk_load(p->d, CLIENT, "m", &layer, 1, NULL, NULL) == 0);
    struct desk_forward f = {.model = "m",
                             .layer = "l",
                             .mode = FP8D__V1__MODE__MODE_TRAIN,
                             .x = x,
                             .tokens = 1,
                             .in = 16,
                             .out = 16};
    REQUIRE(desk_forward(p->d, CLIENT, &f, NULL) == 0);
}

static void take_options(const uint8_t b[2], Fp8d__V1__LoadOptions *o, Fp8d__V1__Recipe *r)
{
    fp8d__v1__load_options__init(o);
    fp8d__v1__recipe__init(r);
    o->no_strict = b[0] & 1;
    o->primary_fp8 = b[0] & 2;
    o->allow_nan = b[0] & 4;
    o->finish_calibration = b[0] & 8;
    o->no_optimizer = b[0] & 16;
    o->dequantize = b[0] & 32   ? FP8D__V1__DTYPE__DTYPE_F32
                    : b[0] & 64 ? FP8D__V1__DTYPE__DTYPE_BF16
                                : FP8D__V1__DTYPE__DTYPE_UNSPECIFIED;
    r->kind = b[1] & 3;
    r->fp8_format = b[1] >> 2 & 3;
    r->amax_algo = b[1] >> 4 & 3;
    r->fprop_accumulation = b[1] >> 6 & 3;
    /* What has no bits of its own: a model with a second recipe has another length, too. */
    r->amax_history_len = b[1] ? 3 : 0;
    r->margin = b[1] & 1;
    o->recipe = b[1] ? r : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct player p = {0};
    Fp8d__V1__LoadOptions o;
    Fp8d__V1__Recipe r;
    if (size < 2 || size > INPUT_MAX)
        return 0;
    int64_t blocks = mem_live_blocks();
    open_table(&p);
    struct blob before = save(&p, "m");
    uint64_t used = ledger_used(&p.ledger);
    take_options(data, &o, &r);
    unsigned code = load(&p, "m", &o, data + 2, size - 2);
    REQUIRE(ledger_peak(&p.ledger) <= MEMORY_CAP);
    if (code)
        check_refused(&p, code, &before, used);
    else
        check_accepted(&p, data + 2, size - 2);
    desk_close(p.d, CLIENT);
    desk_free(p.d);
    free(before.bytes);
    REQUIRE(ledger_used(&p.ledger) == 0);
    REQUIRE(mem_live_blocks() == blocks);
    return 0;
}
