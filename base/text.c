#include "base/text.h"

#include <string.h>

static unsigned sequence_length(unsigned char lead)
{
    if (lead >= 0x20 && lead < 0x7f)
        return 1;
    if (lead >= 0xc2 && lead < 0xe0)
        return 2;
    if (lead >= 0xe0 && lead < 0xf0)
        return 3;
    return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

unsigned utf8_length(const unsigned char *s, size_t len)
{
    if (!len)
        return 0;
    unsigned n = sequence_length(s[0]);
    if (!n || n > len)
        return 0;
    for (unsigned i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if (n == 2 && s[0] == 0xc2 && s[1] < 0xa0)
        return 0;
    if (n == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f)))
        return 0;
    if (n == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)))
        return 0;
    return n;
}

bool utf8_printable(const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        unsigned n = utf8_length((const unsigned char *)s + i, len - i);
        if (!n)
            return false;
        i += n;
    }
    return true;
}

bool text_is_model_name(const char *s, size_t len)
{
    static const char set[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    if (len < 1 || len > 128)
        return false;
    for (size_t i = 0; i < len; i++)
        if (!s[i] || !strchr(set, s[i]))
            return false;
    return true;
}

bool text_is_tensor_name(const char *s, size_t len)
{
    return len >= 1 && len <= 1024 && utf8_printable(s, len);
}

bool text_glob(const char *pattern, const char *text)
{
    const char *star = NULL;
    const char *resume = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = ++pattern;
            resume = text;
        } else if (*pattern && (*pattern == '?' || *pattern == *text)) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star;
            text = ++resume;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

/* Turns the direction of what is shown behind it. */
static bool turns(const unsigned char *s, unsigned n)
{
    if (n == 2)
        return s[0] == 0xd8 && s[1] == 0x9c; /* U+061C */
    if (n != 3 || s[0] != 0xe2)
        return false;
    if (s[1] == 0x80)
        return s[2] == 0x8e || s[2] == 0x8f || (s[2] >= 0xaa && s[2] <= 0xae); /* U+200E, 202A.. */
    return s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9;                       /* U+2066 to 2069 */
}

const char *text_escape(char *out, unsigned size, const char *text, unsigned long len)
{
    static const char hex[] = "0123456789abcdef";
    const unsigned char *s = (const unsigned char *)text;
    unsigned at = 0;
    for (unsigned long i = 0; i < len;) {
        unsigned n = utf8_length(s + i, len - i);
        if (s[i] == '\\' || turns(s + i, n))
            n = 0;
        unsigned need = n ? n : 4;
        if (at + need + 4 > size) {
            memcpy(out + at, "...", 3);
            at += 3;
            break;
        }
        if (n > 0) {
            memcpy(out + at, s + i, n);
            i += n;
        } else {
            memcpy(out + at, (char[]){'\\', 'x', hex[s[i] >> 4], hex[s[i] & 15]}, 4);
            i++;
        }
        at += need;
    }
    out[at] = 0;
    return out;
}
