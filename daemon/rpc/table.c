#include "daemon/rpc/table.h"

#include <stddef.h>

/* What decides from state that compute changes. PutTensor does not: it copies what is its own. */
#define COMPUTES(t)                                                                                \
    ((t) == REQUEST_FORWARD || (t) == REQUEST_CHECK_NUMERICS || (t) == REQUEST_BEGIN_SCOPE ||      \
     (t) == REQUEST_END_SCOPE || (t) == REQUEST_BACKWARD || (t) == REQUEST_ZERO_GRAD ||            \
     (t) == REQUEST_GET_GRADIENT || (t) == REQUEST_SET_OPTIMIZER || (t) == REQUEST_STEP ||         \
     (t) == REQUEST_FINISH_CALIBRATION || (t) == REQUEST_EDIT_WEIGHT ||                            \
     (t) == REQUEST_SET_SCALING || (t) == REQUEST_SET_RECIPE ||                                    \
     (t) == REQUEST_CREATE_MODEL || (t) == REQUEST_RECOMPUTE)

/* What takes the state of a model as it is, to use it later. */
#ifndef FP8D_MUTANT_SAVE_BESIDE
#define PINS(t) ((t) == REQUEST_SAVE_COMMIT)
#else
#define PINS(t) false
#endif

#define CARRIES_PAYLOAD(t)                                                                         \
    ((t) == REQUEST_FORWARD || (t) == REQUEST_CHECK_NUMERICS || (t) == REQUEST_EDIT_WEIGHT ||      \
     (t) == REQUEST_PUT_TENSOR || (t) == REQUEST_CREATE_MODEL || (t) == REQUEST_BACKWARD)

static const struct request_row rows[] = {
#define X(Name, NAME, type, class, order, snake)                                                   \
    {                                                                                              \
        type,                                                                                      \
        #Name,                                                                                     \
        CLASS_##class,                                                                             \
        ORDER_##order,                                                                             \
        &fp8d__v1__##snake##_request__descriptor,                                                  \
        rpc_##snake,                                                                               \
        COMPUTES(REQUEST_##NAME),                                                                  \
        PINS(REQUEST_##NAME),                                                                      \
        CARRIES_PAYLOAD(REQUEST_##NAME),                                                           \
        REQUEST_##NAME == REQUEST_LOAD_ATTACH || REQUEST_##NAME == REQUEST_SAVE_ATTACH,            \
    },
    REQUEST_LIST(X)
#undef X
};

const struct request_row *request_row(uint16_t type)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].type == type)
            return &rows[i];
    return NULL;
}
