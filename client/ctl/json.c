#include "client/ctl/json.h"

#include "base/text.h"
#include "client/ctl/names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nine digits are enough for any float32, and show a shortest text as it is. */
#define JSON_DIGITS JSON_REAL_PRECISION(9)

json_t *json_begin(struct ctl *ctl)
{
    json_t *o = json_object();
    json_put(ctl, o, "fp8ctl_json", json_integer(JSON_VERSION));
    return o;
}

void json_put(struct ctl *ctl, json_t *o, const char *key, json_t *v)
{
    if (json_object_set_new(o, key, v))
        ctl->no_memory = true;
}

void json_push(struct ctl *ctl, json_t *list, json_t *v)
{
    if (json_array_append_new(list, v))
        ctl->no_memory = true;
}

int json_end(struct ctl *ctl, json_t *o)
{
    size_t flags = JSON_DIGITS | (ctl->batch ? JSON_COMPACT : JSON_INDENT(2));
    bool bad = ctl->no_memory || json_dumpf(o, stdout, flags);
    json_decref(o);
    if (!bad && putchar('\n') != EOF)
        return CTL_OK;
    struct fault f = {0};
    fault_set(&f, FP8D_EINTERNAL, "the result could not be printed: %s",
              ctl->no_memory ? "no memory" : "writing failed");
    return ctl_fault(ctl, &f);
}

json_t *json_text(const char *s)
{
    char buf[CTL_TEXT];
    s = s ? s : "";
    return json_string(utf8_printable(s, strlen(s)) ? s : ctl_text(buf, s));
}

json_t *json_u64(uint64_t v)
{
    return v <= INT64_MAX ? json_integer((json_int_t)v) : json_real((double)v);
}

static json_t *not_finite(double v)
{
    return json_string(isnan(v) ? "NaN" : v > 0 ? "Infinity" : "-Infinity");
}

json_t *json_f32(float v)
{
    char text[32];
    if (!isfinite(v))
        return not_finite(v);
    return json_real(strtod(float_text(v, text), NULL));
}

json_t *json_f64(double v)
{
    return isfinite(v) ? json_real(v) : not_finite(v);
}

json_t *json_texts(struct ctl *ctl, const char *const *list, size_t count)
{
    json_t *a = json_array();
    for (size_t i = 0; i < count; i++)
        json_push(ctl, a, json_text(list[i]));
    return a;
}

json_t *json_recipe(struct ctl *ctl, const struct fp8d_recipe *r)
{
    json_t *o = json_object();
    json_put(ctl, o, "kind", json_string(recipe_kind_name(r->kind)));
    json_put(ctl, o, "fp8_format", json_string(format_name(r->format)));
    json_put(ctl, o, "amax_history_len", json_u64(r->amax_history_len));
    json_put(ctl, o, "amax_algo", json_string(amax_algo_name(r->amax_algo)));
    json_put(ctl, o, "margin", json_u64(r->margin));
    json_put(ctl, o, "fprop_accumulation", json_string(accumulation_name(r->fprop_accumulation)));
    return o;
}

json_t *json_cast(struct ctl *ctl, bool has, const struct fp8d_cast *cast)
{
    if (!has)
        return json_null();
    json_t *o = json_object();
    json_put(ctl, o, "format", json_string(fp8_name(cast->dtype)));
    json_put(ctl, o, "scale", json_f32(cast->scale));
    json_put(ctl, o, "scale_inv", json_f32(cast->scale_inv));
    json_put(ctl, o, "amax", json_f32(cast->amax));
    json_put(ctl, o, "saturated", json_u64(cast->saturated));
    json_put(ctl, o, "flushed", json_u64(cast->flushed));
    json_put(ctl, o, "nonfinite", json_u64(cast->nonfinite));
    json_put(ctl, o, "uncalibrated", json_boolean(cast->uncalibrated));
    return o;
}

json_t *json_shape(struct ctl *ctl, const struct fp8d_tensor *t)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < t->rank; i++)
        json_push(ctl, a, json_u64(t->dims[i]));
    return a;
}

void json_put_reply(struct ctl *ctl, json_t *o, const struct fp8d_result *r)
{
    const struct fp8d_reply *reply = fp8d_result_reply(r);
    json_put(ctl, o, "incarnation", json_u64(reply->incarnation));
    json_put(ctl, o, "weight_version", json_u64(reply->weight_version));
}

void json_print_error(const struct ctl *ctl, const struct fp8d_error *err)
{
    json_t *o = json_pack("{s:i, s:{s:s, s:i, s:s, s:o, s:i}}", "fp8ctl_json", JSON_VERSION,
                          "error", "code", fp8d_code_name(err->code), "number", err->code, "stage",
                          fp8d_stage_name(err->stage), "message", json_text(err->text),
                          "retry_after_ms", (int)err->retry_after_ms);
    if (o && !json_dumpf(o, stdout, ctl->batch ? JSON_COMPACT : JSON_INDENT(2)))
        putchar('\n');
    json_decref(o);
}
