#include "client/ctl/words.h"

#include <string.h>

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Copy a quoted part from *in (behind the quote) to *out; NULL if it does not end. */
static const char *quoted(const char *in, char quote, char **out)
{
    for (; *in != quote; in++) {
        if (quote == '"' && *in == '\\' && (in[1] == '"' || in[1] == '\\'))
            in++;
        if (!*in)
            return NULL;
        *(*out)++ = *in;
    }
    return in + 1;
}

/* One word; returns what follows, NULL after an error in *why. */
static const char *word(const char *in, char **out, const char **why)
{
    while (*in && !is_blank(*in)) {
        if (*in == '\'' || *in == '"') {
            in = quoted(in + 1, *in, out);
            if (!in) {
                *why = "a quote does not end";
                return NULL;
            }
        } else if (*in == '\\' && !in[1]) {
            *why = "a backslash ends the line";
            return NULL;
        } else {
            in += *in == '\\';
            *(*out)++ = *in++;
        }
    }
    return in;
}

const char *words_split(struct words *w, char *line)
{
    const char *in = line;
    const char *why = NULL;
    char *out = line;
    w->count = 0;
    line[strcspn(line, "\r\n")] = 0;
    for (;;) {
        while (is_blank(*in))
            in++;
        if (!*in || *in == '#')
            return NULL;
        if (w->count == WORDS_MAX)
            return "too many words";
        w->word[w->count++] = out;
        in = word(in, &out, &why);
        if (!in)
            return why;
        in += *in != 0; /* the blank may be where the end of the word goes */
        *out++ = 0;
    }
}
