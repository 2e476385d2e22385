/* transport.h - the socket calls of the client: the only file with sendmsg and recvmsg.
 *
 * Functions over a non-blocking, close-on-exec Unix stream socket. No SIGPIPE, no state.
 * Interrupted calls are repeated. Times are monotonic nanoseconds; deadline 0 is "for ever".
 */
#ifndef FP8D_CLIENT_TRANSPORT_H
#define FP8D_CLIENT_TRANSPORT_H

#include "base/fault.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

uint64_t transport_now(void);

/* Connected descriptor, or a negative status with a sentence that names the path. A full backlog is
 * tried again until the deadline. */
int transport_connect(const char *path, uint64_t deadline, struct fault *f);
void transport_close(int fd);

/* Send what the kernel takes now, the descriptors with the first byte. Bytes sent (> 0), -EAGAIN,
 * or another negative errno. */
int64_t transport_send(int fd, const struct iovec *iov, unsigned count, const int *fds,
                       unsigned nfds);

/* Bytes received into buf, 0 at the end of the stream, -EAGAIN, or another negative errno.
 * Descriptors that come along are closed. */
int64_t transport_recv(int fd, void *buf, size_t len);

/* Wait for readability, and for writability if `out`: look for spin_ns, then sleep. 0 when there is something to do, -ETIMEDOUT
 * at the deadline, or another negative errno. */
int transport_wait(int fd, int out, uint64_t spin_ns, uint64_t deadline);

#endif
