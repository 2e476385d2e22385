/* main.c - fp8d(8): command line, configuration, exit codes. */
#include "daemon/cmdline.h"
#include "daemon/device.h"
#include "daemon/log.h"
#include "daemon/service.h"
#include "proto/frame.h"
#include "proto/requests.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0.1.0-unconfigured"
#endif
#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static int complain(const struct fault *f, int exit_code)
{
    fprintf(stderr, "fp8d: %s\n", f->text);
    return exit_code;
}

/* What was printed has arrived. */
static int printed(void)
{
    return fflush(stdout) || ferror(stdout) ? 1 : 0;
}

static int print_version(void)
{
    printf("fp8d %s\nbackends: %s\nprotocol: framing %d, schema %d.%d (oldest client %d.%d)\n"
           "compiler: %s\n",
           PACKAGE_VERSION, DEVICE_BACKENDS, FRAME_VERSION, SCHEMA_MAJOR, SCHEMA_MINOR,
           SCHEMA_MAJOR, SCHEMA_MIN_MINOR, COMPILER);
    return printed();
}

/* Bad configuration is no reason to be started again; a host that says no may be. */
static int exit_code_of(int rc)
{
    return rc == FP8D_EINVALID_ARGUMENT || rc == FP8D_EFAILED_PRECONDITION ? CONFIG_EXIT : 1;
}

static int serve(const struct config *c)
{
    static struct service service;
    struct fault f = {0};
    log_init((enum log_level)c->log_level);
    int rc = service_open(&service, c, PACKAGE_VERSION, &f);
    if (rc) {
        log_line(LOG_ERROR, LOG_PAIRS(LOG_TEXT("status", status_name(rc))), "cannot start: %s",
                 f.text);
        service_close(&service);
        return exit_code_of(rc);
    }
    rc = service_run(&service);
    if (rc)
        _exit(rc); /* threads hang: nothing can be torn down */
    service_close(&service);
    return 0;
}

/* What is opened later must not become standard output or error. */
static void fill_standard_files(void)
{
    int fd;
    do
        fd = io_posix.open(io_posix.self, "/dev/null", O_RDWR, 0);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        (void)io_posix.close(io_posix.self, fd);
}

int main(int argc, char **argv)
{
    struct cmdline cl;
    struct config c;
    struct fault f = {0};
    int rc = 0;
    fill_standard_files();
    if (cmdline_parse(&cl, argc, argv, &f))
        return complain(&f, CMDLINE_EXIT);
    if (cl.action == CMDLINE_VERSION)
        return print_version();
    if (cl.action == CMDLINE_HELP) {
        cmdline_help(stdout);
        return printed();
    }
    if (cmdline_config(&cl, &io_posix, environ, &c, &f))
        return complain(&f, CONFIG_EXIT);
    if (cl.action == CMDLINE_PRINT_CONFIG) {
        config_print(&c, stdout);
        rc = printed();
    } else if (cl.action == CMDLINE_RUN)
        rc = serve(&c);
    config_fini(&c);
    return rc;
}
