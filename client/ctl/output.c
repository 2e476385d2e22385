#include "client/ctl/output.h"

#include "client/ctl/names.h"
#include "client/ctl/tensor_file.h"

#include <inttypes.h>
#include <stdio.h>

int output_take(struct output *o, const char *name, const struct fp8d_tensor *t, const char *file,
                struct fault *f)
{
    if (t->dtype != FP8D_F32 && t->dtype != FP8D_BF16 && t->dtype != FP8D_F16)
        return fault_set(f, FP8D_EPROTOCOL, "the %s has dtype %s", name, fp8d_dtype_name(t->dtype));
    if (t->size && !t->data)
        return fault_set(f, FP8D_EPROTOCOL, "the %s came without its %llu bytes", name,
                         (unsigned long long)t->size);
    *o = (struct output){.tensor = t, .file = file};
    tensor_max_abs(t, &o->max_abs, &o->nonfinite);
    return file ? tensor_file_write(file, name, t, f) : 0;
}

json_t *output_json(struct ctl *ctl, const struct output *o)
{
    json_t *out = json_object();
    json_put(ctl, out, "dtype", json_string(fp8d_dtype_name(o->tensor->dtype)));
    json_put(ctl, out, "shape", json_shape(ctl, o->tensor));
    json_put(ctl, out, "max_abs", json_f32(o->max_abs));
    json_put(ctl, out, "nonfinite", json_u64(o->nonfinite));
    json_put(ctl, out, "file", o->file ? json_text(o->file) : json_null());
    return out;
}

void output_print(const struct output *o, const char *title, const char *symbol)
{
    char shape[256], max[32], text[CTL_TEXT];
    printf("%s %s %s, max|%s| %s", title, fp8d_dtype_name(o->tensor->dtype),
           shape_text(o->tensor, shape), symbol, float_text(o->max_abs, max));
    if (o->nonfinite)
        printf(", %" PRIu64 " not finite", o->nonfinite);
    if (o->file)
        printf(", written to %s", ctl_text(text, o->file));
}
