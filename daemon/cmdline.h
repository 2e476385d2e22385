/* cmdline.h - the command line of fp8d. Main thread. */
#ifndef FP8D_DAEMON_CMDLINE_H
#define FP8D_DAEMON_CMDLINE_H

#include "daemon/config.h"

#define CMDLINE_EXIT 2 /* usage */

enum cmdline_action {
    CMDLINE_RUN,
    CMDLINE_CHECK_CONFIG, /* read everything, say nothing, exit 0 or 78 */
    CMDLINE_PRINT_CONFIG,
    CMDLINE_VERSION,
    CMDLINE_HELP,
};

struct cmdline {
    enum cmdline_action action;
    const char *config_file; /* NULL: the standard one, if it is there */
    int argc;                /* the settings are read from these again, */
    char **argv;             /* in their order, after file and environment */
};

/* FP8D_EINVALID_ARGUMENT for what is not a command line of ours: the sentence has a hint. */
int cmdline_parse(struct cmdline *cl, int argc, char **argv, struct fault *f);

/* Default, file, environment, command line, in this order, then config_check. */
int cmdline_config(const struct cmdline *cl, const struct io *io, char *const *env,
                   struct config *c, struct fault *f);

void cmdline_help(FILE *to);

#endif
