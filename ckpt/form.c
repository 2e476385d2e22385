#include "ckpt/form.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define SHOWN 256

static const char *shown(char buf[SHOWN], const struct safetensors_tensor *t)
{
    return text_escape(buf, SHOWN, t->name, strlen(t->name));
}

const char *form_text(const struct safetensors_tensor *t, char out[FORM_TEXT])
{
    int at = snprintf(out, FORM_TEXT, "%s [", dtype_name(t->dtype));
    for (unsigned i = 0; i < t->rank; i++)
        at += snprintf(out + at, FORM_TEXT - (size_t)at, "%s%llu", i ? ", " : "",
                       (unsigned long long)t->dims[i]);
    (void)snprintf(out + at, FORM_TEXT - (size_t)at, "]");
    return out;
}

int form_check(const struct safetensors_tensor *t, enum dtype dtype, unsigned rank, uint64_t d0,
               uint64_t d1, struct fault *f)
{
    const struct safetensors_tensor need = {.dtype = dtype, .rank = rank, .dims = {d0, d1}};
    char name[SHOWN];
    char found[FORM_TEXT];
    char needed[FORM_TEXT];
    if (t->dtype == dtype && t->rank == rank && (rank < 1 || t->dims[0] == d0) &&
        (rank < 2 || t->dims[1] == d1))
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT, "tensor \"%s\" is %s, needed %s", shown(name, t),
                     form_text(t, found), form_text(&need, needed));
}

int form_check_number(const struct safetensors_tensor *t, const char *what, struct fault *f)
{
    char name[SHOWN];
    char found[FORM_TEXT];
    bool one = t->rank <= 2;
    for (unsigned i = 0; i < t->rank; i++)
        one = one && t->dims[i] == 1;
    if (one && dtype_is_high(t->dtype))
        return 0;
    return fault_set(f, FP8D_EINVALID_ARGUMENT,
                     "tensor \"%s\" is %s, needed %s: one number of F32, BF16 or F16, of shape [], "
                     "[1] or [1, 1]",
                     shown(name, t), form_text(t, found), what);
}
