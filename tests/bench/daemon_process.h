/* daemon_process.h - a real fp8d on a private socket, for benches and scenario tests. */
#ifndef FP8D_TESTS_DAEMON_PROCESS_H
#define FP8D_TESTS_DAEMON_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

struct daemon_process {
    pid_t pid;
    char dir[64];     /* mkdtemp */
    char socket[96];
    char log[96];     /* its stderr */
    double ready_ms;  /* from fork to READY=1 */
};

/* Start `program` with --socket and the NULL-terminated extra arguments; waits for READY=1 (10 s).
 * 0, or -1 after a message on stderr. */
int daemon_start(struct daemon_process *d, const char *program, const char *const *extra);

/* SIGTERM, wait, remove the directory; the exit status as wait gives it. */
int daemon_stop(struct daemon_process *d);

/* The same without the signal: it has been told to stop before (a second one means "at once"). */
int daemon_wait(struct daemon_process *d);

/* "VmHWM", "VmRSS", ... of /proc/PID/status, in bytes; 0 if absent. */
uint64_t daemon_memory(const struct daemon_process *d, const char *key);

double clock_ms(void); /* monotonic */

#endif
