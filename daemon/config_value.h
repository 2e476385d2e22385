/* config_value.h - the kinds of values of config.h, from text. Pure functions. */
#ifndef FP8D_DAEMON_CONFIG_VALUE_H
#define FP8D_DAEMON_CONFIG_VALUE_H

#include "base/fault.h"

#include <stdbool.h>
#include <stdint.h>

enum config_kind {
    CONFIG_COUNT,  /* 0, 17 */
    CONFIG_BYTES,  /* 65536, 64K, 1G: K M G T are powers of 1024 */
    CONFIG_MEMORY, /* the same, or 80%: of the host's memory */
    CONFIG_SHARE,  /* the same, but who knows the whole is asked later: see CONFIG_PERCENT */
    CONFIG_TIME,   /* 50s, 5min, 250ms, 1h; a bare number is seconds. Kept in milliseconds */
    CONFIG_MODE,   /* 0660: octal */
    CONFIG_CHOICE, /* one of words, kept as its position */
    CONFIG_TEXT,   /* anything printable */
    CONFIG_PATHS,  /* absolute paths, separated by colons */
};

/* A SHARE of 80% is kept as CONFIG_PERCENT + 80; without this bit it is bytes. */
#define CONFIG_PERCENT ((uint64_t)1 << 63)

/* How each kind is kept. */
#define CONFIG_TYPE_COUNT uint64_t
#define CONFIG_TYPE_BYTES uint64_t
#define CONFIG_TYPE_MEMORY uint64_t
#define CONFIG_TYPE_SHARE uint64_t
#define CONFIG_TYPE_TIME uint64_t
#define CONFIG_TYPE_MODE uint64_t
#define CONFIG_TYPE_CHOICE uint64_t
#define CONFIG_TYPE_TEXT const char *
#define CONFIG_TYPE_PATHS const char *

struct config_rule {
    enum config_kind kind;
    uint64_t lowest, highest;
    const char *words; /* of a CHOICE: "auto|cpu|cuda"; of others what help calls the value */
};

static inline bool config_kind_is_text(enum config_kind k)
{
    return k == CONFIG_TEXT || k == CONFIG_PATHS;
}

/* FP8D_EINVALID_ARGUMENT with what was found and what is needed. For texts *out is the length. */
int config_value_parse(const struct config_rule *rule, const char *text, uint64_t *out,
                       struct fault *f);

#endif
