/* device.h - which backend the daemon takes, and why. Main thread. */
#ifndef FP8D_DAEMON_DEVICE_H
#define FP8D_DAEMON_DEVICE_H

#include "daemon/config.h"
#include "kernels/backend.h"

#define DEVICE_BACKENDS "cpu, cuda (where its module is installed)" /* for --version */

/* Opens what `backend` asks for. `auto` takes a GPU if there is one that can be used, else the CPU,
 * and logs which and why; the driver is asked first (libcuda.so.1), so that a host without one
 * starts as fast as with `cpu`. The reason is a sentence for the log and for Hello.
 * FP8D_EFAILED_PRECONDITION when `cuda` cannot be had, with what is missing. */
int device_open(const struct config *c, struct backend **out, char *reason, size_t reason_size,
                struct fault *f);

#endif
