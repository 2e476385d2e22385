/* The cast that writes both forms: codes and their transpose, factor, amax and counts in one pass
 * over the source. Rules: docs/numerics.md 1. Twin: kernels/cpu/cast.c with transpose.c. */
#include "kernels/cuda/cast_forms.cuh"

/* How many squares of 128 x 128 the tensor covers says how it is cut. Measured on an H200 (us for
 * 1024^2, 2048^2, 4096^2 of BF16): 32 x 128 with two rows a thread 4.7, 9.8, -; 64 x 128 with four
 * 4.8, 7.6, 24; 64 x 128 with eight and two tiles a block -, 8.5, 20.7. Persistent blocks, tiles of
 * 128 or 256 rows, loads one tile ahead, stores past the L2 and launching the next kernel early
 * were slower where the tensor is large. */
#define MIDDLE_FROM 128u
#define LARGE_FROM 528u

template <enum dtype T, enum dtype FMT>
static cudaError_t launch(const struct cast_launch *a, cudaStream_t stream)
{
    uint64_t squares = tiles_of(128, a->pitch, a->cols);
    if (squares < MIDDLE_FROM)
        return launch_tiles<T, FMT, 32, 2, 4, false>(a, 1, stream);
    if (squares < LARGE_FROM)
        return launch_tiles<T, FMT, 64, 4, 4, false>(a, 1, stream);
    return launch_tiles < T, FMT, 64, 8, T == DTYPE_F32 ? 4 : 8, false > (a, 2, stream);
}

template <enum dtype T> static cudaError_t launch_to(const struct cast_launch *a, cudaStream_t s)
{
    return a->fmt == DTYPE_F8_E4M3 ? launch<T, DTYPE_F8_E4M3>(a, s)
                                   : launch<T, DTYPE_F8_E5M2>(a, s);
}

extern "C" cudaError_t launch_cast_forms(const struct cast_launch *a, cudaStream_t stream)
{
    if (a->dtype == DTYPE_F32)
        return launch_to<DTYPE_F32>(a, stream);
    return a->dtype == DTYPE_BF16 ? launch_to<DTYPE_BF16>(a, stream)
                                  : launch_to<DTYPE_F16>(a, stream);
}
