/* spec.h - the file that 'fp8ctl create' reads: what a model is made of.
 *
 *   {"recipe": {"kind": "delayed"|"current", "fp8_format": "hybrid"|"e4m3",
 *               "amax_algo": "max"|"most_recent", "amax_history_len": N, "margin": N,
 *               "fprop_accumulation": "fast"|"precise"},
 *    "primary_fp8": true|false,
 *    "layers": [{"name": NAME, "weight": "FILE[:TENSOR]", "bias": "FILE[:TENSOR]"}, ...]}
 *
 * recipe and its members, primary_fp8 and bias may be left out; members that are not listed here
 * are errors. A relative FILE starts in the folder of the spec.
 */
#ifndef FP8D_CLIENT_CTL_SPEC_H
#define FP8D_CLIENT_CTL_SPEC_H

#include "base/fault.h"
#include "client/fp8d.h"

#include <jansson.h>

struct spec_layer {
    const char *name; /* of the document */
    char *weight;     /* FILE[:TENSOR], with the folder; own */
    char *bias;       /* NULL: none */
};

struct spec {
    json_t *document;
    struct fp8d_recipe recipe;
    bool primary_fp8;
    struct spec_layer *layers;
    size_t count;
};

/* Faults name the file, the member, the value found and what is needed. */
int spec_read(const char *path, struct spec *out, struct fault *f);
void spec_fini(struct spec *s); /* also zeroed */

#endif
