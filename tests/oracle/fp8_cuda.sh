#!/bin/sh
# Compare the codes of cuda_fp8.h's host functions with fp8_casts.txt, every cast line of it. TAP.
# $FP8_CUDA names a built fp8_cuda; else it is built here, and skipped where nvcc is missing.
set -eu
top=${FP8D_SRCDIR:-${srcdir:-.}}
casts=$top/tests/oracle/fp8_casts.txt
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

if [ -z "${FP8_CUDA:-}" ]; then
    nvcc=${NVCC:-nvcc}
    if ! command -v "$nvcc" >/dev/null; then
        echo "1..0 # SKIP no nvcc, hence no cuda_fp8.h"
        exit 0
    fi
    FP8_CUDA=$dir/fp8_cuda
    "$nvcc" -O2 -I"$top" -o "$FP8_CUDA" "$top/tests/oracle/fp8_cuda.cu" \
        "$top/tests/oracle/cast_inputs.c" -lxxhash
fi

echo "1..1"
grep '^cast ' "$casts" | cut -d' ' -f1-5 >"$dir/want"
if [ "$(wc -l <"$dir/want")" -ne 78 ]; then
    echo "not ok 1 - fp8_cuda: $casts has not its 78 cast lines"
    exit 1
fi
if "$FP8_CUDA" <"$dir/want" >"$dir/got" && diff "$dir/want" "$dir/got" >"$dir/diff"; then
    echo "ok 1 - fp8_cuda: 78 casts are those of cuda_fp8.h"
else
    sed 's/^/# /' "$dir/diff" 2>/dev/null || true
    echo "not ok 1 - fp8_cuda: casts differ from those of cuda_fp8.h"
    exit 1
fi
