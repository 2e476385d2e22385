/* maker.h - CreateModel for tests: a desk with two clients, A and B, tensors, models made from them,
 * and loads of the same tensors. Every failure of the fixture itself is a failed check. One thread. */
#ifndef FP8D_TESTS_SCENARIO_MAKER_H
#define FP8D_TESTS_SCENARIO_MAKER_H

#include "tests/scenario/stash.h"

#define OUT 32
#define IN 48
#define N (OUT * IN)
#define TOKENS 3
#define EVAL FP8D__V1__MODE__MODE_EVAL
#define TRAIN FP8D__V1__MODE__MODE_TRAIN
#define F32 FP8D__V1__DTYPE__DTYPE_F32
#define BF16 FP8D__V1__DTYPE__DTYPE_BF16
#define E4M3 FP8D__V1__DTYPE__DTYPE_F8_E4M3
#define E5M2 FP8D__V1__DTYPE__DTYPE_F8_E5M2
#define NARROW FP8D__V1__FP8_FORMAT__FP8_FORMAT_E4M3 /* E5M2 weights train with it alone */
#define FACTOR 0.0078125f

extern struct desk *D;
extern struct ask A, B;
extern float *W, *X;       /* [OUT, IN], [TOKENS, IN] */
extern uint16_t *V, *BIAS; /* BF16: [OUT, IN], [OUT] */
extern uint8_t CODES[N];   /* FP8, finite in both formats */

void maker_start(void);
void maker_stop(void);

#define MAKER_LAYERS 4

struct maker_layer {
    const char *name;
    struct ask_tensor weight, bias; /* rank and id 0: none */
};

struct maker {
    const char *model;
    struct maker_layer layers[MAKER_LAYERS];
    size_t count;
    bool primary_fp8;
    Fp8d__V1__Recipe *recipe;
    /* filled */
    uint64_t layers_made, parameters;
};

unsigned maker_create(struct ask *a, struct maker *c); /* the code */
void maker_made(struct maker *c);                      /* A's, must be taken */

struct ask_tensor maker_matrix(Fp8d__V1__DType dtype, const void *data);
struct ask_tensor maker_bias(void);
struct ask_tensor maker_put(uint64_t id, struct ask_tensor t); /* the same, put by A under `id` */
struct maker maker_plain(const char *model);                   /* one layer "l" of W */

/* Kinds of models, each of layers "b" (F32, biased) and "a". */
enum maker_kind { HIGH, FP8, WIDE, CAST, KINDS };

/* Resident: A's tensors 11 to 13. */
struct maker maker_of_kind(enum maker_kind kind, bool resident, const char *model);
void maker_free_resident(void);
/* A load of the same tensors. */
void maker_load(enum maker_kind kind, const char *model, Fp8d__V1__Recipe *recipe);

struct desk_forward maker_forward(struct ask *a, const char *model, const char *layer,
                                  Fp8d__V1__Mode mode, float *y);
void maker_same_saves(const char *one, const char *other);
unsigned maker_models(void);         /* how many there are */
void maker_drop(const char *model);  /* by B */

#endif
