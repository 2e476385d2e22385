/* status.h - the status codes of the project.
 *
 * Functions return 0 for good and a negative number for bad. Negative errno values and libuv codes
 * (which are negative errno values on Linux) pass through unchanged; the project's own codes start
 * at -1000. Codes -1001 to -1016 are the google.rpc codes 1 to 16 shifted by -1000, so that a code
 * on the wire and a code in the library are one number apart.
 */
#ifndef FP8D_BASE_STATUS_H
#define FP8D_BASE_STATUS_H

/* X(name, value, text) */
#define FP8D_STATUS_LIST(X)                                                                        \
    X(CANCELLED, -1001, "cancelled")                                                               \
    X(UNKNOWN, -1002, "unknown error")                                                             \
    X(INVALID_ARGUMENT, -1003, "invalid argument")                                                 \
    X(DEADLINE_EXCEEDED, -1004, "deadline exceeded")                                               \
    X(NOT_FOUND, -1005, "not found")                                                               \
    X(ALREADY_EXISTS, -1006, "already exists")                                                     \
    X(PERMISSION_DENIED, -1007, "permission denied")                                               \
    X(RESOURCE_EXHAUSTED, -1008, "resource exhausted")                                             \
    X(FAILED_PRECONDITION, -1009, "failed precondition")                                           \
    X(ABORTED, -1010, "aborted")                                                                   \
    X(OUT_OF_RANGE, -1011, "out of range")                                                         \
    X(UNIMPLEMENTED, -1012, "unimplemented")                                                       \
    X(INTERNAL, -1013, "internal error")                                                           \
    X(UNAVAILABLE, -1014, "unavailable")                                                           \
    X(DATA_LOSS, -1015, "data loss")                                                               \
    X(UNAUTHENTICATED, -1016, "unauthenticated")                                                   \
    X(PROTOCOL, -1101, "protocol violation by the peer")                                           \
    X(CLOSED, -1102, "connection closed")                                                          \
    X(FORKED, -1103, "handle used in a forked process")

enum status_code {
#define X(name, value, text) FP8D_E##name = (value),
    FP8D_STATUS_LIST(X)
#undef X
};

/* Name of a code without its prefix, e.g. "INVALID_ARGUMENT" or "ENOENT"; never NULL. */
const char *status_name(int code);

/* Short text of a code; for negative errno values that of strerror. Never NULL. */
const char *status_text(int code);

/* The google.rpc code (0 to 16) that goes on the wire for any status, errno values included. */
int status_to_rpc(int code);

/* The status of a google.rpc code; codes outside 0 to 16 become FP8D_EUNKNOWN. */
int status_from_rpc(unsigned rpc);

#endif
