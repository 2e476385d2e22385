/* requests.h - the one list of requests. Dispatch tables, class and ordering are generated from it.
 *
 * X(Name, NAME, type, class, order, snake)
 *   Name   message is <Name>Request / <Name>Reply in fp8d.proto
 *   NAME   enum constant REQUEST_<NAME>
 *   type   u16 of the frame header; never reused
 *   class  INSPECT (questions), RUN (compute, tensors), TRAIN (changes what training state is),
 *          ADMIN (models come and go)
 *   order  ORDERED: of one connection one after another, between connections round-robin.
 *          NOW: answered from the state after the last completed change, while compute runs.
 *          LOOP: answered by the loop thread itself.
 *   snake  handler rpc_<snake>, and the name protobuf-c gives, fp8d__v1__<snake>_request
 */
#ifndef FP8D_PROTO_REQUESTS_H
#define FP8D_PROTO_REQUESTS_H

#define REQUEST_LIST(X)                                                                            \
    X(Hello, HELLO, 1, INSPECT, LOOP, hello)                                                       \
    X(Ping, PING, 2, INSPECT, LOOP, ping)                                                          \
    X(Cancel, CANCEL, 3, INSPECT, NOW, cancel)                                                     \
    X(Status, STATUS, 4, INSPECT, NOW, status)                                                     \
    X(ListModels, LIST_MODELS, 5, INSPECT, NOW, list_models)                                       \
    X(DescribeModel, DESCRIBE_MODEL, 6, INSPECT, NOW, describe_model)                              \
    X(QueryScaling, QUERY_SCALING, 7, INSPECT, NOW, query_scaling)                                 \
    X(SetScaling, SET_SCALING, 8, TRAIN, ORDERED, set_scaling)                                     \
    X(SetRecipe, SET_RECIPE, 9, TRAIN, ORDERED, set_recipe)                                        \
    X(LoadBegin, LOAD_BEGIN, 10, ADMIN, ORDERED, load_begin)                                       \
    X(LoadAttach, LOAD_ATTACH, 11, ADMIN, ORDERED, load_attach)                                    \
    X(LoadCommit, LOAD_COMMIT, 12, ADMIN, ORDERED, load_commit)                                    \
    X(DropModel, DROP_MODEL, 13, ADMIN, ORDERED, drop_model)                                       \
    X(EditWeight, EDIT_WEIGHT, 14, TRAIN, ORDERED, edit_weight)                                    \
    X(CreateModel, CREATE_MODEL, 15, ADMIN, ORDERED, create_model)                                 \
    X(SaveBegin, SAVE_BEGIN, 16, ADMIN, ORDERED, save_begin)                                       \
    X(SaveAttach, SAVE_ATTACH, 17, ADMIN, ORDERED, save_attach)                                    \
    X(SaveCommit, SAVE_COMMIT, 18, ADMIN, ORDERED, save_commit)                                    \
    X(PutTensor, PUT_TENSOR, 20, RUN, ORDERED, put_tensor)                                         \
    X(GetTensor, GET_TENSOR, 21, RUN, ORDERED, get_tensor)                                         \
    X(FreeTensor, FREE_TENSOR, 22, RUN, ORDERED, free_tensor)                                      \
    X(Forward, FORWARD, 30, RUN, ORDERED, forward)                                                 \
    X(BeginScope, BEGIN_SCOPE, 31, TRAIN, ORDERED, begin_scope)                                    \
    X(EndScope, END_SCOPE, 32, TRAIN, ORDERED, end_scope)                                          \
    X(FinishCalibration, FINISH_CALIBRATION, 33, TRAIN, ORDERED, finish_calibration)               \
    X(DropContext, DROP_CONTEXT, 34, RUN, ORDERED, drop_context)                                   \
    X(CheckNumerics, CHECK_NUMERICS, 35, RUN, ORDERED, check_numerics)                             \
    X(Backward, BACKWARD, 40, TRAIN, ORDERED, backward)                                            \
    X(ZeroGrad, ZERO_GRAD, 41, TRAIN, ORDERED, zero_grad)                                          \
    X(GetGradient, GET_GRADIENT, 42, RUN, ORDERED, get_gradient)                                   \
    X(SetOptimizer, SET_OPTIMIZER, 43, TRAIN, ORDERED, set_optimizer)                              \
    X(Step, STEP, 44, TRAIN, ORDERED, step)                                                        \
    X(Recompute, RECOMPUTE, 45, RUN, ORDERED, recompute)

enum request_type {
#define X(Name, NAME, type, class, order, snake) REQUEST_##NAME = (type),
    REQUEST_LIST(X)
#undef X
};

/* Server events (id 0). */
#define EVENT_GOAWAY 0x8001

enum request_class {
    CLASS_INSPECT = 1,
    CLASS_RUN = 2,
    CLASS_TRAIN = 4,
    CLASS_ADMIN = 8,
};

enum request_order {
    ORDER_ORDERED,
    ORDER_NOW,
    ORDER_LOOP,
};

/* Version of the schema. Major: incompatible. Minor: additive. */
#define SCHEMA_MAJOR 1
#define SCHEMA_MINOR 0
#define SCHEMA_MIN_MINOR 0

#endif
