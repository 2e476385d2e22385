/* names.h - numbers in words: enums as the command line spells them, sizes, floats. Pure. */
#ifndef FP8D_CLIENT_CTL_NAMES_H
#define FP8D_CLIENT_CTL_NAMES_H

#include "base/status.h"
#include "client/fp8d.h"

const char *recipe_kind_name(enum fp8d_recipe_kind kind);           /* "delayed", "current", "?" */
const char *format_name(enum fp8d_format format);                   /* "hybrid", "e4m3", "?" */
const char *amax_algo_name(enum fp8d_amax_algo algo);               /* "max", "most_recent", "?" */
const char *accumulation_name(enum fp8d_accumulation accumulation); /* "fast", "precise", "?" */
const char *fp8_name(enum fp8d_dtype dtype);              /* "e4m3", "e5m2", or fp8d_dtype_name */
const char *mode_name(enum fp8d_mode mode);               /* "eval", "train", "calibrate", "?" */
const char *weight_copy_name(enum fp8d_weight_copy copy); /* "reused", "cast", ... */
const char *optimizer_name(enum fp8d_optimizer_kind kind);     /* "sgd", "adam", "adamw", "?" */
const char *step_outcome_name(enum fp8d_step_outcome outcome); /* "applied", "skipped", ... */

/* The shortest text that reads back as v; "NaN", "Infinity", "-Infinity". Returns out. */
const char *float_text(float v, char out[32]);
/* "1.5 GiB"; returns out. */
const char *bytes_text(uint64_t bytes, char out[32]);
/* "[2, 3]"; returns out. */
const char *shape_text(const struct fp8d_tensor *t, char out[256]);

#endif
