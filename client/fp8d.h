/* fp8d.h - the client library of fp8d, the service that owns FP8 neural-network layers.
 *
 * A handle is one connection to a daemon on this host. Every request has a call that waits for its
 * reply, fp8d_NAME(), and one that only sends it, fp8d_submit_NAME(), whose reply is fetched by
 * fp8d_wait(): many requests may be under way at once, and the server runs those that compute in
 * the order they were sent. Numbers of tensors, contexts, scopes, loads and saves are chosen by the
 * client, so that put, forward and get can be sent without waiting in between.
 *
 * Return values. 0 is good; a negative number is a code of enum fp8d_code, or a negative errno of
 * this host. With a failure comes one sentence in the struct fp8d_error given (NULL is fine).
 * Outputs are untouched on failure. An error that came from the server means that nothing changed
 * there; FP8D_ECLOSED, FP8D_EPROTOCOL, negative errno values and -ETIMEDOUT do not say whether a
 * request ran.
 *
 * Threads. A handle belongs to one thread at a time; different handles are independent. The
 * library starts no thread, never prints, never ends the process, raises no SIGPIPE, and keeps no
 * state outside its handles but a pool of freed tensor memory (at most 256 MiB a process). In a
 * forked child every call on the parent's handle returns FP8D_EFORKED, and fp8d_close only frees
 * it.
 *
 * Sending never deadlocks with a server that replies meanwhile: replies are received while a
 * request is sent. Text from the server (names, messages) is foreign: escape it before it is
 * shown.
 *
 * Structs given to the library: zero them first (`= {0}` or designated initialisers); zero always
 * means "the default" or "absent". They need to live during the call only, buffers for outputs
 * until the request was waited for, forgotten, or its handle closed.
 *
 * The rules behind the calls are in fp8d-protocol(7) and the manual of the daemon.
 */
#ifndef FP8D_H
#define FP8D_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FP8D_API __attribute__((visibility("default")))
#else
#define FP8D_API
#endif

#define FP8D_VERSION_SCHEMA_MAJOR 1 /* of the wire, as this header knows it */
#define FP8D_VERSION_SCHEMA_MINOR 0

/* ------------------------------------------------------------------ codes */

/* -1001 to -1016 are the google.rpc codes 1 to 16, shifted. */
#ifndef FP8D_BASE_STATUS_H /* inside the project base/status.h comes first and has the same */
enum fp8d_code {
    FP8D_ECANCELLED = -1001,          /* by fp8d_cancel; was not executed */
    FP8D_EUNKNOWN = -1002,            /* a code this library does not know */
    FP8D_EINVALID_ARGUMENT = -1003,   /* the sentence names field, value found and value needed */
    FP8D_EDEADLINE_EXCEEDED = -1004,  /* fp8d_call.deadline_ms passed in the queue; not executed */
    FP8D_ENOT_FOUND = -1005,          /* no such model, layer, tensor, scope, request */
    FP8D_EALREADY_EXISTS = -1006,     /* a number is in use on this connection */
    FP8D_EPERMISSION_DENIED = -1007,
    FP8D_ERESOURCE_EXHAUSTED = -1008, /* a cap or the memory budget; see retry_after_ms */
    FP8D_EFAILED_PRECONDITION = -1009, /* e.g. another client's scope, another version */
    FP8D_EABORTED = -1010,            /* a request it needs failed; a file changed while read */
    FP8D_EOUT_OF_RANGE = -1011,       /* e.g. a reply larger than the buffer given for it */
    FP8D_EUNIMPLEMENTED = -1012,      /* the server does not know this request */
    FP8D_EINTERNAL = -1013,
    FP8D_EUNAVAILABLE = -1014,        /* the server is stopping */
    FP8D_EDATA_LOSS = -1015,          /* a file is damaged */
    FP8D_EUNAUTHENTICATED = -1016,
    FP8D_EPROTOCOL = -1101,           /* the server broke the protocol; the handle is dead */
    FP8D_ECLOSED = -1102,             /* the server closed the connection; the handle is dead */
    FP8D_EFORKED = -1103,             /* the handle belongs to the parent process */
};
#endif

/* Where in its life a request failed at the server. */
enum fp8d_stage {
    FP8D_STAGE_NONE = 0, /* not known, or this library found the fault */
    FP8D_STAGE_RECEIVE = 1,
    FP8D_STAGE_DECODE = 2,
    FP8D_STAGE_QUEUE = 3,
    FP8D_STAGE_COPY = 4,
    FP8D_STAGE_COMPUTE = 5,
    FP8D_STAGE_FILE = 6,
};

#define FP8D_ERROR_TEXT 1024

struct fp8d_error {
    int code;                   /* what the call returned */
    enum fp8d_stage stage;
    uint32_t retry_after_ms;    /* for FP8D_ERESOURCE_EXHAUSTED; 0: no hint */
    char text[FP8D_ERROR_TEXT]; /* one sentence without control characters or final newline */
};

/* "NOT_FOUND", "ENOENT", ...; never NULL. */
FP8D_API const char *fp8d_code_name(int code);
/* "not found", "No such file or directory", ...; never NULL. */
FP8D_API const char *fp8d_code_text(int code);
/* "receive", "decode", ...; "" for FP8D_STAGE_NONE and numbers outside the list. */
FP8D_API const char *fp8d_stage_name(enum fp8d_stage stage);

/* ------------------------------------------------------------------ connection */

struct fp8d;        /* a connection */
struct fp8d_result; /* a reply; owns all it points to */

struct fp8d_options {
    uint32_t connect_timeout_ms; /* to connect and to be greeted; 0: 5000 */
    uint32_t call_timeout_ms;    /* longest one call may wait, -ETIMEDOUT then; 0: for ever */
    const char *client_name;     /* for the server's log, at most 128 bytes; NULL: "libfp8d" */
    const char *client_version;  /* likewise; NULL: the library's */
    uint32_t spin_us;            /* how long a wait looks for an answer, on a core of its own, before
                                    it sleeps until one comes; 0: it sleeps at once. 100 or so
                                    spares short requests a wake-up */
};

/* What the server said when it greeted. Belongs to the handle. */
struct fp8d_server {
    const char *name, *version; /* of the program */
    uint32_t schema_major, schema_minor, min_schema_minor;
    const char *const *capabilities; /* e.g. "load", "forward" */
    size_t capabilities_count;
    const char *backend; /* "cpu", "cuda" */
    const char *device;
    uint64_t instance_id; /* another one after each start of the server */
    uint32_t meta_bytes;  /* largest description of one request */
    uint64_t payload_bytes; /* most tensor bytes in one request */
    uint32_t descriptors;   /* most files of one request */
    uint32_t in_flight;     /* ordered requests waiting or running, of this
                              connection; 64 questions beside them */
    uint64_t resident_bytes; /* tensors and contexts of this connection */
    uint32_t contexts, tensors; /* of this connection */
    uint32_t connections;       /* of the server */
};

/* Connect to the daemon at socket `path` (at most 107 bytes) and exchange greetings. NULL: the
 * default of fp8d_default_socket. Fails with -ENOENT, -ECONNREFUSED, -EACCES, -ETIMEDOUT,
 * FP8D_EINVALID_ARGUMENT (path too long, the sentence has its length), FP8D_EUNIMPLEMENTED or
 * FP8D_EFAILED_PRECONDITION (versions that do not fit, as the server or this library found; both are
 * named), or another reason the server gave. */
FP8D_API int fp8d_connect(const char *path, const struct fp8d_options *options, struct fp8d **out,
                          struct fp8d_error *err);

/* End the connection: what waits in line at the server ends with it, and so do its tensors,
 * contexts and scopes. NULL is fine. */
FP8D_API void fp8d_close(struct fp8d *c);

FP8D_API const struct fp8d_server *fp8d_server_info(const struct fp8d *c);

/* The socket used when none is named: $FP8D_SOCKET (ignored in set-uid programs), else
 * /run/fp8d/0/fp8d.sock if it exists or the user is root or fp8d, else $XDG_RUNTIME_DIR/fp8d.sock.
 * FP8D_ENOT_FOUND if there is none of them, FP8D_EINVALID_ARGUMENT if it is longer than 107 bytes.
 * `out` has room for `size` bytes, 108 are enough. */
FP8D_API int fp8d_default_socket(char *out, size_t size, struct fp8d_error *err);

/* "MAJOR.MINOR.PATCH" of this library. */
FP8D_API const char *fp8d_version(void);

/* ------------------------------------------------------------------ requests in flight */

/* What may be said with any request; NULL for all defaults. */
struct fp8d_call {
    uint32_t deadline_ms;   /* to leave the server's queue, counted from its arrival; 0: none */
    uint64_t trace_id;      /* for logs, any value */
    const uint64_t *needs;  /* earlier requests of this handle that must have succeeded, else */
    size_t needs_count;     /* FP8D_EABORTED; at most 16 */
    bool ordered;           /* a question: wait in line behind the compute requests sent before */
};

/* Most requests of one handle that are under way or whose result was not fetched yet: one more is
 * FP8D_ERESOURCE_EXHAUSTED. When as many are under way as the server allows
 * (fp8d_server.in_flight), a submit call first waits for a reply. */
#define FP8D_PENDING_MAX 1024

/* Wait for the reply to request `id` and take it. Each id is taken once, in any order;
 * FP8D_ENOT_FOUND for an id that is not pending. After -ETIMEDOUT the request is still under way
 * and may be waited for again. A reply that says it failed is returned as its code, and no result.
 * `out` NULL: the result is dropped. */
FP8D_API int fp8d_wait(struct fp8d *c, uint64_t id, struct fp8d_result **out,
                       struct fp8d_error *err);

/* Give up interest in a pending request: its reply will be dropped, its output buffer is not
 * written any more. It is not cancelled. */
FP8D_API int fp8d_forget(struct fp8d *c, uint64_t id, struct fp8d_error *err);

/* NULL is fine. */
FP8D_API void fp8d_result_free(struct fp8d_result *r);

/* Of every reply. */
struct fp8d_reply {
    uint64_t incarnation, weight_version; /* of the model named, when it was served; 0: none */
    uint64_t queue_us, run_us;            /* waiting in the queue; from leaving it to the reply */
};

FP8D_API const struct fp8d_reply *fp8d_result_reply(const struct fp8d_result *r);

/* ------------------------------------------------------------------ tensors */

/* Element types; the numbers are those of the wire. Those from F64 on are only reported. */
enum fp8d_dtype {
    FP8D_DTYPE_NONE = 0,
    FP8D_F32 = 1,
    FP8D_BF16 = 2,
    FP8D_F16 = 3,
    FP8D_F8_E4M3 = 4, /* E4M3FN: no infinities, largest 448 */
    FP8D_F8_E5M2 = 5, /* largest 57344 */
    FP8D_F64 = 6,
    FP8D_BOOL = 7,
    FP8D_F4 = 8,
    FP8D_F6_E2M3 = 9,
    FP8D_F6_E3M2 = 10,
    FP8D_U8 = 11,
    FP8D_I8 = 12,
    FP8D_F8_E8M0 = 13,
    FP8D_F8_E4M3FNUZ = 14,
    FP8D_F8_E5M2FNUZ = 15,
    FP8D_I16 = 16,
    FP8D_U16 = 17,
    FP8D_I32 = 18,
    FP8D_U32 = 19,
    FP8D_C64 = 20,
    FP8D_I64 = 21,
    FP8D_U64 = 22,
};

enum fp8d_granularity {
    FP8D_GRANULARITY_DEFAULT = 0, /* tensor */
    FP8D_GRANULARITY_TENSOR = 1,  /* one factor */
};

#define FP8D_RANK_MAX 8

/* A contiguous, row-major, little-endian tensor: in a request an input, in a result an output.
 * Either bytes (`data`, `size`), or a tensor that is resident at the server (`tensor_id` not 0). */
struct fp8d_tensor {
    enum fp8d_dtype dtype;
    uint32_t rank;                /* 1 to 8; 0 only with tensor_id: as it was put */
    uint64_t dims[FP8D_RANK_MAX]; /* outermost first; may be 0 */
    const void *data;
    uint64_t size;      /* bytes; must be what dtype and dims say */
    uint64_t tensor_id; /* then data and size are not used */
    /* FP8 only, and required there: real value = code * scale_inv. */
    enum fp8d_granularity granularity;
    const float *scale_inv;
    size_t scale_inv_count; /* 1 */
};

/* Where output bytes shall go; data NULL: the library allocates. A reply of more than `size` bytes
 * is FP8D_EOUT_OF_RANGE (its request was executed all the same). After other failures the contents
 * are undefined. */
struct fp8d_buffer {
    void *data;
    uint64_t size;
};

/* "F32", "BF16", "F8_E4M3", ...; "?" for numbers outside the list. */
FP8D_API const char *fp8d_dtype_name(enum fp8d_dtype dtype);

/* A model that a changing request expects; zeros: not checked. Else FP8D_EFAILED_PRECONDITION. */
struct fp8d_expect {
    uint64_t incarnation, weight_version;
};

enum fp8d_recipe_kind {
    FP8D_RECIPE_DEFAULT = 0, /* delayed, or what the file or model has */
    FP8D_RECIPE_DELAYED = 1, /* scales from the history of past maxima */
    FP8D_RECIPE_CURRENT = 2, /* scale from the tensor itself */
};

enum fp8d_format {
    FP8D_FORMAT_DEFAULT = 0, /* hybrid */
    FP8D_FORMAT_HYBRID = 1,  /* E4M3 for inputs and weights, E5M2 for gradients */
    FP8D_FORMAT_E4M3 = 2,
};

enum fp8d_amax_algo {
    FP8D_AMAX_DEFAULT = 0, /* max */
    FP8D_AMAX_MAX = 1,
    FP8D_AMAX_MOST_RECENT = 2,
};

/* How the FP8 GEMM of a forward adds its products; gradients are always precise. */
enum fp8d_accumulation {
    FP8D_ACCUMULATION_DEFAULT = 0, /* fast */
    FP8D_ACCUMULATION_FAST = 1,    /* as the tensor core does: about 13 significant bits */
    FP8D_ACCUMULATION_PRECISE = 2, /* float32 every 128 products; the CPU backend always is */
};

/* The scaling recipe of a model. In requests zero means "not set": a load then takes what the file
 * saved, fp8d_set_recipe keeps what the model has, and where there is neither, the default holds. A
 * recipe in a result is complete, and may be given to a request as it is. */
struct fp8d_recipe {
    enum fp8d_recipe_kind kind;
    enum fp8d_format format;
    enum fp8d_amax_algo amax_algo;
    uint32_t amax_history_len; /* 1 to 65536; 0: 1024 */
    uint32_t margin;           /* 0 to 31: the scale is divided by 2^margin; default 0 */
    bool margin_set;           /* a margin of 0 is meant; any other margin is set by itself */
    enum fp8d_accumulation fprop_accumulation; /* no scale and no cast depends on it */
};

/* What one cast to FP8 did. */
struct fp8d_cast {
    enum fp8d_dtype dtype;
    float scale;        /* multiplied to quantise */
    float scale_inv;    /* multiplies to dequantise: what the bytes carry */
    float amax;         /* max |x| over finite elements */
    uint64_t saturated; /* elements, of the tensor cast */
    uint64_t flushed;   /* non-zero elements that became zero */
    uint64_t nonfinite;
    bool uncalibrated;  /* a site without a scale, in eval: the scale came from this tensor */
};

/* ------------------------------------------------------------------ session */

/* Does the server answer? Answered even while it computes. */
FP8D_API int fp8d_ping(struct fp8d *c, const struct fp8d_call *call, struct fp8d_result **out,
                       struct fp8d_error *err);
FP8D_API int fp8d_submit_ping(struct fp8d *c, const struct fp8d_call *call, uint64_t *id,
                              struct fp8d_error *err);

enum fp8d_cancel_outcome {
    FP8D_CANCEL_UNKNOWN = 0,
    FP8D_CANCEL_REMOVED = 1,  /* it waited in line: it answers FP8D_ECANCELLED, was not executed */
    FP8D_CANCEL_STOPPING = 2, /* a load or a save: it stops at its next block */
    FP8D_CANCEL_RUNNING = 3,  /* running compute finishes and answers as usual */
};

/* Cancel request `target`, which must still be waited for or forgotten. FP8D_ENOT_FOUND if the
 * server has it no longer. */
FP8D_API int fp8d_cancel(struct fp8d *c, uint64_t target, const struct fp8d_call *call,
                         struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_cancel(struct fp8d *c, uint64_t target, const struct fp8d_call *call,
                                uint64_t *id, struct fp8d_error *err);
/* FP8D_CANCEL_UNKNOWN if r is no reply to a cancel. */
FP8D_API enum fp8d_cancel_outcome fp8d_result_cancel(const struct fp8d_result *r);

struct fp8d_status {
    const char *server_version;
    uint64_t instance_id, pid;
    uint64_t uptime_ms;
    const char *backend, *device;
    const char *backend_reason; /* why this backend was taken */
    uint64_t memory_used, memory_limit, memory_peak; /* bytes of host memory, for its clients */
    uint32_t connections, models, contexts, scopes;
    uint32_t queued, running; /* compute requests */
    uint64_t requests_done, forwards_done;
    uint64_t progress_age_ms; /* since the compute queue last moved while it had work; 0: idle */
    bool draining;            /* it is stopping */
    uint64_t device_memory_used, device_memory_total; /* bytes of a GPU's arena; CPU backend: 0 */
    const char *plans; /* algorithms of a GPU's GEMMs: "auto", "timed", "reproducible" */
    uint64_t parameters, model_bytes; /* those of struct fp8d_model, of all models */
};

FP8D_API int fp8d_get_status(struct fp8d *c, const struct fp8d_call *call, struct fp8d_result **out,
                             struct fp8d_error *err);
FP8D_API int fp8d_submit_get_status(struct fp8d *c, const struct fp8d_call *call, uint64_t *id,
                                    struct fp8d_error *err);
/* This and all accessors below: NULL if r is a reply to something else. Belongs to r. */
FP8D_API const struct fp8d_status *fp8d_result_status(const struct fp8d_result *r);

/* ------------------------------------------------------------------ models */

struct fp8d_model {
    const char *name;
    uint64_t incarnation, weight_version;
    uint32_t layers;
    uint64_t parameters;
    uint64_t bytes; /* weights, biases, FP8 copies, scaling state, gradients, masters, moments */
    struct fp8d_recipe recipe;
    uint32_t creator_uid;
    bool scope_open, calibrating;
    uint32_t contexts; /* that hold this incarnation */
};

struct fp8d_models {
    const struct fp8d_model *models; /* sorted by name */
    size_t count;
};

FP8D_API int fp8d_list_models(struct fp8d *c, const struct fp8d_call *call,
                              struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_list_models(struct fp8d *c, const struct fp8d_call *call, uint64_t *id,
                                     struct fp8d_error *err);
FP8D_API const struct fp8d_models *fp8d_result_models(const struct fp8d_result *r);

struct fp8d_layer {
    const char *name;
    const char *kind; /* "linear" */
    uint64_t in_features, out_features;
    enum fp8d_dtype weight_dtype;
    enum fp8d_dtype bias_dtype; /* FP8D_DTYPE_NONE: no bias */
    uint64_t weight_version;
    uint64_t cached_version; /* weight version of the FP8 training copy; 0: no copy */
    uint64_t bytes;
    float weight_scale_inv; /* FP8 primary weight: real = code * this; 0: high precision */
    uint64_t gradients;     /* backward requests that the gradient it holds is the sum of; 0: none */
    const struct fp8d_layer_options *optimizer; /* what it has otherwise; NULL: nothing */
};

struct fp8d_description {
    struct fp8d_model model;
    const struct fp8d_optimizer *optimizer; /* in force, defaults filled in; NULL: none is set */
    uint64_t next_step; /* the number that the next step must have; 0 without an optimizer */
    uint64_t updates;   /* steps that were applied with this kind */
    const struct fp8d_layer *layers; /* sorted by name */
    size_t count;
};

FP8D_API int fp8d_describe_model(struct fp8d *c, const char *model, const struct fp8d_call *call,
                                 struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_describe_model(struct fp8d *c, const char *model,
                                        const struct fp8d_call *call, uint64_t *id,
                                        struct fp8d_error *err);
FP8D_API const struct fp8d_description *fp8d_result_description(const struct fp8d_result *r);

/* One quantisation site: one place where one tensor of one layer is quantised. */
struct fp8d_site {
    const char *name; /* "input", "weight", "output", "grad_output", "grad_input" */
    enum fp8d_dtype dtype;
    bool set; /* it has a scale from an update, a file, or calibration */
    float scale, scale_inv;
    float scale_inv_in_use; /* of the FP8 bytes in use now (weight: the training copy); 0: none */
    float amax_last;
    float collecting;     /* row 0: what the next update will see, an open scope included */
    const float *history; /* past maxima, newest first; empty unless asked for */
    size_t history_count;
    uint64_t updates, skipped_updates;
    uint64_t saturated, flushed, nonfinite; /* elements, counted over all casts */
    float calibration_amax;       /* of an unfinished calibration; 0: none */
    uint64_t uncalibrated_casts;  /* of eval and check since the load */
};

struct fp8d_layer_scaling {
    const char *name;
    uint64_t weight_version, cached_version;
    const struct fp8d_site *sites;
    size_t count;
};

struct fp8d_scaling {
    const char *model;
    struct fp8d_recipe recipe;
    bool frozen, calibrating, scope_open;
    const struct fp8d_layer_scaling *layers; /* sorted by name */
    size_t count;
};

/* The scaling state of `layer`, or of all layers (NULL). */
FP8D_API int fp8d_query_scaling(struct fp8d *c, const char *model, const char *layer, bool history,
                                const struct fp8d_call *call, struct fp8d_result **out,
                                struct fp8d_error *err);
FP8D_API int fp8d_submit_query_scaling(struct fp8d *c, const char *model, const char *layer,
                                       bool history, const struct fp8d_call *call, uint64_t *id,
                                       struct fp8d_error *err);
FP8D_API const struct fp8d_scaling *fp8d_result_scaling(const struct fp8d_result *r);

/* Remove a model; its name is free at once. */
FP8D_API int fp8d_drop_model(struct fp8d *c, const char *model, const struct fp8d_expect *expect,
                             const struct fp8d_call *call, struct fp8d_result **out,
                             struct fp8d_error *err);
FP8D_API int fp8d_submit_drop_model(struct fp8d *c, const char *model,
                                    const struct fp8d_expect *expect, const struct fp8d_call *call,
                                    uint64_t *id, struct fp8d_error *err);

struct fp8d_edit_weight {
    const char *model, *layer;
    struct fp8d_tensor weight;      /* [out, in], F32, BF16 or F16 */
    const struct fp8d_tensor *bias; /* [out]; NULL: kept */
    struct fp8d_expect expect;
};

/* Replace the weight of a layer; the weight version goes up. */
FP8D_API int fp8d_edit_weight(struct fp8d *c, const struct fp8d_edit_weight *edit,
                              const struct fp8d_call *call, struct fp8d_result **out,
                              struct fp8d_error *err);
FP8D_API int fp8d_submit_edit_weight(struct fp8d *c, const struct fp8d_edit_weight *edit,
                                     const struct fp8d_call *call, uint64_t *id,
                                     struct fp8d_error *err);

/* ------------------------------------------------------------------ loading checkpoints */

struct fp8d_load_options {
    struct fp8d_recipe recipe;
    bool no_strict;          /* what strict refuses becomes a line of the report */
    const char *const *only; /* globs over layer names: claim these alone; at most 256 */
    size_t only_count;
    const char *const *skip; /* globs over layer names: do not claim these; at most 256 */
    size_t skip_count;
    /* High-precision weights become FP8 primary weights, cast with the scale that the file has for
     * them, or one from their own maximum. Not together with dequantize. */
    bool primary_fp8;
    enum fp8d_dtype dequantize; /* F32 or BF16: FP8 weights become high precision; 0: they stay */
    bool allow_nan;             /* FP8 weights may hold NaN codes, which are counted */
    bool finish_calibration;    /* of a file saved with a calibration unfinished: finish it */
    bool no_optimizer;          /* of a save: without optimizer state and gradients, for serving */
};

struct fp8d_progress {
    uint64_t bytes_done, bytes_total;
    uint32_t tensors_done, tensors_total;
    const char *stage; /* "read"; of a save "write" */
};

/* Called from inside a call on the handle, which it must not use. */
typedef void (*fp8d_progress_cb)(void *arg, const struct fp8d_progress *progress);

struct fp8d_load_report {
    uint32_t layers;
    uint64_t parameters, bytes_read;
    uint64_t read_us;
    struct fp8d_recipe recipe;
    const char *const *loaded; /* layer names; long lists are cut */
    size_t loaded_count;
    const char *const *ignored; /* "name (reason)"; long lists are cut */
    size_t ignored_count;
    uint32_t ignored_total;
    const char *const *notes; /* what a user should know, a sentence each */
    size_t notes_count;
    const char *const *converted; /* "layer (from F8_E4M3 to BF16)"; long lists are cut */
    size_t converted_count;
    uint64_t nan_codes; /* in FP8 weights, with allow_nan */
};

/* Load the safetensors file `path`, opened here with this process's rights, as `model`, which is
 * replaced if it exists (at once, when all of the file proved good). `options`, `progress`: NULL is
 * fine. The result has the report. */
FP8D_API int fp8d_load_file(struct fp8d *c, const char *model, const char *path,
                            const struct fp8d_load_options *options, fp8d_progress_cb progress,
                            void *arg, struct fp8d_result **out, struct fp8d_error *err);

/* Likewise a path at the server, below a directory of its configuration. */
FP8D_API int fp8d_load_server_path(struct fp8d *c, const char *model, const char *path,
                                   const struct fp8d_load_options *options,
                                   fp8d_progress_cb progress, void *arg, struct fp8d_result **out,
                                   struct fp8d_error *err);

/* NULL if r is no reply to a load. */
FP8D_API const struct fp8d_load_report *fp8d_result_load(const struct fp8d_result *r);

/* The three requests of which the two above are made, for own bookkeeping. */
struct fp8d_load_begin {
    uint64_t load_id; /* not 0, not in use on this connection */
    const char *model;
    const char *server_path; /* NULL: the file comes by fp8d_load_attach */
    const struct fp8d_load_options *options;
    struct fp8d_expect expect; /* of the model to be replaced */
};

FP8D_API int fp8d_load_begin(struct fp8d *c, const struct fp8d_load_begin *load,
                             const struct fp8d_call *call, struct fp8d_result **out,
                             struct fp8d_error *err);
FP8D_API int fp8d_submit_load_begin(struct fp8d *c, const struct fp8d_load_begin *load,
                                    const struct fp8d_call *call, uint64_t *id,
                                    struct fp8d_error *err);
/* `count` open descriptors of regular files and their names (without '/', 1 to 255 bytes).
 * This server takes one: more, or a second attach, is FP8D_EUNIMPLEMENTED. The descriptors stay the
 * caller's, who may close them when the call has returned. */
FP8D_API int fp8d_load_attach(struct fp8d *c, uint64_t load_id, const int *fds,
                              const char *const *names, size_t count, const struct fp8d_call *call,
                              struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_load_attach(struct fp8d *c, uint64_t load_id, const int *fds,
                                     const char *const *names, size_t count,
                                     const struct fp8d_call *call, uint64_t *id,
                                     struct fp8d_error *err);
FP8D_API int fp8d_load_commit(struct fp8d *c, uint64_t load_id, fp8d_progress_cb progress,
                              void *arg, const struct fp8d_call *call, struct fp8d_result **out,
                              struct fp8d_error *err);
FP8D_API int fp8d_submit_load_commit(struct fp8d *c, uint64_t load_id, fp8d_progress_cb progress,
                                     void *arg, const struct fp8d_call *call, uint64_t *id,
                                     struct fp8d_error *err);

/* ------------------------------------------------------------------ saving */

struct fp8d_save_options {
    struct fp8d_expect expect; /* of the model that is saved */
    bool no_optimizer;         /* without optimizer state and gradients: enough to serve */
};

struct fp8d_save_report {
    uint64_t bytes_written, write_us;
    uint32_t tensors;
};

/* Save `model` as it is between two requests, with all its state (weights, scaling, optimizer,
 * gradients that wait for a step), as the safetensors file `path`.
 * The new bytes go to the temporary ".NAME.fp8d-save" in the same folder, with the target's
 * permissions if it exists, and take its name when all of them are on the disk: the target is the
 * old file or the new one, whole, whatever fails. After a failure no temporary stays; after the end
 * of this process amid a save one may, which the next save to `path` takes over. A symbolic link is
 * replaced, not followed. FP8D_EFAILED_PRECONDITION while a scope is open on the model,
 * FP8D_EABORTED while another save to `path` is under way, negative errno values for what this host
 * refuses. `options`, `progress`: NULL is fine. The result has the report. */
FP8D_API int fp8d_save_file(struct fp8d *c, const char *model, const char *path,
                            const struct fp8d_save_options *options, fp8d_progress_cb progress,
                            void *arg, struct fp8d_result **out, struct fp8d_error *err);

/* Likewise a path at the server, below a directory of its configuration. */
FP8D_API int fp8d_save_server_path(struct fp8d *c, const char *model, const char *path,
                                   const struct fp8d_save_options *options,
                                   fp8d_progress_cb progress, void *arg, struct fp8d_result **out,
                                   struct fp8d_error *err);

/* NULL if r is no reply to a save. */
FP8D_API const struct fp8d_save_report *fp8d_result_save(const struct fp8d_result *r);

/* The three requests of which the two above are made. */
struct fp8d_save_begin {
    uint64_t save_id; /* not 0, not in use on this connection */
    const char *model;
    const char *server_path; /* NULL: the file comes by fp8d_save_attach */
    struct fp8d_expect expect;
    bool no_optimizer;
};

FP8D_API int fp8d_save_begin(struct fp8d *c, const struct fp8d_save_begin *save,
                             const struct fp8d_call *call, struct fp8d_result **out,
                             struct fp8d_error *err);
FP8D_API int fp8d_submit_save_begin(struct fp8d *c, const struct fp8d_save_begin *save,
                                    const struct fp8d_call *call, uint64_t *id,
                                    struct fp8d_error *err);
/* One open descriptor of a regular file, writable, not O_APPEND, and its name (without
 * '/', 1 to 255 bytes). The file becomes exactly the save, and is on the disk when the commit has
 * answered. The descriptor stays the caller's, who may close it when the call has returned. */
FP8D_API int fp8d_save_attach(struct fp8d *c, uint64_t save_id, int fd, const char *name,
                              const struct fp8d_call *call, struct fp8d_result **out,
                              struct fp8d_error *err);
FP8D_API int fp8d_submit_save_attach(struct fp8d *c, uint64_t save_id, int fd, const char *name,
                                     const struct fp8d_call *call, uint64_t *id,
                                     struct fp8d_error *err);
FP8D_API int fp8d_save_commit(struct fp8d *c, uint64_t save_id, fp8d_progress_cb progress,
                              void *arg, const struct fp8d_call *call, struct fp8d_result **out,
                              struct fp8d_error *err);
FP8D_API int fp8d_submit_save_commit(struct fp8d *c, uint64_t save_id, fp8d_progress_cb progress,
                                     void *arg, const struct fp8d_call *call, uint64_t *id,
                                     struct fp8d_error *err);

/* ------------------------------------------------------------------ state and recipe of a model */

enum fp8d_scaling_action {
    FP8D_SCALING_RESET = 1,    /* histories 0, scale 1, sites unset, counters 0; FP8 copies and an
                                  unfinished calibration are dropped */
    FP8D_SCALING_FREEZE = 2,   /* updates are skipped, and counted so, until unfrozen */
    FP8D_SCALING_UNFREEZE = 3,
};

struct fp8d_scaling_set {
    uint32_t sites; /* that were reset */
};

/* Reset: FP8D_EFAILED_PRECONDITION while contexts or scopes are open on the model. */
FP8D_API int fp8d_set_scaling(struct fp8d *c, const char *model, enum fp8d_scaling_action action,
                              const struct fp8d_expect *expect, const struct fp8d_call *call,
                              struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_set_scaling(struct fp8d *c, const char *model,
                                     enum fp8d_scaling_action action,
                                     const struct fp8d_expect *expect,
                                     const struct fp8d_call *call, uint64_t *id,
                                     struct fp8d_error *err);
FP8D_API const struct fp8d_scaling_set *fp8d_result_scaling_set(const struct fp8d_result *r);

struct fp8d_recipe_set {
    struct fp8d_recipe recipe; /* in force now */
    const char *const *notes;  /* what changed, a sentence each */
    size_t notes_count;
};

/* Give a live model another recipe; fields that are not set keep what it has. FP8 copies of weights
 * are dropped; scales stay where the FP8 format does; histories keep their newest rows. Where
 * fprop_accumulation alone differs, all of these stay. FP8D_EFAILED_PRECONDITION while contexts or scopes are open on the model. */
FP8D_API int fp8d_set_recipe(struct fp8d *c, const char *model, const struct fp8d_recipe *recipe,
                             const struct fp8d_expect *expect, const struct fp8d_call *call,
                             struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_set_recipe(struct fp8d *c, const char *model,
                                    const struct fp8d_recipe *recipe,
                                    const struct fp8d_expect *expect, const struct fp8d_call *call,
                                    uint64_t *id, struct fp8d_error *err);
FP8D_API const struct fp8d_recipe_set *fp8d_result_recipe_set(const struct fp8d_result *r);

/* ------------------------------------------------------------------ models from tensors */

struct fp8d_layer_spec {
    const char *name;
    struct fp8d_tensor weight; /* [out, in], both multiples of 16; FP8: becomes a primary weight */
    const struct fp8d_tensor *bias; /* [out], F32, BF16 or F16; NULL: none */
};

struct fp8d_create_model {
    const char *model;
    struct fp8d_recipe recipe;
    const struct fp8d_layer_spec *layers;
    size_t count;     /* 1 to 4096; at most 4 of their tensors with bytes, the others resident */
    bool primary_fp8; /* as in fp8d_load_options */
};

struct fp8d_created {
    uint32_t layers;
    uint64_t parameters;
};

/* Make a model from tensors, which stay what they are. FP8D_EALREADY_EXISTS if the name is
 * taken. */
FP8D_API int fp8d_create_model(struct fp8d *c, const struct fp8d_create_model *create,
                               const struct fp8d_call *call, struct fp8d_result **out,
                               struct fp8d_error *err);
FP8D_API int fp8d_submit_create_model(struct fp8d *c, const struct fp8d_create_model *create,
                                      const struct fp8d_call *call, uint64_t *id,
                                      struct fp8d_error *err);
FP8D_API const struct fp8d_created *fp8d_result_created(const struct fp8d_result *r);

/* ------------------------------------------------------------------ resident tensors */

/* Keep a tensor at the server under `tensor_id` (not 0, not in use on this connection). */
FP8D_API int fp8d_put_tensor(struct fp8d *c, uint64_t tensor_id, const struct fp8d_tensor *tensor,
                             const struct fp8d_call *call, struct fp8d_result **out,
                             struct fp8d_error *err);
FP8D_API int fp8d_submit_put_tensor(struct fp8d *c, uint64_t tensor_id,
                                    const struct fp8d_tensor *tensor, const struct fp8d_call *call,
                                    uint64_t *id, struct fp8d_error *err);

/* Fetch one, into `buffer` if that is not NULL. */
FP8D_API int fp8d_get_tensor(struct fp8d *c, uint64_t tensor_id, const struct fp8d_buffer *buffer,
                             const struct fp8d_call *call, struct fp8d_result **out,
                             struct fp8d_error *err);
FP8D_API int fp8d_submit_get_tensor(struct fp8d *c, uint64_t tensor_id,
                                    const struct fp8d_buffer *buffer, const struct fp8d_call *call,
                                    uint64_t *id, struct fp8d_error *err);
FP8D_API const struct fp8d_tensor *fp8d_result_tensor(const struct fp8d_result *r);

FP8D_API int fp8d_free_tensor(struct fp8d *c, uint64_t tensor_id, const struct fp8d_call *call,
                              struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_free_tensor(struct fp8d *c, uint64_t tensor_id,
                                     const struct fp8d_call *call, uint64_t *id,
                                     struct fp8d_error *err);

/* ------------------------------------------------------------------ compute */

enum fp8d_mode {
    FP8D_MODE_DEFAULT = 0, /* eval */
    FP8D_MODE_EVAL = 1,    /* feeds nothing, changes no state */
    FP8D_MODE_TRAIN = 2,
    FP8D_MODE_CALIBRATE = 3, /* high precision; keeps the largest |x| of input and weight */
};

/* Is this the first microbatch since the weight changed? No flag can make a result wrong: FP8 bytes
 * always carry the factor that made them. */
enum fp8d_first_microbatch {
    FP8D_FIRST_UNSET = 0,
    FP8D_FIRST_YES = 1, /* cast the weight anew with the current scale */
    FP8D_FIRST_NO = 2,  /* reuse the cast bytes, whatever the scale is now */
};

enum fp8d_weight_copy {
    FP8D_WEIGHT_UNKNOWN = 0,
    FP8D_WEIGHT_REUSED = 1,     /* the training copy, with the factor it carries */
    FP8D_WEIGHT_CAST = 2,       /* cast anew, and kept as the training copy */
    FP8D_WEIGHT_RECAST = 3,     /* FP8D_FIRST_NO, but no copy of this weight version: cast anew */
    FP8D_WEIGHT_EVALUATION = 4, /* a copy beside the training copy */
    FP8D_WEIGHT_NONE = 5,       /* high precision: calibrate */
    FP8D_WEIGHT_PRIMARY = 6,    /* the weight itself is FP8 */
};

struct fp8d_forward {
    const char *model, *layer;
    enum fp8d_mode mode;
    enum fp8d_first_microbatch first_microbatch;
    struct fp8d_tensor input;     /* [..., in_features], F32, BF16, F16, or FP8 with its factor */
    enum fp8d_dtype output_dtype; /* F32, BF16, F16; 0: that of the input (FP8 input: BF16) */
    uint64_t output_id;           /* not 0: keep the output as this resident tensor */
    uint64_t context_id;          /* train: keep what backward needs under it; 0: nothing */
    struct fp8d_expect expect;
    struct fp8d_buffer output;    /* where the output shall go */
    bool time_compute;            /* read the device's clock: compute_ns of the result */
    bool replace_output;          /* output_id may be in use, by the input too: once the request has
                                     succeeded it names the output, and what was there is let go */
};

struct fp8d_forward_result {
    struct fp8d_tensor output; /* [..., out_features] */
    bool has_input, has_weight;
    struct fp8d_cast input;    /* if has_input: not in calibrate, nor for FP8 input */
    struct fp8d_cast weight;   /* if has_weight: of the bytes that were multiplied with */
    enum fp8d_weight_copy weight_copy;
    bool scales_applied; /* this request's own scope ended with it */
    uint64_t compute_ns; /* of the device's clock, from before the first to behind the last
                            operation, copies to and from the device included; 0 unless
                            time_compute, and for zero tokens */
};

/* y = x W^T + b. */
FP8D_API int fp8d_forward(struct fp8d *c, const struct fp8d_forward *forward,
                          const struct fp8d_call *call, struct fp8d_result **out,
                          struct fp8d_error *err);
FP8D_API int fp8d_submit_forward(struct fp8d *c, const struct fp8d_forward *forward,
                                 const struct fp8d_call *call, uint64_t *id,
                                 struct fp8d_error *err);
FP8D_API const struct fp8d_forward_result *fp8d_result_forward(const struct fp8d_result *r);

/* A scope brackets train requests on one model: scales are updated once, at its end. `scope_id`:
 * not 0, not in use on this connection. FP8D_EFAILED_PRECONDITION while another connection has
 * one. */
FP8D_API int fp8d_begin_scope(struct fp8d *c, uint64_t scope_id, const char *model,
                              const struct fp8d_expect *expect, const struct fp8d_call *call,
                              struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_begin_scope(struct fp8d *c, uint64_t scope_id, const char *model,
                                     const struct fp8d_expect *expect,
                                     const struct fp8d_call *call, uint64_t *id,
                                     struct fp8d_error *err);

struct fp8d_scope_end {
    uint32_t sites_updated, sites_skipped;
};

/* `discard`: end it without an update. */
FP8D_API int fp8d_end_scope(struct fp8d *c, uint64_t scope_id, bool discard,
                            const struct fp8d_call *call, struct fp8d_result **out,
                            struct fp8d_error *err);
FP8D_API int fp8d_submit_end_scope(struct fp8d *c, uint64_t scope_id, bool discard,
                                   const struct fp8d_call *call, uint64_t *id,
                                   struct fp8d_error *err);
FP8D_API const struct fp8d_scope_end *fp8d_result_scope_end(const struct fp8d_result *r);

enum fp8d_calibration_action {
    FP8D_CALIBRATION_FINISH = 1, /* set the scales from the maxima seen by FP8D_MODE_CALIBRATE */
    FP8D_CALIBRATION_ABORT = 2,  /* drop the maxima */
};

struct fp8d_calibration {
    uint32_t sites_set;   /* finish: scales set; abort: maxima dropped */
    uint32_t sites_unset; /* that no calibrate request reached, or only zeros */
};

FP8D_API int fp8d_finish_calibration(struct fp8d *c, const char *model,
                                     enum fp8d_calibration_action action,
                                     const struct fp8d_expect *expect,
                                     const struct fp8d_call *call, struct fp8d_result **out,
                                     struct fp8d_error *err);
FP8D_API int fp8d_submit_finish_calibration(struct fp8d *c, const char *model,
                                            enum fp8d_calibration_action action,
                                            const struct fp8d_expect *expect,
                                            const struct fp8d_call *call, uint64_t *id,
                                            struct fp8d_error *err);
FP8D_API const struct fp8d_calibration *fp8d_result_calibration(const struct fp8d_result *r);

/* Forget what a train forward kept under `context_id`. */
FP8D_API int fp8d_drop_context(struct fp8d *c, uint64_t context_id, const struct fp8d_call *call,
                               struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_drop_context(struct fp8d *c, uint64_t context_id,
                                      const struct fp8d_call *call, uint64_t *id,
                                      struct fp8d_error *err);

struct fp8d_check {
    double max_abs_error;     /* max |y8 - y|, outputs in F32 */
    double max_abs_reference; /* max |y| */
    double relative_error;    /* ||y8 - y|| / ||y||; 0 where both are 0 */
    bool has_input, has_weight;
    struct fp8d_cast input, weight;
    uint64_t input_elements, weight_elements;
    uint64_t nonfinite_outputs; /* left out of the errors */
};

/* FP8, as eval would compute it, against high precision, for one input (not FP8). Changes no
 * state. */
FP8D_API int fp8d_check_numerics(struct fp8d *c, const char *model, const char *layer,
                                 const struct fp8d_tensor *input, const struct fp8d_call *call,
                                 struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_check_numerics(struct fp8d *c, const char *model, const char *layer,
                                        const struct fp8d_tensor *input,
                                        const struct fp8d_call *call, uint64_t *id,
                                        struct fp8d_error *err);
FP8D_API const struct fp8d_check *fp8d_result_check(const struct fp8d_result *r);

/* ------------------------------------------------------------------ gradients */

/* A layer keeps the gradients of its weight and bias at the server, in F32. The first backward
 * overwrites them, each further one adds to them, until fp8d_zero_grad forgets them. Rules:
 * fp8d-protocol(7), Backward. */
struct fp8d_backward {
    uint64_t context_id;            /* of a train forward of this handle; ends with success */
    struct fp8d_tensor grad_output; /* [..., out_features], else the dimensions of the forward's
                                       input; F32, BF16, F16 */
    enum fp8d_dtype grad_input_dtype; /* F32, BF16, F16; 0: that of grad_output */
    uint64_t grad_input_id;         /* not 0: keep grad_input as this resident tensor */
    bool replace_grad_input;        /* grad_input_id may be in use, by grad_output too; as
                                       fp8d_forward.replace_output */
    bool no_grad_input;             /* compute none: what a network's first layer needs */
    struct fp8d_buffer grad_input;  /* where grad_input shall go */
    bool time_compute;              /* as in fp8d_forward */
};

struct fp8d_backward_result {
    bool has_grad_input, has_grad_output;
    struct fp8d_tensor grad_input; /* if has_grad_input: [..., in_features]; not with
                                      no_grad_input */
    struct fp8d_cast grad_output;  /* if has_grad_output: what its cast did; not for zero tokens */
    bool dropped;                  /* the model was replaced or unloaded since the forward: gradients
                                      and what the cast saw went nowhere */
    bool accumulated;              /* added to what the layer held; else it was overwritten */
    bool scales_applied;           /* this request's own scope ended with it */
    uint64_t compute_ns;           /* as in fp8d_forward_result */
};

/* grad_input = dy W, weight gradient (+)= dy^T x, bias gradient (+)= column sums of grad_output. dy
 * is grad_output cast to FP8 at the layer's site; W and x are the very FP8 tensors that the forward
 * multiplied, whatever became of scales, weight and model since. Contexts may be used in any order,
 * each once. FP8D_ENOT_FOUND: no such context, or it was used; FP8D_EINVALID_ARGUMENT: dimensions or
 * dtype of grad_output; FP8D_EFAILED_PRECONDITION: another connection has a scope on the model. The
 * context is still there after a failure. */
FP8D_API int fp8d_backward(struct fp8d *c, const struct fp8d_backward *backward,
                           const struct fp8d_call *call, struct fp8d_result **out,
                           struct fp8d_error *err);
FP8D_API int fp8d_submit_backward(struct fp8d *c, const struct fp8d_backward *backward,
                                  const struct fp8d_call *call, uint64_t *id,
                                  struct fp8d_error *err);
FP8D_API const struct fp8d_backward_result *fp8d_result_backward(const struct fp8d_result *r);

/* Activation recomputation. */
struct fp8d_recompute {
    uint64_t context_id;          /* of a train forward of this handle; it stays */
    enum fp8d_dtype output_dtype; /* F32, BF16, F16; 0: that of the forward's output */
    uint64_t output_id;           /* not 0: keep the output as this resident tensor */
    bool replace_output;          /* output_id may be in use, as in fp8d_forward */
    struct fp8d_buffer output;    /* where the output shall go */
    bool time_compute;            /* as in fp8d_forward */
};

struct fp8d_recompute_result {
    struct fp8d_tensor output; /* [..., out_features] */
    uint64_t compute_ns;       /* as in fp8d_forward_result */
};

/* The output of a context's forward once more, to the bit if output_dtype is the forward's: from the
 * FP8 tensors and the bias that it used, whatever became of scales, weight and model since. Nothing
 * is cast and no scale sees anything. The reply has the forward's incarnation and weight version.
 * FP8D_ENOT_FOUND: no such context, or a backward used it. */
FP8D_API int fp8d_recompute(struct fp8d *c, const struct fp8d_recompute *recompute,
                            const struct fp8d_call *call, struct fp8d_result **out,
                            struct fp8d_error *err);
FP8D_API int fp8d_submit_recompute(struct fp8d *c, const struct fp8d_recompute *recompute,
                                   const struct fp8d_call *call, uint64_t *id,
                                   struct fp8d_error *err);
FP8D_API const struct fp8d_recompute_result *
fp8d_result_recompute(const struct fp8d_result *r);

struct fp8d_grad_zeroed {
    uint32_t layers; /* that held a gradient */
};

/* Forget the gradients of all layers of a model: the next backward of each overwrites.
 * FP8D_ENOT_FOUND: no such model; FP8D_EFAILED_PRECONDITION: not the one expected, or another
 * connection has a scope on it. */
FP8D_API int fp8d_zero_grad(struct fp8d *c, const char *model, const struct fp8d_expect *expect,
                            const struct fp8d_call *call, struct fp8d_result **out,
                            struct fp8d_error *err);
FP8D_API int fp8d_submit_zero_grad(struct fp8d *c, const char *model,
                                   const struct fp8d_expect *expect, const struct fp8d_call *call,
                                   uint64_t *id, struct fp8d_error *err);
FP8D_API const struct fp8d_grad_zeroed *fp8d_result_grad_zeroed(const struct fp8d_result *r);

enum fp8d_gradient_part {
    FP8D_GRADIENT_DEFAULT = 0, /* weight */
    FP8D_GRADIENT_WEIGHT = 1,
    FP8D_GRADIENT_BIAS = 2,
};

struct fp8d_gradient {
    struct fp8d_tensor tensor; /* F32, with bytes: weight [out_features, in_features], bias
                                  [out_features] */
    uint64_t contributions;    /* backward requests that it is the sum of */
    uint64_t nonfinite;        /* NaN and Inf elements of their grad_output */
};

/* Fetch what a layer holds of a gradient, into `buffer` if that is not NULL.
 * FP8D_EFAILED_PRECONDITION: it holds none, or the layer has no bias. */
FP8D_API int fp8d_get_gradient(struct fp8d *c, const char *model, const char *layer,
                               enum fp8d_gradient_part part, const struct fp8d_buffer *buffer,
                               const struct fp8d_call *call, struct fp8d_result **out,
                               struct fp8d_error *err);
FP8D_API int fp8d_submit_get_gradient(struct fp8d *c, const char *model, const char *layer,
                                      enum fp8d_gradient_part part,
                                      const struct fp8d_buffer *buffer,
                                      const struct fp8d_call *call, uint64_t *id,
                                      struct fp8d_error *err);
FP8D_API const struct fp8d_gradient *fp8d_result_gradient(const struct fp8d_result *r);

/* ------------------------------------------------------------------ optimizer */

/* The rules and defaults of PyTorch's optimizers of these names. */
enum fp8d_optimizer_kind {
    FP8D_OPTIMIZER_SGD = 1,
    FP8D_OPTIMIZER_ADAM = 2,  /* weight decay is added to the gradient */
    FP8D_OPTIMIZER_ADAMW = 3, /* weight decay shrinks the weight */
};

/* All finite, none negative; 0 means the default where there is one. */
struct fp8d_optimizer {
    enum fp8d_optimizer_kind kind; /* required */
    double rate;                   /* learning rate; 0: 0.001 */
    double momentum;               /* SGD; 0: none */
    double dampening;              /* SGD, 0 to 1 */
    bool nesterov;                 /* SGD: needs a momentum and no dampening */
    double beta1;                  /* Adam, AdamW: below 1; 0: 0.9 */
    double beta2;                  /* Adam, AdamW: below 1; 0: 0.999 */
    double eps;                    /* Adam, AdamW; 0: 1e-8 */
    double weight_decay;           /* 0: SGD and Adam none, AdamW 0.01 */
    bool weight_decay_set;         /* a weight_decay of 0 is meant */
};

/* What one layer has otherwise than its model. */
struct fp8d_layer_options {
    const char *layer;
    double rate;           /* 0: the model's */
    double weight_decay;   /* 0: the model's */
    bool weight_decay_set; /* a weight_decay of 0 is meant */
    bool frozen;           /* steps leave it alone; its gradients are forgotten like the others */
};

struct fp8d_optimizer_set {
    uint64_t step;    /* the number that the next step must have */
    uint64_t updates; /* steps that were applied */
};

/* The optimizer of a model, all of it anew; `layers`: `count` of its layers, at most 4096, each once,
 * the others have what the model has. Masters and moments stay where kind and number of moments do,
 * else they are dropped and updates count from 0; steps always go on. FP8D_ENOT_FOUND: no such model
 * or layer; FP8D_EINVALID_ARGUMENT: an option, or a layer that is there twice;
 * FP8D_EFAILED_PRECONDITION: not the model expected, or another connection has a scope on it. */
FP8D_API int fp8d_set_optimizer(struct fp8d *c, const char *model,
                                const struct fp8d_optimizer *optimizer,
                                const struct fp8d_layer_options *layers, size_t count,
                                const struct fp8d_expect *expect, const struct fp8d_call *call,
                                struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_set_optimizer(struct fp8d *c, const char *model,
                                       const struct fp8d_optimizer *optimizer,
                                       const struct fp8d_layer_options *layers, size_t count,
                                       const struct fp8d_expect *expect,
                                       const struct fp8d_call *call, uint64_t *id,
                                       struct fp8d_error *err);
FP8D_API const struct fp8d_optimizer_set *fp8d_result_optimizer_set(const struct fp8d_result *r);

struct fp8d_step {
    const char *model;
    uint64_t step;     /* its number, from 1; skipped ones count, too */
    double loss_scale; /* gradients are divided by it; 0: 1 */
    double max_norm;   /* they are scaled down to this global norm, after loss_scale; 0: never */
    struct fp8d_expect expect; /* not looked at for a step that was taken before */
    bool time_compute;         /* as in fp8d_forward */
};

enum fp8d_step_outcome {
    FP8D_STEP_APPLIED = 1,
    FP8D_STEP_SKIPPED = 2,  /* a gradient is not finite: nothing changed, gradients are forgotten */
    FP8D_STEP_REPEATED = 3, /* this step was taken before: nothing was done now */
};

/* Where something was not finite. */
struct fp8d_step_problem {
    const char *layer;
    const char *tensor; /* "weight", "bias": of the gradient; "grad_output": of a backward's */
    uint64_t nonfinite; /* elements */
};

struct fp8d_step_result {
    enum fp8d_step_outcome outcome;
    uint64_t step;    /* the number that the next one must have */
    uint64_t updates; /* steps that were applied */
    double grad_norm; /* global norm of the finite elements, after loss_scale, before clipping */
    double clip;      /* what gradients were multiplied with to clip them: 1 or less */
    uint32_t layers;  /* that were updated */
    const struct fp8d_step_problem *problems; /* long lists are cut */
    size_t count;
    uint32_t problems_total;
    uint64_t compute_ns; /* as in fp8d_forward_result, of the norms and of the update, without what the
                            server decides between them */
};

/* One step of the optimizer with the gradients that the layers hold: all of them or none. After it
 * they hold none, and the weight version has gone up if it was applied. A step of the number taken
 * last is answered with FP8D_STEP_REPEATED: whoever does not know whether a step arrived sends it
 * again, on any connection. FP8D_EFAILED_PRECONDITION: any other number (the sentence has the one
 * needed), no optimizer, no gradient, or another connection has a scope on the model;
 * FP8D_EINVALID_ARGUMENT: loss_scale or max_norm. */
FP8D_API int fp8d_step(struct fp8d *c, const struct fp8d_step *step, const struct fp8d_call *call,
                       struct fp8d_result **out, struct fp8d_error *err);
FP8D_API int fp8d_submit_step(struct fp8d *c, const struct fp8d_step *step,
                              const struct fp8d_call *call, uint64_t *id, struct fp8d_error *err);
FP8D_API const struct fp8d_step_result *fp8d_result_step(const struct fp8d_result *r);

#ifdef __cplusplus
}
#endif

#endif
