/* convert.h - from messages of the wire to the structs of fp8d.h, one function per reply.
 *
 * convert_NAME fills r->body (left NULL where a reply says nothing but its head) with memory of
 * r->arena; strings are those of the message, which lives there too. Returns 0, FP8D_EPROTOCOL with
 * a sentence, or -ENOMEM.
 */
#ifndef FP8D_CLIENT_CONVERT_H
#define FP8D_CLIENT_CONVERT_H

#include "client/result.h"
#include "proto/fp8d.pb-c.h"
#include "proto/requests.h"

#define X(Name, NAME, type, class, order, snake)                                                   \
    int convert_##snake(struct fp8d_result *r, const Fp8d__V1__##Name##Reply *m, struct fault *f);
REQUEST_LIST(X)
#undef X

void convert_recipe(const Fp8d__V1__Recipe *m, struct fp8d_recipe *out); /* m may be NULL */
void convert_cast(const Fp8d__V1__CastInfo *m, bool *has, struct fp8d_cast *out);

/* An inline or resident tensor of a reply with r->payload_len bytes of payload, all of them its
 * own. out->data is set when the payload's place is known. */
int convert_tensor(struct fp8d_result *r, const Fp8d__V1__TensorRef *m, struct fp8d_tensor *out,
                   struct fault *f);

/* `what` was not to be had. */
int convert_nomem(struct fault *f);

#endif
