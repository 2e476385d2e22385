#include "daemon/log.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define LINE_MAX_BYTES 2048

static struct {
    _Atomic int level;
    _Atomic bool journal;
} state = {.level = LOG_INFO};

static const char *const names[] = {"error", "warn", "info", "debug"};
static const int priorities[] = {3, 4, 6, 7}; /* syslog(3) */

const char *log_level_name(enum log_level level)
{
    return names[level];
}

bool log_is_journal(const char *journal_stream, int fd)
{
    struct stat st;
    unsigned long long dev, ino;
    char end;
    if (!journal_stream || sscanf(journal_stream, "%llu:%llu%c", &dev, &ino, &end) != 2)
        return false;
    return fstat(fd, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

void log_init(enum log_level level)
{
    state.level = (int)level;
    state.journal = log_is_journal(getenv("JOURNAL_STREAM"), 2);
}

bool log_wants(enum log_level level)
{
    return (int)level <= state.level;
}

/* A string that grows inside out[size] and is cut where it ends. */
struct text_out {
    char *at;
    size_t left; /* the final NUL included */
};

static void put(struct text_out *o, const char *s, size_t len)
{
    if (len > o->left - 1)
        len = o->left - 1;
    memcpy(o->at, s, len);
    o->at += len;
    o->left -= len;
    *o->at = 0;
}

static void put_str(struct text_out *o, const char *s)
{
    put(o, s, strlen(s));
}

/* In quotes; text_escape has made controls visible, so quote and backslash are left to do. */
static void put_quoted(struct text_out *o, const char *text)
{
    char shown[1536];
    text_escape(shown, sizeof shown, text, strlen(text));
    put_str(o, "\"");
    for (const char *s = shown; *s; s++) {
        if (*s == '"')
            put_str(o, "\\");
        put(o, s, 1);
    }
    put_str(o, "\"");
}

static void put_pair(struct text_out *o, const struct log_pair *p)
{
    char number[24];
    put_str(o, " ");
    put_str(o, p->key);
    put_str(o, "=");
    if (p->text) {
        put_quoted(o, p->text);
        return;
    }
    snprintf(number, sizeof number, "%llu", (unsigned long long)p->number);
    put_str(o, number);
}

size_t log_format(char *out, size_t size, const char *ts, enum log_level level,
                  const struct log_pair *pairs, const char *msg)
{
    struct text_out o = {.at = out, .left = size};
    char head[64];
    if (ts)
        snprintf(head, sizeof head, "ts=%s level=%s msg=", ts, names[level]);
    else
        snprintf(head, sizeof head, "<%d>level=%s msg=", priorities[level], names[level]);
    put_str(&o, head);
    put_quoted(&o, msg);
    for (const struct log_pair *p = pairs; p && p->key; p++)
        put_pair(&o, p);
    return (size_t)(o.at - out);
}

static void timestamp(char out[40])
{
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 40 - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

void log_line(enum log_level level, const struct log_pair *pairs, const char *fmt, ...)
{
    char msg[1024], line[LINE_MAX_BYTES], ts[40];
    if (!log_wants(level))
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    timestamp(ts);
    size_t n = log_format(line, sizeof line - 1, state.journal ? NULL : ts, level, pairs, msg);
    line[n++] = '\n';
    fwrite(line, 1, n, stderr);
}
