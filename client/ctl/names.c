#include "client/ctl/names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME(list, i) ((unsigned)(i) < sizeof list / sizeof list[0] ? list[i] : "?")

const char *recipe_kind_name(enum fp8d_recipe_kind kind)
{
    static const char *const names[] = {"delayed", "delayed", "current"};
    return NAME(names, kind);
}

const char *format_name(enum fp8d_format format)
{
    static const char *const names[] = {"hybrid", "hybrid", "e4m3"};
    return NAME(names, format);
}

const char *amax_algo_name(enum fp8d_amax_algo algo)
{
    static const char *const names[] = {"max", "max", "most_recent"};
    return NAME(names, algo);
}

const char *accumulation_name(enum fp8d_accumulation accumulation)
{
    static const char *const names[] = {"fast", "fast", "precise"};
    return NAME(names, accumulation);
}

const char *fp8_name(enum fp8d_dtype dtype)
{
    if (dtype == FP8D_F8_E4M3)
        return "e4m3";
    return dtype == FP8D_F8_E5M2 ? "e5m2" : fp8d_dtype_name(dtype);
}

const char *mode_name(enum fp8d_mode mode)
{
    static const char *const names[] = {"eval", "eval", "train", "calibrate"};
    return NAME(names, mode);
}

const char *weight_copy_name(enum fp8d_weight_copy copy)
{
    static const char *const names[] = {"unknown",    "reused", "cast",   "recast",
                                        "evaluation", "none",   "primary"};
    return NAME(names, copy);
}

const char *optimizer_name(enum fp8d_optimizer_kind kind)
{
    static const char *const names[] = {"?", "sgd", "adam", "adamw"};
    return NAME(names, kind);
}

const char *step_outcome_name(enum fp8d_step_outcome outcome)
{
    static const char *const names[] = {"unknown", "applied", "skipped", "repeated"};
    return NAME(names, outcome);
}

const char *float_text(float v, char out[32])
{
    if (!isfinite(v)) {
        (void)snprintf(out, 32, "%s", isnan(v) ? "NaN" : v > 0 ? "Infinity" : "-Infinity");
        return out;
    }
    for (int digits = 1; digits <= 9; digits++) {
        (void)snprintf(out, 32, "%.*g", digits, (double)v);
        if (strtof(out, NULL) == v)
            break;
    }
    return out;
}

const char *bytes_text(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    double v = (double)bytes;
    for (; v >= 1024 && unit < 6; unit++)
        v /= 1024;
    (void)snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", v, units[unit]);
    return out;
}

const char *shape_text(const struct fp8d_tensor *t, char out[256])
{
    size_t at = 0;
    for (uint32_t i = 0; i < t->rank && at < 230; i++)
        at += (size_t)snprintf(out + at, 256 - at, "%s%llu", i ? ", " : "[",
                               (unsigned long long)t->dims[i]);
    (void)snprintf(out + at, 256 - at, "%s", t->rank ? "]" : "[]");
    return out;
}
