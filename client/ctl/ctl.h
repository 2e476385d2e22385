/* ctl.h - fp8ctl: a command is a row of a const table and one function.
 *
 * Results go to stdout, talk to stderr. With --json a command prints one object whose
 * "fp8ctl_json" is the version of its keys: keys are only added within a version. Foreign text is
 * escaped.
 */
#ifndef FP8D_CLIENT_CTL_CTL_H
#define FP8D_CLIENT_CTL_CTL_H

#include "base/fault.h"
#include "client/ctl/args.h"
#include "client/fp8d.h"

#include <stdbool.h>

#define CTL_SCOPES 64
#define CTL_TEXT 2048 /* room for an escaped sentence or name */

/* Exit codes. */
enum {
    CTL_OK = 0,
    CTL_FAILED = 1,        /* the server refused, or a local file could not be read or written */
    CTL_USAGE = 2,
    CTL_NO_CONNECTION = 3,
};

struct ctl_scope {
    const char *model; /* heap */
    uint64_t id;       /* 0: free slot */
};

struct ctl {
    const char *socket; /* NULL: the default */
    bool json;
    uint32_t timeout_ms; /* 0: none */
    struct fp8d *c;      /* NULL until a command needs it */
    const struct command *command; /* running now, for messages */
    bool batch;                    /* inside a batch */
    bool no_memory;                /* building JSON failed */
    struct ctl_scope scopes[CTL_SCOPES];
    uint64_t last_scope;
    uint64_t last_tensor; /* of those that 'create' puts */
};

struct command {
    const char *name;
    const char *arguments; /* e.g. "MODEL PATH" */
    const char *summary;
    const struct arg_option *options; /* ends with a row without a name */
    unsigned min, max;                /* arguments */
    bool local;                       /* needs no connection */
    bool batch_only;
    int (*run)(struct ctl *ctl, const struct args *a);
    const char *detail; /* for its help; NULL: none */
};

/* commands.c */
extern const struct command commands[]; /* ends with a row without a name */
const struct command *command_find(const char *name);
void command_help(const struct command *k); /* NULL: of the whole program; on stdout */

/* run.c: parse the words after the program's name, connect, run. Returns an exit code. */
int ctl_run(struct ctl *ctl, int argc, const char *const *argv);
int ctl_connect(struct ctl *ctl);

/* say.c. Each prints a failure on stderr (and, but for usage, as an object with --json) and
 * returns the exit code. */
int ctl_failed(const struct ctl *ctl, const struct fp8d_error *err);
int ctl_fault(const struct ctl *ctl, const struct fault *f);
int ctl_no_connection(const struct ctl *ctl, const struct fp8d_error *err);
int ctl_usage(const struct ctl *ctl, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Escaped into buf, which is returned. NULL is shown as "". */
const char *ctl_text(char buf[CTL_TEXT], const char *s);
/* A sentence, in which foreign text is escaped already: the same, but backslashes stay. */
const char *ctl_sentence(char buf[CTL_TEXT], const char *s);

/* One line each on stdout, behind the title: sentences of the server, or names. */
void ctl_print_list(const char *title, const char *const *list, size_t count);
void ctl_print_names(const char *title, const char *const *list, size_t count);
/* How many of `total` were not in such a list, if any. */
void ctl_print_more(const char *title, size_t count, uint64_t total);

/* "MODEL/LAYER" split at the first slash. `model` has room for 129 bytes. False after a usage
 * error. */
bool ctl_split(const struct ctl *ctl, const char *target, char model[129], const char **layer);

/* recipe.c: the options of a recipe, and a recipe in one word or as an object. */
void recipe_from_args(const struct args *a, struct fp8d_recipe *out);
bool recipe_asked(const struct args *a); /* is one of these options given? */
const char *recipe_text(const struct fp8d_recipe *r, char buf[CTL_TEXT]);

/* The commands. */
int cmd_status(struct ctl *ctl, const struct args *a);
int cmd_ping(struct ctl *ctl, const struct args *a);
int cmd_models(struct ctl *ctl, const struct args *a);
int cmd_layers(struct ctl *ctl, const struct args *a);
int cmd_load(struct ctl *ctl, const struct args *a);
int cmd_unload(struct ctl *ctl, const struct args *a);
int cmd_save(struct ctl *ctl, const struct args *a);
int cmd_create(struct ctl *ctl, const struct args *a);
int cmd_recipe(struct ctl *ctl, const struct args *a);
int cmd_set_weight(struct ctl *ctl, const struct args *a);
int cmd_forward(struct ctl *ctl, const struct args *a);
int cmd_backward(struct ctl *ctl, const struct args *a);
int cmd_recompute(struct ctl *ctl, const struct args *a);
int cmd_drop_context(struct ctl *ctl, const struct args *a);
int cmd_zero_grad(struct ctl *ctl, const struct args *a);
int cmd_gradient(struct ctl *ctl, const struct args *a);
int cmd_optimizer(struct ctl *ctl, const struct args *a);
int cmd_step(struct ctl *ctl, const struct args *a);
int cmd_calibration(struct ctl *ctl, const struct args *a);
int cmd_scope(struct ctl *ctl, const struct args *a);
int cmd_scaling(struct ctl *ctl, const struct args *a);
int cmd_check(struct ctl *ctl, const struct args *a);
int cmd_batch(struct ctl *ctl, const struct args *a);
int cmd_bench(struct ctl *ctl, const struct args *a);

#endif
