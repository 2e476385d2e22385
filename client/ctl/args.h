/* args.h - the words of one command, checked against its table of options.
 *
 * Options are --name VALUE or --name=VALUE, anywhere among the arguments; "--" ends them. A value
 * whose metavar has bars must be one of its words; one with a maximum must be a whole number.
 */
#ifndef FP8D_CLIENT_CTL_ARGS_H
#define FP8D_CLIENT_CTL_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARGS_MAX 4

struct arg_option {
    const char *name;    /* without "--" */
    const char *metavar; /* NULL: a flag */
    const char *help;
    uint32_t min, max;   /* of a number; max 0: text */
    bool many;           /* may be repeated */
};

struct arg_given {
    const struct arg_option *option;
    const char *value; /* NULL: a flag */
};

struct args {
    const char *argument[ARGS_MAX];
    unsigned count;
    struct arg_given *given; /* room for all words */
    unsigned given_count;
};

/* Sort words into arguments and options; options of either table are known. On failure false, and
 * the sentence is in why. args_fini in any case. */
bool args_parse(struct args *a, int argc, const char *const *argv, const struct arg_option *options,
                const struct arg_option *more, char *why, size_t why_size);
void args_fini(struct args *a);

bool args_has(const struct args *a, const char *name);
const char *args_text(const struct args *a, const char *name); /* the last one; NULL: not given */
uint32_t args_number(const struct args *a, const char *name);  /* 0: not given */
/* 1, 2, ... for the words of its metavar in order; 0: not given. */
int args_choice(const struct args *a, const char *name);
/* Is it a whole number in this range, written in digits alone? */
bool args_is_number(const char *value, uint32_t min, uint32_t max);
/* All values of a repeated option: mem_free the array. NULL and count 0 if none, or no memory. */
const char **args_list(const struct args *a, const char *name, size_t *count);

/* The name closest to `word`, or NULL if none is close. next(arg, i) gives the i-th, NULL ends. */
const char *args_closest(const char *word, const char *(*next)(const void *arg, size_t i),
                         const void *arg);

#endif
