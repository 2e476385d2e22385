#include "base/fault.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Controls become '?'; the UTF-8 sequence that the end of the buffer may have cut is dropped. */
static void clean(char *s)
{
    size_t len = strlen(s), last = len;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
            s[i] = '?';
    while (last > 0 && ((unsigned char)s[last - 1] & 0xc0) == 0x80)
        last--;
    if (len == FAULT_TEXT_MAX - 1 && last > 0 &&
        !utf8_length((const unsigned char *)s + last - 1, len - (last - 1)))
        s[last - 1] = 0;
}

int fault_set(struct fault *f, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    f->code = code;
    f->again = false;
    f->retry_after_ms = 0;
    (void)vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
    clean(f->text);
    return code;
}

int fault_wrap(struct fault *f, const char *fmt, ...)
{
    char old[FAULT_TEXT_MAX];
    memcpy(old, f->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
    size_t at = n < 0 ? 0 : (size_t)n;
    if (at + 3 < sizeof f->text) {
        memcpy(f->text + at, ": ", 2);
        size_t room = sizeof f->text - at - 3;
        size_t len = strnlen(old, room);
        memcpy(f->text + at + 2, old, len);
        f->text[at + 2 + len] = 0;
    }
    clean(f->text);
    return f->code;
}

int fault_at(struct fault *f, enum fault_stage stage)
{
    if (f->stage == STAGE_UNSPECIFIED)
        f->stage = stage;
    return f->code;
}

const char *fault_stage_name(enum fault_stage stage)
{
    static const char *const names[] = {"", "receive", "decode", "queue", "copy", "compute", "file"};
    return (unsigned)stage < sizeof names / sizeof names[0] ? names[stage] : "";
}
