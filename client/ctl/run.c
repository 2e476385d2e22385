/* From words to a running command. */
#include "client/ctl/ctl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MAX 86400.0 /* seconds */

static const struct arg_option globals[] = {
    {"socket", "PATH", "", 0, 0, false},     {"json", NULL, "", 0, 0, false},
    {"timeout", "SECONDS", "", 0, 0, false}, {"help", NULL, "", 0, 0, false},
    {"version", NULL, "", 0, 0, false},      {NULL, NULL, NULL, 0, 0, false},
};

/* Of a line of a batch: the connection is what it is. */
static const struct arg_option batch_globals[] = {
    {"help", NULL, "", 0, 0, false},
    {NULL, NULL, NULL, 0, 0, false},
};

int ctl_connect(struct ctl *ctl)
{
    struct fp8d_error err;
    struct fp8d_options o = {
        .connect_timeout_ms = ctl->timeout_ms,
        .call_timeout_ms = ctl->timeout_ms,
        .client_name = "fp8ctl",
    };
    if (ctl->c)
        return CTL_OK;
    return fp8d_connect(ctl->socket, &o, &ctl->c, &err) ? ctl_no_connection(ctl, &err) : CTL_OK;
}

static const char *next_command(const void *arg, size_t i)
{
    (void)arg;
    return commands[i].name;
}

static int unknown_command(struct ctl *ctl, const char *word)
{
    char text[CTL_TEXT];
    ctl->command = NULL; /* in a batch: that of the line before */
    const char *hint = args_closest(word, next_command, NULL);
    ctl_text(text, word);
    if (hint)
        return ctl_usage(ctl, "unknown command '%s', did you mean '%s'?", text, hint);
    return ctl_usage(ctl, "unknown command '%s'", text);
}

static int take_timeout(struct ctl *ctl, const char *value)
{
    char *end, text[CTL_TEXT];
    double seconds = strtod(value, &end);
    if (end == value || *end || !(seconds >= 0.001 && seconds <= TIMEOUT_MAX))
        return ctl_usage(ctl, "--timeout is '%s', needed seconds from 0.001 to 86400",
                         ctl_text(text, value));
    ctl->timeout_ms = (uint32_t)(seconds * 1000.0);
    return CTL_OK;
}

static int take_globals(struct ctl *ctl, const struct args *a)
{
    if (ctl->batch)
        return CTL_OK;
    ctl->json = ctl->json || args_has(a, "json");
    if (args_has(a, "socket"))
        ctl->socket = args_text(a, "socket");
    return args_has(a, "timeout") ? take_timeout(ctl, args_text(a, "timeout")) : CTL_OK;
}

static int run_checked(struct ctl *ctl, const struct command *k, const struct args *a)
{
    int rc = take_globals(ctl, a);
    if (rc)
        return rc;
    if (args_has(a, "help")) {
        command_help(k);
        return CTL_OK;
    }
    if (a->count < k->min || a->count > k->max)
        return ctl_usage(ctl, "%s takes %s, got %u argument%s", k->name,
                         *k->arguments ? k->arguments : "no arguments", a->count,
                         a->count == 1 ? "" : "s");
    if (k->batch_only && !ctl->batch)
        return ctl_usage(ctl, "%s works only inside 'fp8ctl batch', on one connection", k->name);
    if (!strcmp(k->name, "batch") && ctl->batch)
        return ctl_usage(ctl, "a batch cannot run a batch");
    return k->run(ctl, a);
}

static int run_command(struct ctl *ctl, const struct command *k, int argc, const char *const *argv)
{
    struct args a;
    char why[512];
    ctl->command = k;
    bool good = args_parse(&a, argc, argv, k->options, ctl->batch ? batch_globals : globals, why,
                           sizeof why);
    int rc = good ? run_checked(ctl, k, &a) : ctl_usage(ctl, "%s: %s", k->name, why);
    args_fini(&a);
    return rc;
}

/* Words before the command: only options of the program itself. Returns how many there are. */
static int count_leading(int argc, const char *const *argv)
{
    int n = 0;
    while (n < argc && argv[n][0] == '-' && argv[n][1]) {
        bool takes = !strcmp(argv[n], "--socket") || !strcmp(argv[n], "--timeout");
        n += takes ? 2 : 1;
    }
    return n < argc ? n : argc;
}

/* Options alone decide: -1 to go on with a command, else the exit code. */
static int lead(struct ctl *ctl, int argc, const char *const *argv)
{
    struct args a;
    char why[512];
    int rc = -1;
    if (!args_parse(&a, argc, argv, globals, NULL, why, sizeof why)) {
        rc = ctl_usage(ctl, "%s", why);
    } else if (args_has(&a, "help")) {
        command_help(NULL);
        rc = CTL_OK;
    } else if (args_has(&a, "version")) {
        printf("fp8ctl %s\n", fp8d_version());
        rc = CTL_OK;
    } else {
        int bad = take_globals(ctl, &a);
        rc = bad ? bad : -1;
    }
    args_fini(&a);
    return rc;
}

int ctl_run(struct ctl *ctl, int argc, const char *const *argv)
{
    int skip = ctl->batch ? 0 : count_leading(argc, argv);
    int rc = skip ? lead(ctl, skip, argv) : -1;
    if (rc >= 0)
        return rc;
    if (skip == argc)
        return ctl_usage(ctl, "a command is missing");
    const struct command *k = command_find(argv[skip]);
    if (!k)
        return unknown_command(ctl, argv[skip]);
    return run_command(ctl, k, argc - skip - 1, argv + skip + 1);
}
