/* weight.h - the weight of a layer, its version, and the FP8 copies made from it.
 *
 * The second invariant: a copy carries the version of the weight it was made from, and bytes of
 * another version are never used. Which bytes a request multiplies with is one pure function,
 * weight_choose: the table of docs/numerics.md section 2. Engine thread.
 */
#ifndef FP8D_DAEMON_ENGINE_WEIGHT_H
#define FP8D_DAEMON_ENGINE_WEIGHT_H

#include "kernels/backend.h"

enum forward_mode {
    MODE_EVAL = 1,
    MODE_TRAIN = 2,
    MODE_CALIBRATE = 3,
    MODE_CHECK = 4, /* not on the wire: what CheckNumerics casts like eval */
};

enum first_microbatch {
    FIRST_UNSET = 0,
    FIRST_YES = 1,
    FIRST_NO = 2,
};

/* What makes two casts of a weight the same bytes. */
struct copy_key {
    uint64_t version;
    enum dtype fmt;
    enum granularity granularity;
    bool from_tensor; /* the scale came from the weight itself, with this margin */
    int margin;       /* 0 unless from_tensor */
    float scale;      /* 0 unless !from_tensor */
    float scale_inv;  /* likewise; from a file it need not be 1/scale, so it tells copies apart */
};

struct weight_copy {
    struct qtensor *q; /* NULL: none */
    struct copy_key key;
    struct cast_report report;
};

/* Either high precision (`high`, with copies made from it) or FP8 primary (`primary`, whose bytes
 * and factor are the weight itself; it has no copies). */
struct weight {
    struct tensor high; /* [out, in]; holds a reference to its buffer; buf NULL: FP8 primary */
    struct weight_copy primary;
    enum dtype origin;  /* FP8 primary made from high precision: that dtype; else DTYPE_NONE */
    struct tensor bias; /* [1, out]; buf NULL: none */
    uint64_t version;
    struct weight_copy train; /* the training copy */
    struct weight_copy eval;  /* a copy beside it */
};

/* Numbers are those of enum WeightCopy on the wire. */
enum copy_action {
    COPY_REUSED = 1,     /* the training copy as it is */
    COPY_CAST = 2,       /* cast anew, becomes the training copy */
    COPY_RECAST = 3,     /* the same, though the request said it is not the first microbatch */
    COPY_EVALUATION = 4, /* cast anew, or found, beside the training copy */
    COPY_NONE = 5,
    COPY_PRIMARY = 6, /* the weight itself is FP8 */
};

struct copy_choice {
    enum copy_action action;
    struct weight_copy *found; /* what to multiply with; NULL: cast with `key` */
    struct copy_key key;       /* wanted; what a new cast is filed under */
    bool feed;                 /* the weight's site sees the amax */
};

/* `site` is the mirror of the weight's site. Changes nothing. */
struct copy_choice weight_choose(struct weight *w, const struct recipe *r,
                                 const struct scaler *site, enum forward_mode mode,
                                 enum first_microbatch first);

/* File a finished cast; the copy that stood there is let go. Takes over the reference q. */
void weight_file(struct weight *w, const struct copy_choice *c, struct qtensor *q,
                 const struct cast_report *report);

/* Another weight: copies are dropped, the version is `version`. Takes over the references. */
void weight_replace(struct weight *w, struct tensor high, struct tensor bias, uint64_t version);

/* FP8 primary: the high-precision weight (if any) and all copies are let go. Takes over q. */
void weight_make_primary(struct weight *w, struct qtensor *q, const struct cast_report *report,
                         enum dtype origin);

/* The weight was moved in place and is `version` now. q, unless NULL, is its FP8 form: the training copy
 * (filed under the site's scale, `site` being the mirror before the next apply), or the primary weight.
 * All other copies are let go. Takes over the reference. */
void weight_stepped(struct weight *w, const struct recipe *r, const struct scaler *site,
                    uint64_t version, struct qtensor *q, const struct cast_report *report);

/* Another number for the same weight: copies follow. */
void weight_renumber(struct weight *w, uint64_t version);

/* What the weight is held as: F32, BF16, F16, or the FP8 dtype of a primary weight. */
enum dtype weight_dtype(const struct weight *w);

/* F8_E5M2 where gradients are E5M2 too: dgrad would be e5m2 x e5m2, which does not exist
 * (docs/numerics.md 5). */
bool weight_eval_only(const struct weight *w, const struct recipe *r);

void weight_drop_copies(struct weight *w);
void weight_fini(struct weight *w);
uint64_t weight_bytes(const struct weight *w); /* charged bytes of everything here */

#endif
