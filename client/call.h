/* call.h - what the files with one function per request share: from structs of fp8d.h to messages.
 *
 * Messages borrow the caller's strings and arrays; nothing here allocates.
 */
#ifndef FP8D_CLIENT_CALL_H
#define FP8D_CLIENT_CALL_H

#include "client/conn.h"
#include "proto/fp8d.pb-c.h"

/* A tensor of a request, with the messages it consists of. */
struct call_tensor {
    Fp8d__V1__TensorRef ref;
    Fp8d__V1__InlinePlace place;
};

/* Fill out, and put the bytes (if it has some) into r->payload[piece]. FP8D_EINVALID_ARGUMENT for
 * what cannot be said on the wire: the rank, or bytes without an address. */
int call_tensor_fill(struct call_tensor *out, const struct fp8d_tensor *t, struct request *r,
                     unsigned piece, struct fp8d_error *err);

/* The message of an expectation, or NULL if none is held. */
Fp8d__V1__Expect *call_expect(Fp8d__V1__Expect *m, const struct fp8d_expect *e);

/* The message of a recipe; NULL: nothing of it is set. */
Fp8d__V1__Recipe *call_recipe(Fp8d__V1__Recipe *m, const struct fp8d_recipe *r);

/* An empty string for NULL. */
static inline char *call_text(const char *s)
{
    return (char *)(s ? s : "");
}

#endif
