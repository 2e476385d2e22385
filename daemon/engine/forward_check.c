/* What a forward refuses before anything is started. */
#include "daemon/engine/forward.h"

#include "daemon/engine/flight.h"
#include "daemon/engine/scope.h"

int forward_check_input(const struct layer *l, const struct operand *input, bool fp8_allowed,
                        struct fault *f)
{
    uint64_t last = input->dims[input->rank - 1];
    if (last != l->in)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "input.dims: the last dimension is %llu, layer %s needed %llu",
                         (unsigned long long)last, l->name, (unsigned long long)l->in);
    if (input->q && !fp8_allowed)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "input.dtype is %s, needed F32, BF16 or F16 in this mode",
                         dtype_name(operand_dtype(input)));
    return 0;
}

static int check_train(const struct forward_args *a, struct fault *f)
{
    if (a->mode != MODE_TRAIN) {
        if (a->context_id)
            return fault_set(f, FP8D_EINVALID_ARGUMENT,
                             "context_id is %llu, but only mode train keeps a context",
                             (unsigned long long)a->context_id);
        return 0;
    }
    if (weight_eval_only(&a->layer->weight, &a->model->recipe))
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "layer %s has F8_E5M2 weights, which fp8_format hybrid can only evaluate "
                         "(its gradients are F8_E5M2 too), needed mode eval or fp8_format e4m3",
                         a->layer->name);
    int rc = scope_check_train(a->model, a->lease, f);
    return rc ? rc : flight_check_forward(a->lease->engine, a->layer, f);
}

/* There is no product of F8_E5M2 with F8_E5M2: not for the output, and not for the weight's gradient
 * where gradients are of that dtype. */
static int check_fp8_input(const struct forward_args *a, struct fault *f)
{
    if (!a->input->q || qtensor_info(a->input->q).fmt != DTYPE_F8_E5M2)
        return 0;
    if (weight_dtype(&a->layer->weight) == DTYPE_F8_E5M2)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "input.dtype is F8_E5M2, and so is the weight of layer %s, needed another "
                         "dtype",
                         a->layer->name);
    if (a->context_id && recipe_dtype(&a->model->recipe, SITE_GRAD_OUTPUT) == DTYPE_F8_E5M2)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "input.dtype is F8_E5M2, and so are gradients under fp8_format hybrid, "
                         "needed another dtype, no context_id, or fp8_format e4m3");
    return 0;
}

int forward_check(const struct forward_args *a, enum dtype out, struct fault *f)
{
    int rc = forward_check_input(a->layer, a->input, a->mode != MODE_CALIBRATE, f);
    if (!rc)
        rc = check_fp8_input(a, f);
    if (!rc && !dtype_is_high(out))
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT, "output_dtype is %s, needed F32, BF16 or F16",
                       dtype_name(out));
    if (!rc && a->first != FIRST_UNSET && a->mode != MODE_TRAIN)
        rc = fault_set(f, FP8D_EINVALID_ARGUMENT,
                       "first_microbatch is set, but only mode train has microbatches");
    return rc ? rc : check_train(a, f);
}
