/* Scale updates of all sites of a call, a block each. The rules are scaler.h's inline functions;
 * only the roll and the search for the largest are parallel. */
#include "kernels/cuda/device.cuh"

#define THREADS 1024

struct apply_rows {
    struct apply_row row[APPLY_ROWS_INLINE];
};

/* words of `from` to `to`; scaler_bytes is a multiple of 64. */
__device__ static void copy_state(struct scaler *to, const struct scaler *from, size_t bytes)
{
    uint4 *d = reinterpret_cast<uint4 *>(to);
    const uint4 *s = reinterpret_cast<const uint4 *>(from);
    for (size_t i = threadIdx.x; i < bytes / sizeof *d; i += THREADS)
        d[i] = s[i];
}

/* scaler_window: floats >= 0 order as their bits. */
__device__ static float window(const struct scaler *s, float amax)
{
    __shared__ unsigned most;
    unsigned mine = fp8_float_bits(amax);
    if (threadIdx.x == 0)
        most = 0;
    __syncthreads();
    for (uint32_t i = 1 + threadIdx.x; i < s->len; i += THREADS)
        mine = max(mine, fp8_float_bits(s->history[i]));
    mine = __reduce_max_sync(0xffffffffu, mine);
    if (threadIdx.x % 32 == 0)
        atomicMax(&most, mine);
    __syncthreads();
    return fp8_bits_float(most);
}

/* scaler_roll: the rows move down in slices of THREADS, each read whole before it is written. */
__device__ static void roll(struct scaler *s, float amax)
{
    for (uint32_t base = 1; base + 1 < s->len; base += THREADS) {
        uint32_t i = base + threadIdx.x;
        bool mine = i + 1 < s->len;
        float next = mine ? s->history[i + 1] : 0.0f;
        __syncthreads();
        if (mine)
            s->history[i] = next;
        __syncthreads();
    }
    if (threadIdx.x)
        return;
    if (s->len > 1)
        s->history[s->len - 1] = amax;
    s->history[0] = 0.0f;
    s->amax_last = amax;
}

__device__ static void update(const struct apply_row &row, const struct apply_launch &a)
{
    __shared__ float shared;
    struct scaler *s = row.site;
    if (threadIdx.x == 0) {
        if (row.slot) {
            struct amax_slot slot = *row.slot;
            scaler_collect(s, &slot);
        }
        shared = row.collect ? 0.0f : scaler_take(s, a.frozen);
    }
    __syncthreads();
    float collected = shared;
    if (!(collected > 0.0f))
        return;
    float amax = a.algo == AMAX_MAX ? window(s, collected) : collected;
    roll(s, collected);
    if (threadIdx.x == 0)
        scaler_set(s, row.fmt, a.margin, amax);
}

__global__ void __launch_bounds__(THREADS)
    apply_kernel(const struct apply_rows inline_rows, const struct apply_launch a)
{
    wait_for_stream();
    const struct apply_row row =
        a.count <= APPLY_ROWS_INLINE ? inline_rows.row[blockIdx.x] : a.rows[blockIdx.x];
    if (row.replace)
        copy_state(row.site, row.replace, scaler_bytes(row.replace->len));
    else
        update(row, a);
    __syncthreads();
    if (row.mirror)
        copy_state(row.mirror, row.site, scaler_bytes(row.site->len));
}

extern "C" cudaError_t launch_apply(const struct apply_launch *a, cudaStream_t stream)
{
    struct apply_rows rows = {};
    if (!a->count)
        return cudaSuccess;
    for (uint32_t i = 0; i < a->count && a->count <= APPLY_ROWS_INLINE; i++)
        rows.row[i] = a->rows[i];
    return launch_early(apply_kernel, a->count, THREADS, stream, rows, *a);
}
