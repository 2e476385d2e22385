/* FP8 codes the other way round: as the second form of a cast, or as a tensor of its own. */
#include "kernels/cpu/ops.h"
#include "kernels/cpu/queue.h"
#include "kernels/cpu/transpose.h"

#include <string.h>

#define BLOCK 64u /* codes a side: both sides of a block stay in the first-level cache */

/* to[c * pitch + r] = from[r * cols + c], and zeros for r from rows to pitch. */
struct turn {
    const uint8_t *from;
    uint8_t *to;
    uint64_t rows, cols, pitch;
};

static uint64_t blocks(uint64_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

static uint64_t end_of(uint64_t first, uint64_t most)
{
    return most - first < BLOCK ? most : first + BLOCK;
}

static void turn_block(void *arg, unsigned worker, uint64_t block)
{
    const struct turn *t = arg;
    uint64_t r0 = block % blocks(t->pitch) * BLOCK, c0 = block / blocks(t->pitch) * BLOCK;
    uint64_t r1 = end_of(r0, t->pitch), c1 = end_of(c0, t->cols);
    (void)worker;
    for (uint64_t c = c0; c < c1; c++)
        for (uint64_t r = r0; r < r1; r++)
            t->to[c * t->pitch + r] = r < t->rows ? t->from[r * t->cols + c] : 0;
}

void cpu_transpose_codes(struct cpu_queue *q, const uint8_t *from, uint64_t rows, uint64_t cols,
                         uint8_t *to, uint64_t pitch)
{
    struct turn t = {from, to, rows, cols, pitch};
    pool_run(&q->pool, turn_block, &t, blocks(pitch) * blocks(cols));
}

struct transpose_run {
    const struct qtensor *from;
    struct qtensor *to;
};

static void transpose_execute(struct cpu_queue *q, void *args)
{
    const struct transpose_run *r = args;
    const struct qtensor *t = r->from;
    const uint8_t *data = t->mem->data;
    uint8_t *out = r->to->mem->data;
    cpu_transpose_codes(q, data, t->rows, t->cols, out, t->rows);
    memcpy(out + r->to->factor_offset, data + t->factor_offset, sizeof(float));
}

int cpu_transpose(struct queue *q, const struct qtensor *t, struct qtensor *out, struct fault *f)
{
    struct transpose_run r = {t, out};
    return cpu_queue_post((struct cpu_queue *)q, transpose_execute, &r, sizeof r, NULL, 0, f);
}
