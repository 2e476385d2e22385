#include "client/ctl/args.h"

#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOSE_ENOUGH 2 /* edits */
#define WORD_MAX 32    /* longest word that hints are made for */

/* Edit distance, of short words only. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[WORD_MAX + 1];
    size_t la = strlen(a), lb = strlen(b);
    if (la > WORD_MAX || lb > WORD_MAX)
        return WORD_MAX;
    for (unsigned j = 0; j <= lb; j++)
        row[j] = j;
    for (unsigned i = 1; i <= la; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= lb; j++) {
            unsigned swap = diagonal + (a[i - 1] != b[j - 1]);
            unsigned skip = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = swap < skip ? swap : skip;
        }
    }
    return row[lb];
}

const char *args_closest(const char *word, const char *(*next)(const void *arg, size_t i),
                         const void *arg)
{
    const char *best = NULL, *name;
    unsigned least = CLOSE_ENOUGH + 1;
    for (size_t i = 0; (name = next(arg, i)); i++) {
        size_t len = strlen(word);
        unsigned d = len >= 3 && !strncmp(name, word, len) ? 1 : distance(word, name);
        if (d < least) {
            least = d;
            best = name;
        }
    }
    return best;
}

static const char *next_option(const void *arg, size_t i)
{
    const struct arg_option *const *tables = arg;
    for (const struct arg_option *o = tables[0]; o && o->name; o++)
        if (i-- == 0)
            return o->name;
    for (const struct arg_option *o = tables[1]; o && o->name; o++)
        if (i-- == 0)
            return o->name;
    return NULL;
}

static const struct arg_option *find(const struct arg_option *o, const char *name, size_t len)
{
    for (; o && o->name; o++)
        if (strlen(o->name) == len && !memcmp(o->name, name, len))
            return o;
    return NULL;
}

/* Index (from 1) of a word in "one|two|three", 0 if it is none of them. */
static int word_index(const char *words, const char *value)
{
    size_t len = strlen(value);
    int index = 1;
    for (const char *at = words; at; index++) {
        const char *bar = strchr(at, '|');
        size_t n = bar ? (size_t)(bar - at) : strlen(at);
        if (n == len && !memcmp(at, value, n))
            return index;
        at = bar ? bar + 1 : NULL;
    }
    return 0;
}

bool args_is_number(const char *value, uint32_t min, uint32_t max)
{
    char *end;
    errno = 0;
    unsigned long v = strtoul(value, &end, 10);
    return value[0] >= '0' && value[0] <= '9' && !*end && !errno && v >= min && v <= max;
}

static bool value_good(const struct arg_option *o, const char *value, char *why, size_t size)
{
    char shown[128];
    text_escape(shown, sizeof shown, value, strlen(value));
    if (o->max && !args_is_number(value, o->min, o->max))
        (void)snprintf(why, size, "--%s is '%s', needed a whole number from %u to %u", o->name,
                       shown, o->min, o->max);
    else if (!o->max && strchr(o->metavar, '|') && !word_index(o->metavar, value))
        (void)snprintf(why, size, "--%s is '%s', needed %s", o->name, shown, o->metavar);
    else
        return true;
    return false;
}

static bool unknown(const char *name, size_t len, const struct arg_option *const tables[2],
                    char *why, size_t size)
{
    char word[WORD_MAX + 1] = "", shown[128];
    if (len <= WORD_MAX)
        memcpy(word, name, len);
    const char *hint = args_closest(word, next_option, tables);
    text_escape(shown, sizeof shown, name, len);
    (void)snprintf(why, size,
                   hint ? "unknown option '--%s', did you mean '--%s'?" : "unknown option '--%s'",
                   shown, hint);
    return false;
}

/* One option at argv[*i]; *i moves on to its value if that is the next word. */
static bool take_option(struct args *a, int argc, const char *const *argv, int *i,
                        const struct arg_option *const tables[2], char *why, size_t size)
{
    const char *name = argv[*i] + 2;
    const char *equals = strchr(name, '=');
    size_t len = equals ? (size_t)(equals - name) : strlen(name);
    const struct arg_option *o = find(tables[0], name, len);
    o = o ? o : find(tables[1], name, len);
    if (!o)
        return unknown(name, len, tables, why, size);
    const char *value = equals ? equals + 1 : NULL;
    if (!o->metavar && value)
        return (void)snprintf(why, size, "--%s takes no value", o->name), false;
    if (o->metavar && !value && *i + 1 < argc)
        value = argv[++*i];
    if (o->metavar && !value)
        return (void)snprintf(why, size, "--%s needs a value: %s", o->name, o->metavar), false;
    if (!o->many && args_has(a, o->name))
        return (void)snprintf(why, size, "--%s is given twice", o->name), false;
    a->given[a->given_count++] = (struct arg_given){o, value};
    return !value || value_good(o, value, why, size);
}

bool args_parse(struct args *a, int argc, const char *const *argv, const struct arg_option *options,
                const struct arg_option *more, char *why, size_t why_size)
{
    const struct arg_option *const tables[2] = {options, more};
    bool ended = false;
    *a = (struct args){.given = mem_array((size_t)argc + 1, sizeof *a->given)};
    if (!a->given)
        return (void)snprintf(why, why_size, "no memory"), false;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (!ended && !strcmp(word, "--")) {
            ended = true;
        } else if (!ended && word[0] == '-' && word[1] == '-') {
            if (!take_option(a, argc, argv, &i, tables, why, why_size))
                return false;
        } else if (!ended && word[0] == '-' && word[1]) {
            return (void)snprintf(why, why_size, "options begin with two dashes"), false;
        } else if (a->count == ARGS_MAX) {
            return (void)snprintf(why, why_size, "too many arguments"), false;
        } else {
            a->argument[a->count++] = word;
        }
    }
    return true;
}

void args_fini(struct args *a)
{
    mem_free(a->given);
    a->given = NULL;
}

static const struct arg_given *last(const struct args *a, const char *name)
{
    for (unsigned i = a->given_count; i-- > 0;)
        if (!strcmp(a->given[i].option->name, name))
            return &a->given[i];
    return NULL;
}

bool args_has(const struct args *a, const char *name)
{
    return last(a, name) != NULL;
}

const char *args_text(const struct args *a, const char *name)
{
    const struct arg_given *g = last(a, name);
    return g ? g->value : NULL;
}

uint32_t args_number(const struct args *a, const char *name)
{
    const char *value = args_text(a, name);
    return value ? (uint32_t)strtoul(value, NULL, 10) : 0;
}

int args_choice(const struct args *a, const char *name)
{
    const struct arg_given *g = last(a, name);
    return g ? word_index(g->option->metavar, g->value) : 0;
}

const char **args_list(const struct args *a, const char *name, size_t *count)
{
    const char **list = args_has(a, name) ? mem_array(a->given_count, sizeof *list) : NULL;
    *count = 0;
    for (unsigned i = 0; list && i < a->given_count; i++)
        if (!strcmp(a->given[i].option->name, name))
            list[(*count)++] = a->given[i].value;
    return list;
}
