/* pair.h - one layer served by the engine, beside its float64 emulation (tests/oracle/microbatch).
 *
 * Every step goes to both. A forward compares the output (within bound.h), what happened to the
 * copy, the factors of the casts and the whole scaling state (to the bit). For tests alone; every
 * failure is a failed check.
 */
#ifndef FP8D_TESTS_SCENARIO_PAIR_H
#define FP8D_TESTS_SCENARIO_PAIR_H

#include "tests/oracle/microbatch.h"
#include "tests/scenario/ask.h"
#include "tests/scenario/bound.h"

#define PAIR_MODEL "m"
#define PAIR_LAYER "l"

struct pair {
    struct desk *desk;
    struct ask a; /* connection 1 */
    struct oracle_layer *oracle;
    struct oracle_recipe recipe;
    size_t out, in;
    bool ran;     /* a train forward ran in the open scope */
    bool no_copy; /* edited since: the oracle's copy is of no use, the engine has none */
};

struct pair_result {
    enum oracle_copy copy;
    double against_high; /* max |y - high precision| */
};

/* Sizes at which sanitizer runs end soon: FP8D_TEST_SMALL is set. */
bool pair_small(void);

/* The recipe on the wire; format hybrid, since the oracle's input format is the layer's. */
Fp8d__V1__Recipe pair_recipe(const struct oracle_recipe *r);

/* A model of one layer of these weights, f32; bias may be NULL. */
void pair_open(struct pair *p, size_t out, size_t in, const struct oracle_recipe *r, const float *w,
               const float *bias);
/* The same on a backend with that many threads and a queue of its own; 0: inline. */
void pair_open_on(struct pair *p, unsigned threads, size_t out, size_t in,
                  const struct oracle_recipe *r, const float *w, const float *bias);
void pair_close(struct pair *p);

struct pair_result pair_forward(struct pair *p, struct ask *from, enum oracle_mode mode,
                                enum oracle_flag flag, const float *x, size_t tokens);
/* With connection 1 and fresh numbers: `tokens` uniform in [0, 1), from the seed. */
struct pair_result pair_step(struct pair *p, enum oracle_mode mode, enum oracle_flag flag,
                             uint64_t seed, size_t tokens);
void pair_edit(struct pair *p, const float *w);
void pair_load(struct pair *p, const float *w, const float *bias); /* replaces the model */
void pair_scope_begin(struct pair *p, uint64_t id);
void pair_scope_end(struct pair *p, uint64_t id);  /* a layer that did not run is left alone */
void pair_scope_drop(struct pair *p, uint64_t id); /* discards */
void pair_finish(struct pair *p);

/* What the emulation says of a forward that nobody has asked the engine for. */
struct bound pair_emulate(struct pair *p, enum oracle_mode mode, enum oracle_flag flag,
                          const float *x, size_t tokens, enum oracle_copy *copy);

/* The engine's scaling state is the oracle's. */
void pair_check_state(struct pair *p);

#endif
