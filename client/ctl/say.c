/* What fp8ctl says when something goes wrong. */
#include "client/ctl/ctl.h"

#include "base/text.h"
#include "client/ctl/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *ctl_text(char buf[CTL_TEXT], const char *s)
{
    s = s ? s : "";
    return text_escape(buf, CTL_TEXT, s, strlen(s));
}

const char *ctl_sentence(char buf[CTL_TEXT], const char *s)
{
    size_t at = 0;
    buf[0] = 0;
    while (*s && at + 16 < CTL_TEXT) {
        size_t n = strcspn(s, "\\");
        text_escape(buf + at, (unsigned)(CTL_TEXT - at), s, n);
        at += strlen(buf + at);
        s += n;
        for (; *s == '\\' && at + 1 < CTL_TEXT; s++)
            buf[at++] = *s;
        buf[at] = 0;
    }
    return buf;
}

static void say_error(const struct ctl *ctl, const struct fp8d_error *err)
{
    char text[CTL_TEXT];
    const char *stage = fp8d_stage_name(err->stage);
    fprintf(stderr, "fp8ctl: %s%s%s (%s%s%s", ctl->command ? ctl->command->name : "",
            ctl->command ? ": " : "", ctl_sentence(text, err->text), fp8d_code_name(err->code),
            *stage ? ", stage " : "", stage);
    if (err->retry_after_ms)
        fprintf(stderr, ", try again in %u ms", err->retry_after_ms);
    fputs(")\n", stderr);
    if (ctl->json)
        json_print_error(ctl, err);
}

int ctl_failed(const struct ctl *ctl, const struct fp8d_error *err)
{
    say_error(ctl, err);
    return CTL_FAILED;
}

int ctl_no_connection(const struct ctl *ctl, const struct fp8d_error *err)
{
    say_error(ctl, err);
    return CTL_NO_CONNECTION;
}

int ctl_fault(const struct ctl *ctl, const struct fault *f)
{
    struct fp8d_error err = {.code = f->code, .stage = (enum fp8d_stage)f->stage};
    (void)snprintf(err.text, sizeof err.text, "%s", f->text);
    return ctl_failed(ctl, &err);
}

int ctl_usage(const struct ctl *ctl, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("fp8ctl: ", stderr);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nTry 'fp8ctl %s%s--help'.\n", ctl->command ? ctl->command->name : "",
            ctl->command ? " " : "");
    return CTL_USAGE;
}

void ctl_print_list(const char *title, const char *const *list, size_t count)
{
    char text[CTL_TEXT];
    for (size_t i = 0; i < count; i++)
        printf("%-9s %s\n", title, ctl_sentence(text, list[i]));
}

void ctl_print_names(const char *title, const char *const *list, size_t count)
{
    char text[CTL_TEXT];
    for (size_t i = 0; i < count; i++)
        printf("%-9s %s\n", title, ctl_text(text, list[i]));
}

void ctl_print_more(const char *title, size_t count, uint64_t total)
{
    if (total > count)
        printf("%-9s ... and %" PRIu64 " more\n", title, total - count);
}

bool ctl_split(const struct ctl *ctl, const char *target, char model[129], const char **layer)
{
    char text[CTL_TEXT];
    const char *slash = strchr(target, '/');
    size_t len = slash ? (size_t)(slash - target) : strlen(target);
    if (!slash || !slash[1] || !text_is_model_name(target, len)) {
        ctl_usage(ctl, "'%s' is not MODEL/LAYER", ctl_text(text, target));
        return false;
    }
    memcpy(model, target, len);
    model[len] = 0;
    *layer = slash + 1;
    return true;
}
