# shellcheck shell=bash
# What run-gpu-tests and run-gpu-bench share; sourced by them, in the folder of the bundle.
#
# RUNPATH does not reach what a loaded module needs, so the loader is told where cuBLASLt is.
export LC_ALL=C.UTF-8 FP8D_SRCDIR=$PWD/src FP8D_BUILDDIR=$PWD FP8D_GPU_DATA=$PWD/../gpu-data
export CK_FORK=no CK_VERBOSITY=silent CK_TAP_LOG_FILE_NAME=- # no fork once CUDA has begun

# unpack FILE: with Python where there is no xz
unpack()
{
    if command -v xz >/dev/null; then
        tar -xJf "$1"
    else
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall()' "$1"
    fi
}

if [ -e scenarios.tar.xz ]; then
    unpack scenarios.tar.xz && rm scenarios.tar.xz
fi

blas=libcublasLt.so.13

# blas_folder: where the system has cuBLASLt if its loader does not know it: a toolkit, or the wheel
# that PyTorch brings.
blas_folder()
{
    local d
    for d in /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib \
        "$(python3 -c 'import nvidia.cu13 as n; print(list(n.__path__)[0])' 2>/dev/null)/lib" \
        "$(python3 -c 'import nvidia.cublas as n; print(list(n.__path__)[0])' 2>/dev/null)/lib"; do
        [ -e "$d/$blas" ] && echo "$d" && return
    done
}

folder=
if ! ldconfig -p 2>/dev/null | grep -q "$blas"; then
    folder=$(blas_folder)
fi
export LD_LIBRARY_PATH=$PWD/lib${folder:+:$folder}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# keep_logs NAME: all logs in one archive, where $OUT is set
keep_logs()
{
    if [ -n "${OUT:-}" ]; then
        tar -C "$logs" -czf "$OUT/$1.tgz" .
    fi
}

versions()
{
    echo "fp8d bundle of kernels $(cat kernels.hash)"
    nvidia-smi --query-gpu=name,uuid,driver_version,memory.total,clocks.sm,power.draw --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"
    echo "$blas: ${folder:-as the loader finds it}"
}

# gpu FIELD: what nvidia-smi says of the first GPU
gpu()
{
    nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1
}

# write_results FILE COMMAND KEY ITEMS: $OUT/FILE in the format of tests/check-gpu-results
write_results()
{
    local about
    [ -n "${OUT:-}" ] || return 0
    about=$(tests/bench_gpu --device 2>/dev/null)
    version() { sed -n "s/.*$1 \([0-9.]*\).*/\1/p" <<<"$about"; }
    printf '{"version": 2, "kernels": "%s", "commands": ["./dev bundle", "%s"], "date": "%s", ' \
        "$(cat kernels.hash)" "$2" "$(date -u +%F)" >"$OUT/$1"
    printf '"device": {"name": "%s", "uuid": "%s"}, "driver": "%s", "cuda": "%s", "cublaslt": "%s", ' \
        "$(gpu name)" "$(gpu uuid)" "$(gpu driver_version)" "$(version CUDA)" "$(version cuBLASLt)" \
        >>"$OUT/$1"
    printf '"%s": [%s]}\n' "$3" "$4" >>"$OUT/$1"
}
