/* Random tensors to measure with: what is drawn, and in which dtype. */
#include "client/ctl/noise.h"

#include "tests/unit/run.h"

#include <math.h>
#include <string.h>

/* --- helpers --- */

static float from_f16(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    float v =
        exponent ? ldexpf((float)(mantissa + 1024), exponent - 25) : ldexpf((float)mantissa, -24);
    return h & 0x8000 ? -v : v;
}

/* --- cases --- */

/* No zeros, below 4, of both signs, mean 0 and variance 4/3: 2^16 of them within five standard
 * errors (0.0045 of the mean; 0.0068 of the variance, whose excess kurtosis is -0.3). The
 * 16-bit dtypes have the same numbers, cut off by less than their last digit. */
START_TEST(noise_is_what_it_says)
{
    enum { COUNT = 1 << 16 };
    static float wide[COUNT];
    static uint16_t brain[COUNT], half[COUNT];
    double sum = 0, squares = 0;
    noise_fill(wide, FP8D_F32, COUNT, 1);
    noise_fill(brain, FP8D_BF16, COUNT, 1);
    noise_fill(half, FP8D_F16, COUNT, 1);
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits = (uint32_t)brain[i] << 16;
        float x = wide[i], b;
        memcpy(&b, &bits, sizeof b);
        float h = from_f16(half[i]);
        ck_assert(x != 0 && fabsf(x) < 4 && b != 0 && h != 0);
        ck_assert(fabsf(x - b) < fabsf(x) * 0x1p-7f && fabsf(b) <= fabsf(x));
        ck_assert(fabsf(x - h) < fmaxf(fabsf(x) * 0x1p-10f, 0x1p-24f) && fabsf(h) <= fabsf(x));
        sum += (double)x;
        squares += (double)x * (double)x;
    }
    ck_assert(fabs(sum / COUNT) < 5 * 0.0045);
    ck_assert(fabs(squares / COUNT - 4.0 / 3) < 5 * 0.0068);
    noise_fill(half, FP8D_F16, COUNT, 2);
    ck_assert(from_f16(half[0]) != wide[0] || from_f16(half[1]) != wide[1]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_noise");
    TCase *t = tcase_create("noise");
    tcase_add_test(t, noise_is_what_it_says);
    suite_add_tcase(s, t);
    return run_suite(s);
}
