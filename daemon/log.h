/* log.h - one line of logfmt on stderr for each event.
 *
 *     ts=2026-01-31T12:00:00.123Z level=info msg="client connected" conn=65536 pid=812
 *
 * Under systemd (JOURNAL_STREAM names stderr) the line starts with `<prio>` and has no time: the
 * journal keeps its own. Text is escaped; a line is written by one call and cut at 2 KiB. Any
 * thread. Only the daemon's top level logs; libraries fill a struct fault.
 */
#ifndef FP8D_DAEMON_LOG_H
#define FP8D_DAEMON_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

enum log_level {
    LOG_ERROR = 0, /* something is broken and somebody should look */
    LOG_WARN = 1,  /* a client or the host misbehaves; the daemon goes on */
    LOG_INFO = 2,  /* connections, models, start and stop */
    LOG_DEBUG = 3,
};

/* key=value behind the message: a number, or a text that is quoted and escaped. A list ends with
 * key NULL. Keys are the program's own, of [a-z_]. */
struct log_pair {
    const char *key;
    const char *text; /* NULL: the number counts */
    uint64_t number;
};

#define LOG_NUM(k, v) ((struct log_pair){.key = (k), .number = (uint64_t)(v)})
#define LOG_TEXT(k, v) ((struct log_pair){.key = (k), .text = (v)})
#define LOG_PAIRS(...) ((const struct log_pair[]){__VA_ARGS__, {.key = NULL}})

/* Everything above this level is dropped. Default LOG_INFO. Looks at JOURNAL_STREAM too: call it
 * once before there are threads. */
void log_init(enum log_level level);
bool log_wants(enum log_level level);

/* pairs may be NULL. */
void log_line(enum log_level level, const struct log_pair *pairs, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The line without its end, into out (cut to fit, always terminated): what log_line writes.
 * `ts` is NULL under the journal. Returns its length. */
size_t log_format(char *out, size_t size, const char *ts, enum log_level level,
                  const struct log_pair *pairs, const char *msg);

/* "error", "warn", "info", "debug". */
const char *log_level_name(enum log_level level);

/* True if JOURNAL_STREAM ("device:inode") is what the descriptor is. NULL gives false. */
bool log_is_journal(const char *journal_stream, int fd);

#endif
