/* host.h - what the program lends to this module: its allocator, under the names of base/mem.h, and
 * its log. Set once, before anything else of the module runs. */
#ifndef FP8D_KERNELS_CUDA_HOST_H
#define FP8D_KERNELS_CUDA_HOST_H

#include "kernels/module.h"

void host_set(const struct backend_host *h);
void host_log(enum host_log level, const char *text);

#endif
