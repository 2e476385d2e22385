#include "tests/scenario/maker.h"

#include "tests/unit/served.h"

#include <stdlib.h>
#include <string.h>

/* --- fixture --- */

struct desk *D;
struct ask A, B;
float *W, *X;
uint16_t *V, *BIAS; /* BF16 */
uint8_t CODES[N];

void maker_start(void)
{
    D = desk_new(NULL, 0);
    A = ask_open(D, 1);
    B = ask_open(D, 2);
    W = draw_normal(1, N, 0.02);
    V = stash_draw(2, DTYPE_BF16, N, 0.5);
    BIAS = stash_draw(3, DTYPE_BF16, OUT, 1.0);
    X = draw_normal(4, TOKENS * IN, 2.0);
    for (unsigned i = 0; i < N; i++)
        CODES[i] = (uint8_t)(i % 0x78 | (i & 1) << 7); /* finite in both formats */
}

void maker_stop(void)
{
    ask_close(&A);
    ask_close(&B);
    desk_free(D);
    free(W);
    free(V);
    free(BIAS);
    free(X);
}

/* --- helpers: the request --- */

struct packed {
    Fp8d__V1__LayerSpec specs[MAKER_LAYERS], *list[MAKER_LAYERS];
    Fp8d__V1__TensorRef refs[2 * MAKER_LAYERS];
    Fp8d__V1__InlinePlace places[2 * MAKER_LAYERS];
    struct ask_tensor tensors[2 * MAKER_LAYERS];
    unsigned count;
    unsigned char payload[1 << 16];
    uint64_t bytes;
};

static unsigned width(Fp8d__V1__DType t)
{
    return t == F32 ? 4 : t == BF16 ? 2 : 1;
}

static Fp8d__V1__TensorRef *pack(struct packed *p, const struct ask_tensor *t)
{
    unsigned i = p->count++;
    Fp8d__V1__TensorRef *ref = &p->refs[i];
    fp8d__v1__tensor_ref__init(ref);
    p->tensors[i] = *t;
    if (t->id) {
        ref->place_case = FP8D__V1__TENSOR_REF__PLACE_TENSOR_ID;
        ref->tensor_id = t->id;
        return ref;
    }
    fp8d__v1__inline_place__init(&p->places[i]);
    ref->dtype = t->dtype;
    ref->n_dims = t->rank;
    ref->dims = p->tensors[i].dims;
    ref->place_case = FP8D__V1__TENSOR_REF__PLACE_INLINE_BYTES;
    ref->inline_bytes = &p->places[i];
    if (width(t->dtype) == 1) {
        ref->n_scale_inv = 1;
        ref->scale_inv = &p->tensors[i].factor;
    }
    uint64_t n = width(t->dtype);
    for (unsigned k = 0; k < t->rank; k++)
        n *= t->dims[k];
    p->places[i].offset = p->bytes;
    p->places[i].length = n;
    ck_assert_uint_le(p->bytes + n, sizeof p->payload);
    if (n)
        memcpy(p->payload + p->bytes, t->data, n);
    p->bytes += n;
    return ref;
}

unsigned maker_create(struct ask *a, struct maker *c)
{
    static struct packed p;
    Fp8d__V1__CreateModelRequest m = FP8D__V1__CREATE_MODEL_REQUEST__INIT;
    struct desk_frame *frame = NULL;
    p.count = 0;
    p.bytes = 0;
    m.model = str(c->model);
    m.recipe = c->recipe;
    m.primary_fp8 = c->primary_fp8;
    m.n_layers = c->count;
    m.layers = p.list;
    for (size_t i = 0; i < c->count; i++) {
        fp8d__v1__layer_spec__init(&p.specs[i]);
        p.list[i] = &p.specs[i];
        p.specs[i].name = str(c->layers[i].name);
        const struct ask_tensor *w = &c->layers[i].weight, *b = &c->layers[i].bias;
        p.specs[i].weight = w->rank || w->id ? pack(&p, w) : NULL;
        p.specs[i].bias = b->rank || b->id ? pack(&p, b) : NULL;
    }
    if (a->later) {
        a->sent = desk_send(D, a->conn, REQUEST_CREATE_MODEL, &m.base, p.payload, p.bytes, NULL, 0);
        return ASK_LATER;
    }
    unsigned code =
        desk_call(D, a->conn, REQUEST_CREATE_MODEL, &m.base, p.payload, p.bytes, &frame, a->text);
    if (frame) {
        Fp8d__V1__CreateModelReply *r =
            fp8d__v1__create_model_reply__unpack(NULL, frame->meta_len, frame->meta);
        c->layers_made = r->layers;
        c->parameters = r->parameters;
        fp8d__v1__create_model_reply__free_unpacked(r, NULL);
    }
    desk_frame_free(frame);
    return code;
}

/* --- helpers: tensors --- */

struct ask_tensor maker_matrix(Fp8d__V1__DType dtype, const void *data)
{
    return (struct ask_tensor){
        .dtype = dtype, .rank = 2, .dims = {OUT, IN}, .data = data, .factor = FACTOR};
}

struct ask_tensor maker_bias(void)
{
    return (struct ask_tensor){.dtype = BF16, .rank = 1, .dims = {OUT}, .data = BIAS};
}

/* The same, put under `id`. */
struct ask_tensor maker_put(uint64_t id, struct ask_tensor t)
{
    ck_assert_msg(ask_put(&A, id, &t) == ASK_OK, "%s", A.text);
    return (struct ask_tensor){.id = id};
}

struct maker maker_plain(const char *model)
{
    return (struct maker){
        .model = model, .count = 1, .layers = {{.name = "l", .weight = maker_matrix(F32, W)}}};
}

void maker_made(struct maker *c)
{
    ck_assert_msg(maker_create(&A, c) == ASK_OK, "%s", A.text);
}

struct maker maker_of_kind(enum maker_kind kind, bool resident, const char *model)
{
    static const Fp8d__V1__DType dtypes[] = {BF16, E4M3, E5M2, BF16};
    struct ask_tensor a =
        maker_matrix(dtypes[kind], kind == FP8 || kind == WIDE ? (void *)CODES : V);
    struct maker c = {.model = model, .count = 2, .primary_fp8 = kind == CAST};
    c.layers[0] = (struct maker_layer){"b", maker_matrix(F32, W), maker_bias()};
    c.layers[1] = (struct maker_layer){"a", a, {0}};
    if (resident) {
        c.layers[0].weight = maker_put(11, c.layers[0].weight);
        c.layers[0].bias = maker_put(12, c.layers[0].bias);
        c.layers[1].weight = maker_put(13, c.layers[1].weight);
    }
    return c;
}

void maker_free_resident(void)
{
    for (uint64_t id = 11; id <= 13; id++)
        ck_assert_uint_eq(ask_free(&A, id), ASK_OK);
}

/* A load of the same tensors. */
void maker_load(enum maker_kind kind, const char *model, Fp8d__V1__Recipe *recipe)
{
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_F8_E5M2, DTYPE_BF16};
    Fp8d__V1__LoadOptions o = FP8D__V1__LOAD_OPTIONS__INIT;
    struct stash s = {0};
    float factor = FACTOR;
    bool fp8 = kind == FP8 || kind == WIDE;
    stash_put(&s, "b.weight", DTYPE_F32, 2, OUT, IN, W);
    stash_put(&s, "b.bias", DTYPE_BF16, 1, OUT, 1, BIAS);
    stash_put(&s, "a.weight", dtypes[kind], 2, OUT, IN, fp8 ? (void *)CODES : V);
    if (fp8)
        stash_put(&s, "a.weight_scale", DTYPE_F32, 0, 1, 1, &factor);
    struct blob b = stash_blob(&s);
    o.recipe = recipe;
    o.primary_fp8 = kind == CAST;
    ck_assert_msg(stash_load(&A, model, &b, &o, NULL) == 0, "%s", A.text);
    stash_free(&s);
    blob_free(&b);
}

/* --- helpers: what is there --- */

struct desk_forward maker_forward(struct ask *a, const char *model, const char *layer,
                                  Fp8d__V1__Mode mode, float *y)
{
    struct desk_forward f = {.model = model,
                             .layer = layer,
                             .mode = mode,
                             .x = X,
                             .tokens = TOKENS,
                             .in = IN,
                             .out = OUT,
                             .y = y};
    ck_assert_msg(desk_forward(D, a->conn, &f, a->text) == 0, "%s", a->text);
    return f;
}

void maker_same_saves(const char *one, const char *other)
{
    struct blob a = stash_save(&A, one), b = stash_save(&A, other);
    blob_equal(&a, &b);
    blob_free(&a);
    blob_free(&b);
}

unsigned maker_models(void)
{
    Fp8d__V1__StatusReply *s = ask_status(&B);
    unsigned n = s->models;
    fp8d__v1__status_reply__free_unpacked(s, NULL);
    return n;
}

void maker_drop(const char *model)
{
    ck_assert_msg(ask_drop_model(&B, model, NULL) == ASK_OK, "%s", B.text);
}
