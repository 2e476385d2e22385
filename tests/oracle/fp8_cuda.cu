/* fp8_cuda - the codes of cuda_fp8.h's host functions, for comparison with fp8_casts.txt.
 *
 * Reads "cast INPUT SCALE-BITS FORMAT ..." lines on standard input, writes each again as
 * "cast INPUT SCALE-BITS FORMAT HASH". Host code alone: built by nvcc, needs no GPU. Includes
 * nothing of kernels/. Exit 0, or 1 on a line it does not understand.
 */
#include "tests/oracle/cast_inputs.h"

#include <cuda_fp8.h>

#include <cstdio>
#include <cstring>
#include <vector>
#include <xxhash.h>

static int cast_line(const char *line)
{
    char name[16], fmt[8];
    unsigned bits;
    float scale;
    if (sscanf(line, "cast %15s %x %7s", name, &bits, fmt) != 3)
        return 1;
    const struct cast_input *in = cast_input_find(name);
    if (!in || (strcmp(fmt, "e4m3") && strcmp(fmt, "e5m2")))
        return 1;
    memcpy(&scale, &bits, 4);
    __nv_fp8_interpretation_t kind = strcmp(fmt, "e4m3") ? __NV_E5M2 : __NV_E4M3;
    std::vector<__nv_fp8_storage_t> codes(in->count);
    for (uint64_t i = 0; i < in->count; i++)
        codes[i] = __nv_cvt_float_to_fp8(in->at(i) * scale, __NV_SATFINITE, kind);
    XXH128_hash_t d = XXH3_128bits(codes.data(), codes.size());
    printf("cast %s %08x %s %016llx%016llx\n", name, bits, fmt, (unsigned long long)d.high64,
           (unsigned long long)d.low64);
    return 0;
}

int main()
{
    char line[256];
    while (fgets(line, sizeof line, stdin))
        if (cast_line(line)) {
            fprintf(stderr, "fp8_cuda: cannot read: %s", line);
            return 1;
        }
    return 0;
}
