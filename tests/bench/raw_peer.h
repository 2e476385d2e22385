/* raw_peer.h - a process behind a socket that only copies: what the payload plane is held to.
 *
 * One thread on either side, as the daemon's and the client's. Errors end the program.
 */
#ifndef FP8D_TESTS_BENCH_RAW_PEER_H
#define FP8D_TESTS_BENCH_RAW_PEER_H

#include <stddef.h>

#define RAW_BULK ((size_t)64 << 20)

int raw_start(void); /* the socket; the process ends when it is closed */

void raw_echo(int fd);           /* 40 bytes there and back */
void raw_put(int fd, char *buf); /* RAW_BULK bytes there, 40 back */
void raw_get(int fd, char *buf); /* 40 bytes there, RAW_BULK and 40 back */

/* `count` times RAW_BULK bytes there and as many back, both at once. */
void raw_both(int fd, char *out, char *in, unsigned count);

#endif
