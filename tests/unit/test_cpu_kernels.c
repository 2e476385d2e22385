/* The kernel text of every level against kernels/fp8.h, the scalar text that the oracle's tables
 * check: all 2^16 bf16 and f16 inputs, and float32 around every rounding boundary and at random. */
#include "kernels/cpu/kernels.h"
#include "kernels/fp8.h"
#include "tests/oracle/gemm_input.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#define COUNT ((size_t)1 << 16)

/* --- helpers --- */

static float value(const void *src, enum dtype t, size_t i)
{
    if (t == DTYPE_F32)
        return ((const float *)src)[i];
    uint16_t h = ((const uint16_t *)src)[i];
    return t == DTYPE_BF16 ? bf16_decode(h) : f16_decode(h);
}

static bool finite_bits(float x)
{
    return (fp8_float_bits(x) & 0x7fffffff) < 0x7f800000;
}

/* What a cast must write and count, element by element. */
static struct amax_slot expect(const void *src, enum dtype t, float scale, enum dtype fmt,
                               uint8_t *codes)
{
    struct amax_slot s = {0};
    for (size_t i = 0; i < COUNT; i++) {
        float x = value(src, t, i), v = x * scale, mag = x < 0 ? -x : x;
        codes[i] = fp8_encode(v, fmt);
        if (finite_bits(x))
            s.amax = mag > s.amax ? mag : s.amax;
        s.nonfinite += !finite_bits(x);
        s.saturated += finite_bits(x) && fp8_saturates(v, fmt);
        s.flushed += x != 0.0f && (codes[i] & 0x7f) == 0;
    }
    return s;
}

static void same(const struct cpu_kernels *k, const void *src, enum dtype t, float scale,
                 enum dtype fmt)
{
    static uint8_t want[COUNT], got[COUNT];
    struct amax_slot slot = {0}, measured = {0};
    struct amax_slot need = expect(src, t, scale, fmt, want);
    k->cast(src, t, COUNT, scale, fmt, got, &slot);
    k->measure(src, t, COUNT, &measured);
    for (size_t i = 0; i < COUNT; i++)
        if (want[i] != got[i])
            ck_abort_msg("element %zu (%a * %a): %02x, needed %02x", i, (double)value(src, t, i),
                         (double)scale, got[i], want[i]);
    ck_assert(slot.amax == need.amax && slot.nonfinite == need.nonfinite);
    ck_assert(slot.saturated == need.saturated && slot.flushed == need.flushed);
    ck_assert(measured.amax == need.amax && measured.nonfinite == need.nonfinite);
    ck_assert(measured.saturated == 0 && measured.flushed == 0);
}

static const float scales[] = {1.0f,      0x1p-20f, 0x1p20f, 0.3f,     448.0f / 3.1f,
                               0x1p-126f, 0x1p127f, 1e-30f,  1234.56f, FP8_FLT_MAX};

static void same_at_all_scales(const struct cpu_kernels *k, const void *src, enum dtype t)
{
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        same(k, src, t, scales[i], DTYPE_F8_E4M3);
        same(k, src, t, scales[i], DTYPE_F8_E5M2);
    }
}

/* --- cases --- */

/* Every bf16 and every f16 is cast and counted as the scalar text does. */
START_TEST(kernels_cast_all_16_bit_inputs)
{
    static uint16_t all[COUNT];
    const struct cpu_kernels *k = cpu_kernels_of(rig_level(_i));
    for (size_t i = 0; i < COUNT; i++)
        all[i] = (uint16_t)i;
    same_at_all_scales(k, all, DTYPE_BF16);
    same_at_all_scales(k, all, DTYPE_F16);
}
END_TEST

/* So are random float32 bit patterns, NaN, infinities and subnormals among them. */
START_TEST(kernels_cast_random_float32)
{
    static uint32_t bits[COUNT];
    const struct cpu_kernels *k = cpu_kernels_of(rig_level(_i));
    for (size_t i = 0; i < COUNT; i++)
        bits[i] = (uint32_t)gemm_stream(77, i);
    same_at_all_scales(k, bits, DTYPE_F32);
}
END_TEST

/* So are the float32 neighbours of each half-way point between two codes. */
START_TEST(kernels_cast_float32_at_ties)
{
    static uint32_t bits[COUNT];
    const struct cpu_kernels *k = cpu_kernels_of(rig_level(_i));
    enum dtype fmt[] = {DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    size_t n = 0;
    for (int t = 0; t < 2; t++)
        for (uint8_t code = 0; code < 0x7b; code++) {
            float half = (fp8_decode(code, fmt[t]) + fp8_decode((uint8_t)(code + 1), fmt[t])) / 2;
            for (uint32_t d = 0; d < 5; d++) {
                bits[n++] = fp8_float_bits(half) + d - 2;
                bits[n++] = (fp8_float_bits(half) + d - 2) | 0x80000000u;
            }
        }
    for (float x = 400.0f; x < 500.0f; x += 0.25f)
        bits[n++] = fp8_float_bits(x);
    for (float x = 57000.0f; x < 62000.0f; x += 16.0f)
        bits[n++] = fp8_float_bits(x);
    same(k, bits, DTYPE_F32, 1.0f, DTYPE_F8_E4M3);
    same(k, bits, DTYPE_F32, 1.0f, DTYPE_F8_E5M2);
}
END_TEST

/* A count that is no multiple of the vector touches nothing behind its end. */
START_TEST(kernels_cast_odd_counts)
{
    const struct cpu_kernels *k = cpu_kernels_of(rig_level(_i));
    float src[80];
    uint8_t codes[80];
    for (unsigned n = 0; n < 70; n++) {
        struct amax_slot slot = {0};
        for (unsigned i = 0; i < 80; i++)
            src[i] = i < n ? (float)(i + 1) : 1e30f;
        memset(codes, 0xee, sizeof codes);
        k->cast(src, DTYPE_F32, n, 1.0f, DTYPE_F8_E4M3, codes, &slot);
        ck_assert(slot.amax == (float)n && slot.saturated == 0 && slot.flushed == 0);
        for (unsigned i = 0; i < 80; i++)
            if (codes[i] != (i < n ? fp8_encode(src[i], DTYPE_F8_E4M3) : 0xee))
                ck_abort_msg("count %u, element %u is %02x", n, i, codes[i]);
    }
}
END_TEST

/* Dequantising every code with several factors gives the scalar product, rounded once. */
START_TEST(kernels_dequantize_all_codes)
{
    const struct cpu_kernels *k = cpu_kernels_of(rig_level(_i));
    const float factors[] = {1.0f, 0.3f, 0x1p-128f, 0x1p120f, 0x1.fffffep-3f};
    enum dtype fmts[] = {DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    uint8_t codes[256];
    for (unsigned i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    for (unsigned x = 0; x < 10; x++) {
        uint16_t bf16[256], f16[256];
        float f32[256];
        enum dtype fmt = fmts[x & 1];
        k->dequantize(codes, fmt, 256, factors[x / 2], f32, DTYPE_F32);
        k->dequantize(codes, fmt, 256, factors[x / 2], bf16, DTYPE_BF16);
        k->dequantize(codes, fmt, 256, factors[x / 2], f16, DTYPE_F16);
        for (unsigned i = 0; i < 256; i++) {
            float y = fp8_decode((uint8_t)i, fmt) * factors[x / 2];
            uint32_t want = y != y ? 0x7fc00000 : fp8_float_bits(y);
            float whole = fp8_bits_float(want);
            ck_assert_msg(fp8_float_bits(f32[i]) == want && bf16[i] == bf16_encode(whole) &&
                              f16[i] == f16_encode(whole),
                          "code %02x, case %u", i, x);
        }
    }
}
END_TEST

int main(void)
{
    struct run_skips skips = {0};
    int levels = rig_levels();
    Suite *s = suite_create("cpu_kernels");
    TCase *c = tcase_create("levels");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, kernels_cast_all_16_bit_inputs, 0, levels);
    tcase_add_loop_test(c, kernels_cast_random_float32, 0, levels);
    tcase_add_loop_test(c, kernels_cast_float32_at_ties, 0, levels);
    tcase_add_loop_test(c, kernels_cast_odd_counts, 0, levels);
    tcase_add_loop_test(c, kernels_dequantize_all_codes, 0, levels);
    suite_add_tcase(s, c);
    rig_skip_levels(&skips);
    return run_suite_but(s, &skips);
}
