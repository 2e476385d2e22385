#include "daemon/cmdline.h"

#include "base/text.h"

#include <errno.h>
#include <getopt.h>
#include <string.h>

/* Options without a short form. From OPT_KEY on: the option sets the key of its own name. */
enum {
    OPT_CONFIG = 256,
    OPT_SET,
    OPT_CHECK_CONFIG,
    OPT_PRINT_CONFIG,
    OPT_VERSION,
    OPT_HELP,
    OPT_SOCKET,
    OPT_BACKEND,
    OPT_BACKEND_DIR,
    OPT_DEVICE,
};

static const struct option options[] = {
    {"config", required_argument, NULL, OPT_CONFIG},
    {"set", required_argument, NULL, OPT_SET},
    {"check-config", no_argument, NULL, OPT_CHECK_CONFIG},
    {"print-config", no_argument, NULL, OPT_PRINT_CONFIG},
    {"version", no_argument, NULL, OPT_VERSION},
    {"help", no_argument, NULL, OPT_HELP},
    {"socket", required_argument, NULL, OPT_SOCKET},
    {"backend", required_argument, NULL, OPT_BACKEND},
    {"backend-dir", required_argument, NULL, OPT_BACKEND_DIR},
    {"device", required_argument, NULL, OPT_DEVICE},
    {0},
};

static const char *key_of(int option)
{
    switch (option) {
    case OPT_SOCKET:
        return "socket";
    case OPT_BACKEND:
        return "backend";
    case OPT_BACKEND_DIR:
        return "backend_dir";
    case OPT_DEVICE:
        return "device";
    default:
        return NULL;
    }
}

/* From the start; `:` makes getopt quiet and tells a missing argument from an unknown option. */
static void rewind_options(void)
{
    optind = 0;
    opterr = 0;
}

static int bad_option(int found, char **argv, struct fault *f)
{
    char shown[128];
    const char *what = argv[optind - 1];
    text_escape(shown, sizeof shown, what, strlen(what));
    if (found == ':')
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "option %s needs a value", shown);
    return fault_set(f, FP8D_EINVALID_ARGUMENT, "unknown option %s; fp8d --help lists the options",
                     shown);
}

int cmdline_parse(struct cmdline *cl, int argc, char **argv, struct fault *f)
{
    int found;
    *cl = (struct cmdline){.argc = argc, .argv = argv};
    rewind_options();
    while ((found = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (found == '?' || found == ':')
            return bad_option(found, argv, f);
        if (found == OPT_CONFIG)
            cl->config_file = optarg;
        if (found == OPT_SET && !strchr(optarg, '='))
            return fault_set(f, FP8D_EINVALID_ARGUMENT, "--set needs KEY=VALUE, found \"%.100s\"",
                             optarg);
        if (found >= OPT_CHECK_CONFIG && found <= OPT_HELP)
            cl->action = CMDLINE_CHECK_CONFIG + (unsigned)(found - OPT_CHECK_CONFIG);
    }
    if (optind < argc)
        return fault_set(f, FP8D_EINVALID_ARGUMENT,
                         "unexpected argument \"%.100s\"; fp8d --help lists the options",
                         argv[optind]);
    return 0;
}

static int set_pair(struct config *c, const char *pair, struct fault *f)
{
    char key[64];
    const char *equals = strchr(pair, '=');
    size_t len = (size_t)(equals - pair);
    if (len >= sizeof key)
        len = sizeof key - 1;
    memcpy(key, pair, len);
    key[len] = 0;
    return config_set(c, key, equals + 1, CONFIG_FROM_ARGS, f);
}

static int apply_args(const struct cmdline *cl, struct config *c, struct fault *f)
{
    int found, rc = 0;
    rewind_options();
    while (!rc && (found = getopt_long(cl->argc, cl->argv, ":", options, NULL)) != -1) {
        if (found == OPT_SET)
            rc = set_pair(c, optarg, f);
        else if (key_of(found))
            rc = config_set(c, key_of(found), optarg, CONFIG_FROM_ARGS, f);
    }
    return rc ? fault_wrap(f, "on the command line") : 0;
}

int cmdline_config(const struct cmdline *cl, const struct io *io, char *const *env,
                   struct config *c, struct fault *f)
{
    int rc = config_init(c, f);
    if (rc)
        return rc;
    rc = config_read_file(c, io, cl->config_file ? cl->config_file : CONFIG_FILE, f);
    if (rc == -ENOENT && !cl->config_file)
        rc = 0;
    if (!rc)
        rc = config_read_env(c, env, f);
    if (!rc)
        rc = apply_args(cl, c, f);
    if (!rc)
        rc = config_check(c, f);
    if (rc)
        config_fini(c);
    return rc;
}

void cmdline_help(FILE *to)
{
    fputs("usage: fp8d [OPTION]...\n"
          "Own FP8 neural-network layers and serve them on a Unix socket.\n\n"
          "  --socket PATH             where to listen\n"
          "  --backend auto|cpu|cuda   where numbers are computed\n"
          "  --backend-dir DIR         where backend modules are\n"
          "  --device N                number of the GPU\n"
          "  --config FILE             instead of " CONFIG_FILE "\n"
          "  --set KEY=VALUE           set any key below; may be repeated\n"
          "  --check-config            read the configuration, exit 0 or 78\n"
          "  --print-config            print the configuration in force\n"
          "  --version, --help\n\n"
          "Keys, of the file (key = value), the environment (FP8D_KEY) and --set:\n",
          to);
    config_help(to);
    fputs("\nExit codes: 0 clean end, 1 could not start, 2 usage, 75 a stop timed out,\n"
          "76 the device is lost, 78 bad configuration.\n",
          to);
}
