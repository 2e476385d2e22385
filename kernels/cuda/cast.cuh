/* cast.cuh - how a cast begins and ends, whatever it writes in between. */
#ifndef FP8D_KERNELS_CUDA_CAST_CUH
#define FP8D_KERNELS_CUDA_CAST_CUH

#include "kernels/cuda/packet.cuh"

/* Nothing on this stream moves the site while a kernel of the cast runs. */
__device__ static inline bool takes_tensors_scale(const struct cast_launch &a)
{
    return !a.site || (a.unless_set && !a.site->set);
}

/* What the bytes are made with. */
struct snapshot {
    float scale, scale_inv;
    bool from_tensor;

    __device__ snapshot(const struct cast_launch &a, enum dtype fmt)
    {
        from_tensor = takes_tensors_scale(a);
        if (from_tensor) {
            scale = recipe_scale(fp8_bits_float(a.sums->first), fmt, a.margin);
            scale_inv = recipe_scale_inv(scale);
        } else {
            scale = a.site->scale;
            scale_inv = a.site->scale_inv;
        }
    }
};

/* The last block: report and factor, and sums that are zero for the next launch. */
__device__ static inline void conclude(const struct cast_launch &a, const snapshot &shot)
{
    struct cast_report r = {};
    volatile struct cast_sums *sums = a.sums;
    r.slot = sums_slot(sums, sums->amax);
    r.scale = shot.scale;
    r.scale_inv = shot.scale_inv;
    r.from_tensor = shot.from_tensor;
    *a.report = r;
    *a.factor = shot.scale_inv;
    *a.sums = cast_sums{};
}

#endif
