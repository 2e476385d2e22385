#include "daemon/device.h"

#include "daemon/log.h"
#include "kernels/cpu/cpu.h"
#include "kernels/module.h"

#include <stdio.h>
#include <string.h>

static int open_cpu(const struct config *c, struct backend **out, struct fault *f)
{
    static const enum cpu_level levels[] = {CPU_LEVEL_AUTO, CPU_LEVEL_BASELINE, CPU_LEVEL_V3,
                                            CPU_LEVEL_V4}; /* in the order of the key's words */
    struct cpu_options o = {.level = levels[c->cpu_level], .threads = (unsigned)c->cpu_threads};
    return cpu_open(&o, out, f);
}

static void module_log(enum host_log level, const char *text)
{
    static const enum log_level levels[] = {LOG_ERROR, LOG_WARN, LOG_INFO};
    log_line(levels[level], NULL, "%s", text);
}

static int open_cuda(const struct config *c, struct backend **out, struct fault *f)
{
    struct module_options o = {.device = (unsigned)c->device};
    if (c->device_memory & CONFIG_PERCENT)
        o.memory_percent = (unsigned)(c->device_memory & ~CONFIG_PERCENT);
    else
        o.memory = c->device_memory;
    return module_open_cuda(c->backend_dir, &o, module_log, out, f);
}

/* A GPU that is there but cannot be used is worth a warning; a host without a driver is not. */
static void say_fallback(const char *why)
{
    bool has_driver = !strstr(why, "no NVIDIA driver");
    log_line(has_driver ? LOG_WARN : LOG_INFO, NULL,
             "computing on the CPU: backend is auto, and %s", why);
}

int device_open(const struct config *c, struct backend **out, char *reason, size_t reason_size,
                struct fault *f)
{
    if (c->backend == CONFIG_BACKEND_CPU) {
        (void)snprintf(reason, reason_size, "it was asked for");
        return open_cpu(c, out, f);
    }
    int rc = open_cuda(c, out, f);
    if (!rc) {
        (void)snprintf(reason, reason_size, "%s",
                       c->backend == CONFIG_BACKEND_CUDA ? "it was asked for"
                                                         : "backend is auto and there is a GPU");
        return 0;
    }
    if (c->backend == CONFIG_BACKEND_CUDA) {
        (void)fault_wrap(f, "backend is cuda, but");
        f->code = FP8D_EFAILED_PRECONDITION;
        return f->code;
    }
    say_fallback(f->text);
    (void)snprintf(reason, reason_size, "backend is auto, and %s", f->text);
    return open_cpu(c, out, f);
}
