#include "kernels/module.h"

#include "base/mem.h"
#include "kernels/build_id.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef FP8D_PKGLIBDIR
#define FP8D_PKGLIBDIR "/usr/local/lib/fp8d"
#endif

#define MODULE_FILE "cuda.so"
#define LEAST_MAJOR 9 /* compute capability: Hopper */

const char *module_build_id(void)
{
    return FP8D_BUILD_ID;
}

/* --- the driver --- */

#define DRIVER_NO_DEVICE 100
#define DRIVER_MAJOR 75
#define DRIVER_MINOR 76

static bool driver_symbol(void *lib, const char *name, void *out)
{
    void *p = dlsym(lib, name);
    memcpy(out, &p, sizeof p);
    return p != NULL;
}

static int driver_load(struct module_driver *d, struct fault *f)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "there is no NVIDIA driver: libcuda.so.1 cannot be loaded");
    if (!driver_symbol(lib, "cuInit", &d->init) ||
        !driver_symbol(lib, "cuDeviceGetCount", &d->count) ||
        !driver_symbol(lib, "cuDeviceGet", &d->get) ||
        !driver_symbol(lib, "cuDeviceGetName", &d->name) ||
        !driver_symbol(lib, "cuDeviceGetAttribute", &d->attribute))
        return fault_set(f, FP8D_EFAILED_PRECONDITION, "libcuda.so.1 is no NVIDIA driver: %s",
                         dlerror());
    return 0;
}

static int check_architecture(const struct module_driver *d, unsigned device, struct fault *f)
{
    int handle = 0, major = 0, minor = 0;
    char name[128] = "?";
    int rc = d->get(&handle, (int)device);
    if (!rc)
        rc = d->name(name, (int)sizeof name, handle);
    if (!rc)
        rc = d->attribute(&major, DRIVER_MAJOR, handle);
    if (!rc)
        rc = d->attribute(&minor, DRIVER_MINOR, handle);
    if (rc)
        return fault_set(f, FP8D_EFAILED_PRECONDITION, "GPU %u does not answer (CUresult %d)",
                         device, rc);
    if (major < LEAST_MAJOR)
        return fault_set(
            f, FP8D_EFAILED_PRECONDITION,
            "GPU %u (%s) has compute capability %d.%d, needed 9.0 or later (H100, H200)", device,
            name, major, minor);
    return 0;
}

int module_check_device(const struct module_driver *d, unsigned device, struct fault *f)
{
    int count = 0;
    int rc = d->init(0);
    if (!rc)
        rc = d->count(&count);
    if (rc == DRIVER_NO_DEVICE || (!rc && !count))
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "the NVIDIA driver is there, but it sees no GPU");
    if (rc)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "the NVIDIA driver cannot be started (CUresult %d)", rc);
    if (device >= (unsigned)count)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "device is %u, but there are %d GPUs, from 0", device, count);
    return check_architecture(d, device, f);
}

int module_probe_driver(unsigned device, struct fault *f)
{
    struct module_driver d = {0};
    int rc = driver_load(&d, f);
    return rc ? rc : module_check_device(&d, device, f);
}

/* --- the file --- */

static int check_one(const char *path, struct fault *f)
{
    struct stat st;
    if (stat(path, &st))
        return fault_set(f, -errno, "%s: %s", path, strerrordesc_np(errno));
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return fault_set(f, FP8D_EPERMISSION_DENIED,
                         "%s belongs to user %u, needed root or the user of this process", path,
                         (unsigned)st.st_uid);
    bool sticky = S_ISDIR(st.st_mode) && (st.st_mode & S_ISVTX);
    if ((st.st_mode & (S_IWGRP | S_IWOTH)) && !sticky)
        return fault_set(f, FP8D_EPERMISSION_DENIED,
                         "%s can be written by others (mode %04o), which a backend module and the "
                         "directories above it must not",
                         path, (unsigned)st.st_mode & 07777u);
    return 0;
}

int module_check_path(const char *path, struct fault *f)
{
    char real[PATH_MAX];
    if (*path != '/')
        return fault_set(f, FP8D_EINVALID_ARGUMENT, "%s is no absolute path", path);
    if (!realpath(path, real))
        return fault_set(f, -errno, "%s: %s", path, strerrordesc_np(errno));
    int rc = check_one(real, f);
    for (char *slash = strrchr(real, '/'); !rc && slash; slash = strrchr(real, '/')) {
        slash[slash == real] = 0; /* the root keeps its slash */
        rc = check_one(real, f);
        if (slash == real)
            break;
    }
    return rc;
}

/* PREFIX/bin/fp8d gives PREFIX/lib/fp8d; false if that cannot be told. */
static bool beside_binary(char *out, size_t size)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return false;
    exe[n] = 0;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(exe, '/');
        if (!slash)
            return false;
        *slash = 0;
    }
    n = snprintf(out, size, "%s/lib/fp8d/" MODULE_FILE, exe);
    return n > 0 && (size_t)n < size;
}

/* May be loaded, or the reason under the module's name. */
static int check_file(const char *path, struct fault *f)
{
    if (!module_check_path(path, f))
        return 0;
    (void)fault_wrap(f, "the CUDA backend module");
    f->code = FP8D_EFAILED_PRECONDITION;
    return f->code;
}

static int find_file(const char *dir, char *out, size_t size, struct fault *f)
{
    const char *installed = FP8D_PKGLIBDIR "/" MODULE_FILE;
    char beside[PATH_MAX] = "";
    if (dir && *dir) {
        (void)snprintf(out, size, "%s/" MODULE_FILE, dir);
        return check_file(out, f);
    }
    bool known = beside_binary(beside, sizeof beside);
    (void)snprintf(out, size, "%s", known && !access(beside, F_OK) ? beside : installed);
    if (access(out, F_OK))
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "the CUDA backend module is not installed: there is no %s and no %s",
                         known ? beside : "lib/fp8d/" MODULE_FILE " beside the binary", installed);
    return check_file(out, f);
}

/* The loader says "SONAME: cannot open shared object file: ..." where a needed library is missing.
 */
static int explain_load(const char *path, const char *why, struct fault *f)
{
    size_t len = strcspn(why, ":");
    if (strncmp(why, path, strlen(path)) != 0 && strstr(why, "cannot open shared object file"))
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "the CUDA backend needs %.*s, which the system's loader does not find "
                         "(install it, or name its directory in ld.so.conf or LD_LIBRARY_PATH)",
                         (int)len, why);
    return fault_set(f, FP8D_EFAILED_PRECONDITION, "%s cannot be loaded: %s", path, why);
}

static int load_file(const char *path, const struct backend_module **out, struct fault *f)
{
    backend_module_cb entry;
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return explain_load(path, dlerror(), f);
    if (!driver_symbol(lib, BACKEND_MODULE_SYMBOL, &entry))
        return fault_set(f, FP8D_EFAILED_PRECONDITION, "%s is no backend module of fp8d", path);
    const struct backend_module *m = entry();
    if (strcmp(m->build_id, FP8D_BUILD_ID) != 0)
        return fault_set(f, FP8D_EFAILED_PRECONDITION,
                         "%s is of another build (%.16s, this program is %s)", path, m->build_id,
                         FP8D_BUILD_ID);
    *out = m;
    return 0;
}

/* --- the whole --- */

int module_open_cuda(const char *dir, const struct module_options *o,
                     void (*log)(enum host_log level, const char *text), struct backend **out,
                     struct fault *f)
{
    static struct backend_host host = {
        .alloc = mem_alloc, .zalloc = mem_zalloc, .realloc = mem_realloc, .free = mem_free};
    char path[PATH_MAX + sizeof MODULE_FILE];
    const struct backend_module *m = NULL;
    host.log = log;
    int rc = module_probe_driver(o->device, f);
    if (!rc)
        rc = find_file(dir, path, sizeof path, f);
    if (!rc)
        rc = load_file(path, &m, f);
    if (!rc)
        rc = m->probe(&host, o, f);
    return rc ? rc : m->open(&host, o, out, f);
}
