/* result.h - a reply, unpacked and checked, with all the memory it needs.
 *
 * Made in two steps: result_parse reads the meta and checks what it says about tensors against the
 * payload that was announced; the payload is then received into result->payload. Owner: the pending
 * request, then the caller of the library.
 */
#ifndef FP8D_CLIENT_RESULT_H
#define FP8D_CLIENT_RESULT_H

#include "base/fault.h"
#include "base/mem.h"
#include "client/fp8d.h"

#include <protobuf-c/protobuf-c.h>

struct fp8d_result {
    uint16_t type; /* of the request */
    struct fp8d_reply reply;
    int code;               /* the server's, 0 is success */
    uint32_t stage;
    uint32_t retry_after_ms;
    const char *message;
    const void *body;       /* the public struct of the type; NULL if it has none */
    void *payload;          /* where its bytes go; NULL: there are none */
    uint64_t payload_len;
    bool payload_owned;     /* mem_pages of payload_len */
    struct fp8d_tensor *tensor; /* part of body: the one whose bytes the payload is; or NULL */
    struct arena arena;     /* all of the above but payload */
};

/* Parse a reply to a request of `type`. FP8D_EPROTOCOL with a sentence if it is malformed or
 * disagrees with payload_len; -ENOMEM. */
int result_parse(uint16_t type, const unsigned char *meta, size_t len, uint64_t payload_len,
                 struct fp8d_result **out, struct fault *f);

/* Set where the payload goes: into buffer, or own memory if buffer->data is NULL.
 * FP8D_EOUT_OF_RANGE if the buffer is too small, or -ENOMEM. */
int result_place(struct fp8d_result *r, const struct fp8d_buffer *buffer, struct fault *f);

/* The code of a failed reply put into f; 0 for a good one. */
int result_fault(const struct fp8d_result *r, struct fault *f);

/* The progress of a LoadCommit or SaveCommit frame with MORE: true if it holds one; valid until
 * arena_fini. */
bool result_progress(uint16_t type, const unsigned char *meta, size_t len, struct arena *arena,
                     struct fp8d_progress *out);

/* Unpack with memory of the arena alone, which result_arena made for a meta of that length. */
void *result_unpack(struct arena *a, const ProtobufCMessageDescriptor *type,
                    const unsigned char *meta, size_t len);
void result_arena(struct arena *a, size_t len);

/* "PING" ... for request types, "?" for others. */
const char *result_type_name(uint16_t type);

#endif
