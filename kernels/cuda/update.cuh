/* update.cuh - elements of a step: read, moved, written. */
#ifndef FP8D_KERNELS_CUDA_UPDATE_CUH
#define FP8D_KERNELS_CUDA_UPDATE_CUH

#include "kernels/cuda/device.cuh"

template <int MOMENTS>
__device__ static inline struct optimizer_element
move_element(const struct update_launch &a, struct optimizer_element e, float grad)
{
    return MOMENTS == 2 ? optimizer_adam(&a.step, e, grad) : optimizer_sgd(&a.step, e, grad);
}

/* Element i in place; returns the new master. */
template <int MOMENTS>
__device__ static inline float move_one(const struct update_launch &a, uint64_t i)
{
    struct optimizer_element e = {a.master[i], MOMENTS > 0 ? a.m[i] : 0.0f,
                                  MOMENTS > 1 ? a.v[i] : 0.0f};
    e = move_element<MOMENTS>(a, e, a.grad[i]);
    a.master[i] = e.master;
    if (MOMENTS > 0)
        a.m[i] = e.m;
    if (MOMENTS > 1)
        a.v[i] = e.v;
    return e.master;
}

#endif
