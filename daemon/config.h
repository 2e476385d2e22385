/* config.h - what an operator can set: one table for the file, the environment and the command line.
 *
 * Later wins: the default, the file (--config, else /etc/fp8d/fp8d.conf if it is there), FP8D_<KEY> in
 * the environment, the command line. The file is lines of `key = value`; `#` begins a comment at the
 * start of a line; there are no sections. Unknown keys, duplicates, bad values and lines over 1 023
 * bytes are errors that name file and line (exit code 78). Reference: fp8d.conf(5). Main thread.
 */
#ifndef FP8D_DAEMON_CONFIG_H
#define FP8D_DAEMON_CONFIG_H

#include "base/io.h"
#include "base/mem.h"
#include "daemon/config_value.h"

#include <stdio.h>

#define CONFIG_FILE "/etc/fp8d/fp8d.conf"
#define CONFIG_FILE_MAX (64u << 10) /* bytes of a file */
#define CONFIG_LINE_MAX 1023u
#define CONFIG_EXIT 78 /* EX_CONFIG */

/* X(key, KIND, default, lowest, highest, words, help). KIND and words: config_value.h. Numbers are in
 * the unit of the kind; bounds of texts are of their length. */
#define CONFIG_LIST(X)                                                                             \
    X(socket, TEXT, "", 0, 107, "PATH",                                                            \
      "socket to listen on; empty: /run/fp8d/0/fp8d.sock for root and the user fp8d, else "        \
      "$XDG_RUNTIME_DIR/fp8d.sock")                                                                \
    X(socket_mode, MODE, "0660", 0, 0777, "MODE", "permissions of the socket, octal")              \
    X(backend, CHOICE, "auto", 0, 0, "auto|cpu|cuda",                                              \
      "where numbers are computed; auto takes a GPU if there is one, and says so")                 \
    X(backend_dir, TEXT, "", 0, 4095, "DIR",                                                       \
      "where backend modules are; empty: lib/fp8d under the binary's prefix")                      \
    X(device, COUNT, "0", 0, 63, "N", "number of the GPU")                                         \
    X(device_memory, SHARE, "80%", 256 << 20, (uint64_t)1 << 50, "BYTES|N%",                       \
      "memory that a GPU's daemon takes at its start for all it will hold there; N% is of what is " \
      "free then")                                                                                 \
    X(cpu_threads, COUNT, "0", 0, 1024, "N", "threads of the CPU backend; 0: one per core")        \
    X(cpu_level, CHOICE, "auto", 0, 0, "auto|baseline|v3|v4",                                      \
      "instruction set of the CPU backend; all give the same bits")                                \
    X(plans, CHOICE, "auto", 0, 0, "auto|timed|reproducible",                                      \
      "algorithms of a GPU's GEMMs: the fastest of some that are timed, or the library's first "   \
      "answer, which is the same in every process; auto times those of eval alone")                \
    X(memory_limit, MEMORY, "80%", 1 << 20, UINT64_MAX, "BYTES|N%",                                \
      "all host memory that clients can make the daemon hold; N% is of the host's")                     \
    X(connections_max, COUNT, "1024", 1, 65536, "N", "clients at once")                            \
    X(meta_max, BYTES, "64K", 1024, 1 << 20, "BYTES", "meta part of one frame")                    \
    X(payload_max, BYTES, "1G", 1 << 10, (uint64_t)1 << 40, "BYTES", "payload of one frame")       \
    X(in_flight_max, COUNT, "64", 1, 65535, "N", "requests of one client not answered yet")        \
    X(resident_max, BYTES, "4G", 0, UINT64_MAX, "BYTES", "tensors and contexts of one client")     \
    X(contexts_max, COUNT, "1024", 0, 1 << 20, "N", "forward contexts of one client")              \
    X(tensors_max, COUNT, "65536", 0, 1 << 24, "N", "tensor handles of one client")                \
    X(header_max, BYTES, "16M", 1 << 10, 100000000, "BYTES", "header of one checkpoint file")      \
    X(load_roots, PATHS, "", 0, 4095, "DIR:DIR",                                                   \
      "directories below which the daemon itself may open files (--server-path); empty: none")     \
    X(drain_timeout, TIME, "50s", 0, 86400000, "TIME", "what a stop gives running work")           \
    X(stall_limit, TIME, "5min", 1000, 86400000, "TIME",                                           \
      "work without progress for so long is a hang: the watchdog is not fed")                      \
    X(handshake_timeout, TIME, "30s", 100, 3600000, "TIME",                                        \
      "no first frame, or half a frame, for so long: the client is sent away")                     \
    X(memory_wait, TIME, "5s", 0, 3600000, "TIME",                                                 \
      "how long a request may wait for memory before it is refused")                               \
    X(output_high_water, BYTES, "64M", 1 << 10, UINT64_MAX, "BYTES",                               \
      "unread replies of a client above which it is not read any more")                            \
    X(output_limit, BYTES, "4G", 1 << 10, UINT64_MAX, "BYTES",                                     \
      "unread replies of a client above which it is disconnected; one reply may be larger")        \
    X(output_stall_timeout, TIME, "30s", 100, 3600000, "TIME",                                     \
      "a client above output_high_water that takes nothing for so long is disconnected")           \
    X(log_level, CHOICE, "info", 0, 0, "error|warn|info|debug", "what is logged on stderr")

enum config_key {
#define X(key, KIND, ...) CONFIG_KEY_##key,
    CONFIG_LIST(X)
#undef X
        CONFIG_KEYS
};

enum config_backend { CONFIG_BACKEND_AUTO, CONFIG_BACKEND_CPU, CONFIG_BACKEND_CUDA };

enum config_origin {
    CONFIG_DEFAULT,
    CONFIG_FROM_FILE,
    CONFIG_FROM_ENV,
    CONFIG_FROM_ARGS,
};

/* Values by name, e.g. config.payload_max. Texts live as long as the config. */
struct config {
#define X(key, KIND, ...) CONFIG_TYPE_##KIND key;
    CONFIG_LIST(X)
#undef X
    const char *text[CONFIG_KEYS]; /* as it was written */
    enum config_origin origin[CONFIG_KEYS];
    unsigned line[CONFIG_KEYS]; /* in the file being read; 0: not set there */
    struct arena arena;
};

/* The defaults. */
int config_init(struct config *c, struct fault *f);
void config_fini(struct config *c);

/* FP8D_ENOT_FOUND for an unknown key, FP8D_EINVALID_ARGUMENT for a bad value; the sentence names both. */
int config_set(struct config *c, const char *key, const char *value, enum config_origin from,
               struct fault *f);

/* -ENOENT (with a sentence) if there is no such file. */
int config_read_file(struct config *c, const struct io *io, const char *path, struct fault *f);

/* FP8D_<KEY>=value of the list that ends with NULL; other names are left alone. */
int config_read_env(struct config *c, char *const *env, struct fault *f);

/* What holds between keys. */
int config_check(const struct config *c, struct fault *f);

/* The socket, after the rule of the default: never empty on success. `is_service`: root, or the user
 * fp8d. runtime_dir may be NULL. */
int config_socket(const struct config *c, bool is_service, const char *runtime_dir, char *out,
                  size_t size, struct fault *f);

/* All keys in the syntax of the file; reading it back gives the same. */
void config_print(const struct config *c, FILE *to);

/* All keys with words, default and help: --help, and the source of fp8d.conf(5). */
void config_help(FILE *to);

#endif
