#include "kernels/cpu/kernels.h"

#include <cpuid.h>

/* The parts of x86-64-v3 that __builtin_cpu_supports of clang 14 has no names for. */
static bool has_v3_rest(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_MOVBE) || !(c & bit_F16C))
        return false;
    return __get_cpuid(0x80000001u, &a, &b, &c, &d) && (c & bit_LZCNT);
}

/* The answers include the operating system's part (saved registers). */
static enum cpu_level highest(void)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2") || !has_v3_rest())
        return CPU_LEVEL_BASELINE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return CPU_LEVEL_V3;
    return CPU_LEVEL_V4;
}

enum cpu_level cpu_level_choose(enum cpu_level wanted, enum cpu_level most)
{
    switch (wanted) {
    case CPU_LEVEL_AUTO:
        return most;
    case CPU_LEVEL_BASELINE:
    case CPU_LEVEL_V3:
    case CPU_LEVEL_V4:
        return wanted <= most ? wanted : CPU_LEVEL_AUTO;
    default:
        return CPU_LEVEL_AUTO;
    }
}

bool cpu_level_runs(enum cpu_level level)
{
    return cpu_level_choose(level, highest()) != CPU_LEVEL_AUTO;
}

enum cpu_level cpu_level_here(enum cpu_level wanted)
{
    return cpu_level_choose(wanted, highest());
}

const char *cpu_level_name(enum cpu_level level)
{
    switch (level) {
    case CPU_LEVEL_BASELINE:
        return "x86-64";
    case CPU_LEVEL_V3:
        return "x86-64-v3";
    case CPU_LEVEL_V4:
        return "x86-64-v4";
    default:
        return "auto";
    }
}

const struct cpu_kernels *cpu_kernels_of(enum cpu_level level)
{
    if (level == CPU_LEVEL_V4)
        return &cpu_kernels_v4;
    return level == CPU_LEVEL_V3 ? &cpu_kernels_v3 : &cpu_kernels_base;
}
