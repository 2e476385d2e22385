#include "daemon/engine/factor.h"

#include "base/text.h"
#include "ckpt/form.h"
#include "kernels/recipe.h"

#include <string.h>

int factor_check(const struct safetensors_tensor *t, struct fault *f)
{
    return form_check_number(t, "one factor per tensor", f);
}

static float widen(enum dtype dtype, const void *bytes)
{
    uint16_t half;
    float x;
    if (dtype == DTYPE_F32) {
        memcpy(&x, bytes, sizeof x);
        return x;
    }
    memcpy(&half, bytes, sizeof half);
    return dtype == DTYPE_BF16 ? bf16_decode(half) : f16_decode(half);
}

int factor_take(const struct safetensors_tensor *t, const void *bytes, float *out, struct fault *f)
{
    float x = widen(t->dtype, bytes);
    char name[256];
    if (!recipe_factor_ok(x))
        return fault_set(
            f, FP8D_EINVALID_ARGUMENT,
            "tensor \"%s\" is %g, needed a finite factor of at least 2^-128 (2.94e-39)",
            text_escape(name, sizeof name, t->name, strlen(t->name)), (double)x);
    *out = x;
    return 0;
}
