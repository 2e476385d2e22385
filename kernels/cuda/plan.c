#include "kernels/cuda/plan.h"

#include "base/mem.h"
#include "kernels/cuda/tune.h"

#include <stdio.h>
#include <string.h>

#define BUCKETS 4096u
#define PLANS_MAX 65536u /* about 1 KiB each; clients choose token counts */
#define LEADING_MAX ((uint64_t)1 << 31)

struct plan {
    struct plan *next; /* of its bucket */
    struct plan_key key;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
};

struct plans {
    pthread_mutex_t lock;
    bool reproducible;
    unsigned count;
    struct plan *buckets[BUCKETS];
};

struct plans *plans_new(bool reproducible)
{
    struct plans *p = mem_zalloc(sizeof *p);
    if (!p)
        return NULL;
    pthread_mutex_init(&p->lock, NULL);
    p->reproducible = reproducible;
    return p;
}

static void plan_free(struct plan *p)
{
    if (!p)
        return;
    (void)cublasLtMatrixLayoutDestroy(p->a);
    (void)cublasLtMatrixLayoutDestroy(p->b);
    (void)cublasLtMatrixLayoutDestroy(p->d);
    (void)cublasLtMatmulDescDestroy(p->op);
    mem_free(p);
}

void plans_free(struct plans *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < BUCKETS; i++)
        while (p->buckets[i]) {
            struct plan *gone = p->buckets[i];
            p->buckets[i] = gone->next;
            plan_free(gone);
        }
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

/* --- description: pure --- */

static cudaDataType_t cuda_type(enum dtype t)
{
    switch (t) {
    case DTYPE_F8_E4M3:
        return CUDA_R_8F_E4M3;
    case DTYPE_F8_E5M2:
        return CUDA_R_8F_E5M2;
    case DTYPE_BF16:
        return CUDA_R_16BF;
    case DTYPE_F16:
        return CUDA_R_16F;
    default:
        return CUDA_R_32F;
    }
}

/* float32 operands without TF32 or emulation, whatever the environment asks for; 16-bit and FP8
 * ones on the tensor cores, accumulated in float32. */
static cublasComputeType_t compute_type(const struct plan_key *k)
{
    return k->a == DTYPE_F32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
}

static uint8_t alignment(const void *p)
{
    unsigned n = p ? (unsigned)__builtin_ctzll((uintptr_t)p) : 8;
    return (uint8_t)(n < 8 ? n : 8);
}

static const char *text_of(const struct plan_key *k, char *out, size_t size)
{
    (void)snprintf(out, size, "GEMM m %llu, n %llu, k %llu, %s x %s to %s%s%s",
                   (unsigned long long)k->n, (unsigned long long)k->m, (unsigned long long)k->k,
                   dtype_name((enum dtype)k->b), dtype_name((enum dtype)k->a),
                   dtype_name((enum dtype)k->d), k->bias ? ", bias" : "",
                   k->fast         ? ", fast"
                   : k->accumulate ? ", accumulating"
                                   : "");
    return out;
}

/* What cuBLASLt 13.1.0 computes wrongly or does not check itself (facts 1.8). */
static int check_key(const struct plan_key *k, struct fault *f)
{
    char text[128];
    uint64_t size_a = dtype_bits((enum dtype)k->a) / 8, size_d = dtype_bits((enum dtype)k->d) / 8;
    /* Fourth fault: element size times leading dimension above 2^31 gives wrong results. */
    if (k->k > LEADING_MAX / size_a || k->ldd > LEADING_MAX / size_d)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s: a row has more than 2^31 bytes",
                         text_of(k, text, sizeof text));
    /* Fifth fault: misaligned operands of FP8 are not noticed. */
    bool fp8 = dtype_is_fp8((enum dtype)k->a);
    if (fp8 && (k->k % 16 || k->ldd * size_d % 16 || k->m * size_d % 16 || k->align_a < 4 ||
                k->align_b < 4 || k->align_d < 4 || k->align_bias < 4))
        return fault_set(f, FP8D_EINTERNAL, "%s: an operand is not aligned to 16 bytes",
                         text_of(k, text, sizeof text));
    return 0;
}

/* --- descriptors --- */

static cublasStatus_t set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t what,
                          const void *value, size_t size)
{
    return cublasLtMatmulDescSetAttribute(op, what, value, size);
}

static cublasStatus_t describe_op(struct plan *p)
{
    const struct plan_key *k = &p->key;
    int32_t transposed = CUBLAS_OP_T;
    int8_t fast = (int8_t)k->fast;
    cublasStatus_t e = cublasLtMatmulDescCreate(&p->op, compute_type(k), CUDA_R_32F);
    if (!e)
        e = set(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (!e && dtype_is_fp8((enum dtype)k->a))
        e = set(p->op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    if (!e && k->bias) {
        uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        int32_t type = cuda_type((enum dtype)k->bias);
        e = set(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
        /* Twelfth fault: the default bias dtype was ignored or wrong for FP8; always said. */
        if (!e)
            e = set(p->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type);
    }
    return e;
}

/* Column-major always: ORDER_ROW gave wrong results with mixed FP8 (ninth and tenth fault). C is
 * D, in its layout, and read only to accumulate: no scale of C, so that none is 0 where beta is not
 * (first), no ldc 0 (third), and one descriptor for both (sixth). */
static cublasStatus_t describe(struct plan *p)
{
    const struct plan_key *k = &p->key;
    cublasStatus_t e = describe_op(p);
    if (!e)
        e = cublasLtMatrixLayoutCreate(&p->a, cuda_type((enum dtype)k->a), k->k, k->m,
                                       (int64_t)k->k);
    if (!e)
        e = cublasLtMatrixLayoutCreate(&p->b, cuda_type((enum dtype)k->b), k->k, k->n,
                                       (int64_t)k->k);
    if (!e)
        e = cublasLtMatrixLayoutCreate(&p->d, cuda_type((enum dtype)k->d), k->m, k->n,
                                       (int64_t)k->ldd);
    return e;
}

/* The pointers of one call. Scales are set for FP8 operands alone (eighth fault: a scale pointer on
 * another type is refused). */
static cublasStatus_t point(struct plan *p, const struct plan_call *c)
{
    cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
    if (dtype_is_fp8((enum dtype)p->key.a)) {
        e = set(p->op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &c->factor_a, sizeof c->factor_a);
        if (!e)
            e = set(p->op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &c->factor_b, sizeof c->factor_b);
    }
    if (!e && p->key.bias)
        e = set(p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &c->bias, sizeof c->bias);
    return e;
}

static int launch(struct cuda_queue *q, struct plan *p, const struct plan_call *c,
                  const cublasLtMatmulAlgo_t *algo, size_t workspace, struct fault *f)
{
    static const float one = 1.0f, zero = 0.0f;
    const float *beta = p->key.accumulate ? &one : &zero;
    char text[128];
    cublasStatus_t e = point(p, c);
    if (!e)
        e = cublasLtMatmul(q->cuda->blas, p->op, &one, c->a, p->a, c->b, p->b, beta, c->d, p->d,
                           c->d, p->d, algo, block_address(q->workspace), workspace, q->stream);
    return e ? blas_check(q->cuda, e, f, "%s", text_of(&p->key, text, sizeof text)) : 0;
}

/* --- choosing --- */

static cublasStatus_t prefer(const struct plan_key *k, cublasLtMatmulPreference_t pref)
{
    static const cublasLtMatmulPreferenceAttributes_t which[4] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint32_t align[4] = {1u << k->align_a, 1u << k->align_b, 1u << k->align_d, 1u << k->align_d};
    uint64_t workspace = CUDA_WORKSPACE_BYTES;
    cublasStatus_t e = cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    for (int i = 0; !e && i < 4; i++)
        e = cublasLtMatmulPreferenceSetAttribute(pref, which[i], &align[i], sizeof align[i]);
    return e;
}

static int candidates(struct cuda *c, struct plan *p, cublasLtMatmulHeuristicResult_t *out,
                      int *count, struct fault *f)
{
    cublasLtMatmulPreference_t pref = NULL;
    char text[128];
    cublasStatus_t e = cublasLtMatmulPreferenceCreate(&pref);
    if (!e)
        e = prefer(&p->key, pref);
    if (!e)
        e = cublasLtMatmulAlgoGetHeuristic(c->blas, p->op, p->a, p->b, p->d, p->d, pref,
                                           TUNE_CANDIDATES, out, count);
    if (pref)
        (void)cublasLtMatmulPreferenceDestroy(pref);
    (void)text_of(&p->key, text, sizeof text);
    if (e == CUBLAS_STATUS_NOT_SUPPORTED || (!e && !*count))
        return fault_set(f, FP8D_EUNIMPLEMENTED, "cuBLASLt has no algorithm for %s", text);
    return e ? blas_check(c, e, f, "choosing an algorithm for %s", text) : 0;
}

struct try_ {
    struct cuda_queue *queue;
    struct plan *plan;
    struct plan_call call;
};

static int try_candidate(void *arg, const struct tune_operands *o,
                         const cublasLtMatmulHeuristicResult_t *r, struct fault *f)
{
    struct try_ *t = arg;
    struct plan_call c = t->call;
    c.a = o->a;
    c.b = o->b;
    c.d = o->d;
    c.bias = o->bias;
    c.factor_a = c.factor_b = queue_one(t->queue);
    return launch(t->queue, t->plan, &c, &r->algo, r->workspaceSize, f);
}

/* The first answer, or the fastest; also where there is no memory to time on. */
static int choose(struct cuda_queue *q, struct plan *p, const struct plan_call *c, struct fault *f)
{
    cublasLtMatmulHeuristicResult_t found[TUNE_CANDIDATES] = {0};
    int count = 0, best = 0;
    int rc = candidates(q->cuda, p, found, &count, f);
    if (rc)
        return rc;
    struct try_ t = {q, p, *c};
    struct tune_shape s = {
        .a = (enum dtype)p->key.a,
        .b = (enum dtype)p->key.b,
        .d = (enum dtype)p->key.d,
        .bias = (enum dtype)p->key.bias,
        .count_a = p->key.m * p->key.k,
        .count_b = p->key.n * p->key.k,
        .count_d = p->key.n * p->key.ldd,
        .count_bias = p->key.m,
        .reads_d = p->key.accumulate,
    };
    if (!p->key.reproducible)
        best = tune_best(q, &s, found, count, try_candidate, &t);
    p->algo = found[best].algo;
    p->workspace = found[best].workspaceSize;
    return 0;
}

static int plan_make(struct cuda_queue *q, const struct plan_call *c, struct plan **out,
                     struct fault *f)
{
    char text[128];
    struct plan *p = mem_zalloc(sizeof *p);
    if (!p)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED, "no memory for a GEMM plan");
    p->key = c->key;
    cublasStatus_t e = describe(p);
    if (!e)
        e = point(p, c); /* the heuristic looks at the alignment of the bias */
    int rc =
        e ? blas_check(q->cuda, e, f, "describing %s", text_of(&p->key, text, sizeof text)) : 0;
    if (!rc)
        rc = choose(q, p, c, f);
    if (rc) {
        plan_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

static unsigned bucket_of(const struct plan_key *k)
{
    const unsigned char *p = (const unsigned char *)k;
    uint64_t h = 14695981039346656037ull; /* FNV-1a */
    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ p[i]) * 1099511628211ull;
    return (unsigned)(h ^ h >> 32) % BUCKETS;
}

static int plan_of(struct plans *all, struct cuda_queue *q, const struct plan_call *c,
                   struct plan **out, struct fault *f)
{
    struct plan **at = &all->buckets[bucket_of(&c->key)];
    for (struct plan *p = *at; p; p = p->next)
        if (!memcmp(&p->key, &c->key, sizeof p->key)) {
            *out = p;
            return 0;
        }
    if (all->count == PLANS_MAX)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "there are %u GEMM plans already, one for each shape seen", PLANS_MAX);
    int rc = plan_make(q, c, out, f);
    if (rc)
        return rc;
    (*out)->next = *at;
    *at = *out;
    all->count++;
    return 0;
}

int plan_run(struct cuda_queue *q, struct plan_call *c, struct fault *f)
{
    struct plans *all = q->cuda->plans;
    struct plan *p = NULL;
    c->key.reproducible |= all->reproducible;
    c->key.align_a = alignment(c->a);
    c->key.align_b = alignment(c->b);
    c->key.align_d = alignment(c->d);
    c->key.align_bias = alignment(c->bias);
    int rc = check_key(&c->key, f);
    if (rc)
        return rc;
    pthread_mutex_lock(&all->lock);
    rc = plan_of(all, q, c, &p, f);
    if (!rc)
        rc = launch(q, p, c, &p->algo, p->workspace, f);
    pthread_mutex_unlock(&all->lock);
    return rc;
}
