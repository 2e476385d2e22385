#!/bin/sh
# ./dev demo: a real transformer layer in a running service, real activations through it, its error
# against high precision and its scaling state. Needs a built tree and nothing else.
#
#   demo.sh BUILD-FOLDER
set -eu
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
data=examples/data
work=$(mktemp -d)
socket=$work/fp8d.sock
daemon=

finish()
{
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    [ -z "$daemon" ] || wait "$daemon" || true
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# show COMMAND... prints the command as a user would type it, then runs it.
show()
{
    printf '\n$ fp8ctl'
    printf ' %s' "$@"
    printf '\n'
    "$build/fp8ctl" --socket "$socket" "$@"
}

printf '$ fp8d --socket %s &\n' fp8d.sock
"$build/fp8d" --socket "$socket" 2>"$work/log" &
daemon=$!
tries=0
until [ -S "$socket" ] && "$build/fp8ctl" --socket "$socket" ping --count 1 >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ $tries -gt 100 ] || ! kill -0 "$daemon" 2>/dev/null; then
        echo "fp8d did not start:" >&2
        cat "$work/log" >&2
        exit 1
    fi
    sleep 0.05
done

show status
show load minilm "$data/minilm-layer.safetensors"
show layers minilm

cat <<'TEXT'

One paragraph of text (111 tokens) through the six linears, in FP8, against float64.
First at scale 1, as a training run starts (a scope that is discarded, so no trace is left):
TEXT
"$build/examples/demo" "$socket" minilm "$data/minilm-activations.safetensors" \
    "$data/minilm-reference.safetensors" scale1

printf '\nThen calibrated: the same activations seen in high precision, scales set from their maxima:\n'
"$build/examples/demo" "$socket" minilm "$data/minilm-activations.safetensors" \
    "$data/minilm-reference.safetensors" calibrated

show scaling minilm
show check minilm/encoder.layer.2.intermediate.dense \
    --input "$data/minilm-activations.safetensors:encoder.layer.2.intermediate.dense.input"

printf '\n$ kill %s; the daemon drains and stops\n' fp8d
kill "$daemon"
wait "$daemon"
daemon=
