/* cast_inputs.h - the named inputs of tests/oracle/fp8_casts.txt, which fp8_casts.py describes.
 *
 * Includes nothing of kernels/; compiles as C and C++. Pure functions, any thread.
 */
#ifndef FP8D_TESTS_CAST_INPUTS_H
#define FP8D_TESTS_CAST_INPUTS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What splitmix64 starts from; the "seed" line of the file says the same. */
#define CAST_SEED UINT64_C(0xf8d0c0de20240801)

struct cast_input {
    const char *name;
    uint64_t count;
    float (*at)(uint64_t i); /* element i < count */
};

/* "bf16", "f16", "edges", "edges13", "random6", "random"; NULL for other names. */
const struct cast_input *cast_input_find(const char *name);

#ifdef __cplusplus
}
#endif
#endif
