/* served.h - a desk that serves one model to two clients, and a picture of what they can see:
 * hostile tests take one before and compare after.
 *
 * Model "m" (delayed, history 4): layer "a" [16, 32] with bias, layer "b" [32, 16] without; a few
 * train forwards have been run. Connection 1 is the attacker, 2 the bystander. */
#ifndef FP8D_TESTS_UNIT_SERVED_H
#define FP8D_TESTS_UNIT_SERVED_H

#include "tests/unit/desk.h"

#define ATTACKER 1
#define BYSTANDER 2
#define SERVED_IN 32
#define SERVED_OUT 16
#define SERVED_TOKENS 3

/* google.rpc codes. */
enum {
    OK = 0,
    CANCELLED = 1,
    INVALID_ARGUMENT = 3,
    DEADLINE_EXCEEDED = 4,
    NOT_FOUND = 5,
    ALREADY_EXISTS = 6,
    PERMISSION_DENIED = 7,
    RESOURCE_EXHAUSTED = 8,
    FAILED_PRECONDITION = 9,
    ABORTED = 10,
    UNIMPLEMENTED = 12,
    INTERNAL = 13,
    UNAVAILABLE = 14,
    DATA_LOSS = 15,
};

struct served {
    struct desk *d;
    float wa[SERVED_OUT * SERVED_IN], wb[SERVED_IN * SERVED_OUT], bias[SERVED_OUT];
    float x[SERVED_TOKENS * SERVED_IN];
    int64_t blocks; /* alive before */
};

/* Options as for desk_new. */
void served_open(struct served *s, const struct engine_options *o, unsigned threads);
void served_close(struct served *s); /* closes both connections; asserts that nothing is left */

/* Everything a bystander sees: scaling state, ListModels and DescribeModel bytes, one output, and
 * the ledger. */
struct picture {
    struct desk_frame *scaling, *models, *layers;
    float y[SERVED_TOKENS * SERVED_OUT];
    uint64_t ledger;
};

void picture_take(struct served *s, struct picture *p);
void picture_fini(struct picture *p);
void picture_same(struct served *s, const struct picture *p); /* asserts that nothing moved */

/* As desk_call with descriptors: the code, and the sentence in text (1024 bytes). */
unsigned served_call(struct served *s, uint64_t conn, uint16_t type, const ProtobufCMessage *m,
                     const void *payload, uint64_t payload_len, int *fds, unsigned nfds,
                     char *text);

/* Asserts that the sentence holds each of these parts, cut at '|'. */
void served_says(const char *what, const char *text, const char *parts);

/* The attacker's request, without payload, is refused with this code and a sentence of these parts,
 * and nothing changed since the picture. */
void served_refuses(struct served *s, const struct picture *p, uint16_t type,
                    const ProtobufCMessage *m, unsigned code, const char *parts);
void served_accepts(struct served *s, uint64_t conn, uint16_t type, const ProtobufCMessage *m);

/* Begin, attach and commit `fd` (taken) as model `name`. The code of the first that failed. */
unsigned served_load_fd(struct served *s, uint64_t conn, const char *name, int fd, char *text);

/* A valid safetensors file of `layers` F32 layers "l0", "l1"... [16, 16] in a memfd. */
int served_file(unsigned layers);

/* Send a valid forward of x on layer "a": train with a context if context_id is not 0, else eval.
 * `head` may be NULL. */
uint64_t served_forward(struct served *s, uint64_t conn, Fp8d__V1__RequestHead *head,
                        uint64_t context_id);
/* The same, started and left running until desk_resume. */
uint64_t served_start_forward(struct served *s, uint64_t conn, uint64_t context_id);
/* The code of a reply that is there, its sentence in text (1024 bytes); -1: none is there. */
int served_code(struct served *s, uint64_t conn, uint64_t id, char *text);
/* Unpacked Status; free with fp8d__v1__status_reply__free_unpacked. */
Fp8d__V1__StatusReply *served_status(struct served *s, uint64_t conn);
uint64_t served_forwards_done(struct served *s);

/* Messages of protobuf-c take char *, and never write to it. */
static inline char *str(const char *s)
{
    return (char *)(uintptr_t)s;
}

#endif
