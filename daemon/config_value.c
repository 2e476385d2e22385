#include "daemon/config_value.h"

#include "base/checked.h"
#include "base/text.h"

#include <string.h>
#include <unistd.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit byte_units[] = {{"", 1},
                                         {"K", (uint64_t)1 << 10},
                                         {"M", (uint64_t)1 << 20},
                                         {"G", (uint64_t)1 << 30},
                                         {"T", (uint64_t)1 << 40},
                                         {0}};
static const struct unit time_units[] = {{"", 1000},     {"ms", 1},      {"s", 1000},
                                         {"min", 60000}, {"h", 3600000}, {0}};
static const struct unit no_units[] = {{"", 1}, {0}};

/* Digits of a base at the start of text; *end is behind them. False without any, or on overflow. */
static bool digits(const char *text, unsigned base, uint64_t *out, const char **end)
{
    const char *s = text;
    uint64_t v = 0;
    for (; *s >= '0' && *s < (char)('0' + base); s++)
        if (!ck_mul(v, base, &v) || !ck_add(v, (uint64_t)(*s - '0'), &v))
            return false;
    *out = v;
    *end = s;
    return s != text;
}

static bool with_unit(const char *text, const struct unit *units, uint64_t *out)
{
    const char *end;
    uint64_t v;
    if (!digits(text, 10, &v, &end))
        return false;
    for (const struct unit *u = units; u->name; u++)
        if (strcmp(end, u->name) == 0)
            return ck_mul(v, u->factor, out);
    return false;
}

/* 1% to 100%, as the number. */
static bool percent(const char *text, uint64_t *out)
{
    const char *end;
    return digits(text, 10, out, &end) && strcmp(end, "%") == 0 && *out >= 1 && *out <= 100;
}

static bool of_the_host(const char *text, uint64_t *out)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (!percent(text, out) || pages <= 0)
        return false;
    *out *= (uint64_t)pages * (uint64_t)page / 100;
    return true;
}

static bool share(const char *text, uint64_t *out)
{
    if (with_unit(text, byte_units, out))
        return !(*out & CONFIG_PERCENT);
    if (!percent(text, out))
        return false;
    *out |= CONFIG_PERCENT;
    return true;
}

static bool mode(const char *text, uint64_t *out)
{
    const char *end;
    return digits(text, 8, out, &end) && !*end;
}

static bool choice(const char *text, const char *words, uint64_t *out)
{
    size_t len = strlen(text);
    uint64_t at = 0;
    for (const char *w = words; *w; at++) {
        size_t n = strcspn(w, "|");
        if (n == len && memcmp(w, text, n) == 0) {
            *out = at;
            return true;
        }
        w += n + (w[n] == '|');
    }
    return false;
}

static bool paths(const char *text)
{
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ":");
        if (p[0] != '/' || (p[n] == ':' && !p[n + 1]))
            return false;
        p += n + (p[n] == ':');
    }
    return true;
}

static bool parse(const struct config_rule *rule, const char *text, uint64_t *out)
{
    *out = strlen(text);
    switch (rule->kind) {
    case CONFIG_COUNT:
        return with_unit(text, no_units, out);
    case CONFIG_BYTES:
        return with_unit(text, byte_units, out);
    case CONFIG_MEMORY:
        return with_unit(text, byte_units, out) || of_the_host(text, out);
    case CONFIG_SHARE:
        return share(text, out);
    case CONFIG_TIME:
        return with_unit(text, time_units, out);
    case CONFIG_MODE:
        return mode(text, out);
    case CONFIG_CHOICE:
        return choice(text, rule->words, out);
    case CONFIG_TEXT:
        return utf8_printable(text, strlen(text));
    case CONFIG_PATHS:
        return utf8_printable(text, strlen(text)) && paths(text);
    }
    return false;
}

static const char *needed(enum config_kind kind)
{
    switch (kind) {
    case CONFIG_COUNT:
        return "a whole number";
    case CONFIG_BYTES:
        return "a number of bytes such as 65536, 64K or 1G";
    case CONFIG_MEMORY:
    case CONFIG_SHARE:
        return "a number of bytes such as 8G, or a share such as 80%";
    case CONFIG_TIME:
        return "a time such as 250ms, 30s or 5min";
    case CONFIG_MODE:
        return "an octal mode such as 0660";
    case CONFIG_CHOICE:
        return "one of";
    case CONFIG_TEXT:
        return "printable UTF-8";
    case CONFIG_PATHS:
        return "absolute paths separated by colons";
    }
    return "";
}

static int out_of_range(const struct config_rule *rule, const char *shown, uint64_t found,
                        struct fault *f)
{
    unsigned long long lo = rule->lowest, hi = rule->highest;
    if (config_kind_is_text(rule->kind))
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "has %llu bytes, needed %llu to %llu: %s",
                         (unsigned long long)found, lo, hi, shown);
    if (rule->kind == CONFIG_MODE)
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "is %s, needed 0%llo to 0%llo", shown, lo, hi);
    return fault_set(f, FP8D_EINVALID_ARGUMENT, "is %s, needed %llu to %llu%s", shown, lo, hi,
                     rule->kind == CONFIG_TIME ? " ms" : "");
}

int config_value_parse(const struct config_rule *rule, const char *text, uint64_t *out,
                       struct fault *f)
{
    char shown[160];
    uint64_t v;
    text_escape(shown, sizeof shown, text, strlen(text));
    if (!parse(rule, text, &v)) {
        bool list = rule->kind == CONFIG_CHOICE;
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "is \"%s\", needed %s%s%s", shown,
                         needed(rule->kind), list ? " " : "", list ? rule->words : "");
    }
    bool ranged =
        rule->kind != CONFIG_CHOICE && !(rule->kind == CONFIG_SHARE && v & CONFIG_PERCENT);
    if (ranged && (v < rule->lowest || v > rule->highest))
        return out_of_range(rule, shown, v, f);
    *out = v;
    return 0;
}
