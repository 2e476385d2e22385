#!/usr/bin/env bash
# fp8ctl without a server: usage errors, hints, help, exit codes, what goes where.
set -u
fp8ctl=${FP8CTL:-${FP8D_BUILDDIR:-.}/fp8ctl}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0
unset FP8D_SOCKET XDG_RUNTIME_DIR

# --- helpers ---

# run ARGUMENTS...: leaves exit code in rc, output in $tmp/out and $tmp/err
run()
{
    "$fp8ctl" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    rc=$?
}

# is NAME CONDITION...: one TAP line
is()
{
    local name=$1
    shift
    n=$((n + 1))
    if "$@"; then
        echo "ok $n - $name"
    else
        echo "not ok $n - $name"
        echo "# exit code $rc"
        sed 's/^/# out: /' "$tmp/out"
        sed 's/^/# err: /' "$tmp/err"
    fi
}

# ends CODE TEXT: that exit code, TEXT on stderr, nothing on stdout
ends()
{
    [ "$rc" -eq "$1" ] && grep -qF -- "$2" "$tmp/err" && ! [ -s "$tmp/out" ]
}

# shows TEXT...: exit code 0, each TEXT on stdout, nothing on stderr
shows()
{
    local text
    [ "$rc" -eq 0 ] && ! [ -s "$tmp/err" ] || return 1
    for text; do
        grep -qF -- "$text" "$tmp/out" || return 1
    done
}

# bad TEXT ARGUMENTS...: a usage error that says TEXT and where to look
bad()
{
    local text=$1
    shift
    run "$@"
    is "'$*' is a usage error" ends 2 "$text"
    [ "$rc" -eq 2 ] && is "... and says where to look" ends 2 "--help'."
}

# --- help ---

commands="status models layers load unload save create set-weight forward backward recompute gradient zero-grad
    optimizer step drop-context calibration scope recipe scaling check ping bench batch"

run --help
# shellcheck disable=SC2086 # one word each
is "--help lists all commands and options" shows $commands --socket --json --timeout --version \
    --recipe --fp8-format --amax-history-len --amax-algo --margin --no-strict --only --skip \
    --primary-fp8 --dequantize --allow-nan --finish-calibration --server-path --input --bias --output \
    --output-dtype --mode --first-microbatch --context --grad-output --no-grad-input \
    --kind --rate --momentum --dampening --nesterov --beta1 --beta2 --eps --weight-decay --freeze --step \
    --loss-scale --max-norm --history --reset --freeze --unfreeze --count \
    --layer --clients --depth --requests --plane --dtype
run --help
is "--help names the exit codes" shows "0 ok, 1 failed, 2 usage, 3 cannot connect"
for command in $commands; do
    run "$command" --help
    is "$command --help shows its synopsis" shows "Usage: fp8ctl $command"
done
run load --help
is "load --help says what holds for a recipe that is not given" shows "what the file saved, else delayed"
run save --help
is "save --help is exact" diff - "$tmp/out" <<'END'
Usage: fp8ctl save MODEL PATH [--no-optimizer] [--server-path]

save a model with all its state; PATH is replaced as a whole.

Options:
  --no-optimizer                 leave out the optimizer and gradients: enough to serve
  --server-path                  PATH is the server's, below a root of its configuration
END
run create --help
is "create --help shows every member of SPEC.json" shows '"kind": "delayed"|"current"' \
    '"fp8_format": "hybrid"|"e4m3"' '"amax_algo": "max"|"most_recent"' \
    '"amax_history_len": 1 to 65536' '"margin": 0 to 31' '"fprop_accumulation": "fast"|"precise"' '"primary_fp8": true|false' \
    '"layers": [{"name": NAME, "weight": "FILE[:TENSOR]", "bias": "FILE[:TENSOR]"}, ...]'
run backward --help
is "backward --help says where its context comes from" shows "backward ID --grad-output FILE[:TENSOR] [" \
    "forward --mode train --context ID" "belong in one batch"
run step --help
is "step --help says where its number comes from" shows "step MODEL --step N [" \
    "'optimizer MODEL' and each step print" "not taken twice" "that is a result, with exit status 0"
run optimizer --help
is "optimizer --help has the defaults" shows "optimizer MODEL [" "(0.001)" "(0.9)" \
    "(0.999)" "(1e-8)" "adamw 0.01" "[--kind sgd|adam|adamw]" "With --kind" "everything is set anew"
run --version
is "--version prints one line" sh -c "grep -qE '^fp8ctl [0-9]+\.[0-9]+\.[0-9]+' '$tmp/out'"

# --- usage errors ---

bad "a command is missing"
bad "a command is missing" --json
bad "unknown command 'frobnicate'" frobnicate
bad "did you mean 'scaling'?" scalling m
bad "did you mean 'status'?" stat
bad "unknown option '--jsno', did you mean '--json'?" --jsno status
bad "did you mean '--margin'?" load m f --margn 1
bad "--margin is '32', needed a whole number from 0 to 31" load m f --margin 32
bad "--amax-history-len is '0'" load m f --amax-history-len 0
bad "--recipe is 'fast', needed delayed|current" load m f --recipe fast
bad "--accumulation is 'slow', needed fast|precise" load m f --accumulation slow
bad "--recipe needs a value" load m f --recipe
bad "--no-strict takes no value" load m f --no-strict=yes
bad "--mode is given twice" forward m/l --mode eval --mode train
bad "--dequantize is 'f16', needed f32|bf16" load m f --dequantize f16
bad "--primary-fp8 and --dequantize exclude each other" load m f --primary-fp8 --dequantize f32
bad "save takes MODEL PATH, got 1 argument" save m
bad "unknown option '--recipe'" save m f --recipe delayed
bad "create takes MODEL SPEC.json, got 1 argument" create m
bad "recipe takes MODEL, got 0 arguments" recipe
bad "--margin is '-1'" recipe m --margin -1
bad "unknown option '--no-strict'" recipe m --no-strict
bad "exclude each other" scaling m --reset --freeze
bad "exclude each other" scaling m --freeze --unfreeze
bad "exclude each other" scaling m --history --reset
bad "--reset is for a whole MODEL" scaling m/l --reset
bad "--unfreeze takes no value" scaling m --unfreeze=yes
bad "bench takes no arguments, got 1 argument" bench m
bad "--layer is '1,16', needed three whole numbers M,N,K" bench --layer 1,16
bad "K is 24, needed a multiple of 16 from 16 to 16777216" bench --layer 1,16,24
bad "--clients is '257', needed a whole number from 1 to 256" bench --clients 257
bad "--depth is '0', needed a whole number from 1 to 512" bench --depth 0
bad "--requests is 'all', needed a whole number from 1 to 1000000" bench --requests all
bad "--mode is 'calibrate', needed eval|train" bench --mode calibrate
bad "--plane is 'all', needed resident|inline|both" bench --plane all
bad "--dtype is 'f64', needed bf16|f16|f32" bench --dtype f64
bad "load takes MODEL PATH, got 1 argument" load m
bad "status takes no arguments, got 1 argument" status now
bad "'m' is not MODEL/LAYER" forward m --input x
bad "'/l' is not MODEL/LAYER" forward /l --input x
bad "'m/' is not MODEL/LAYER" check m/ --input x
bad "forward needs --input" forward m/l
bad "set-weight needs --input" set-weight m/l
bad "--context is '0', needed a whole number from 1 to 4294967295" forward m/l --input x --context 0
bad "--context is '-1', needed a whole number" forward m/l --input x --mode train --context -1
bad "--context is 7 with --mode eval, needed --mode train" forward m/l --input x --context 7
bad "--context is 7 with --mode calibrate" forward m/l --input x --mode calibrate --context 7
bad "backward takes ID, got 0 arguments" backward --grad-output x
bad "ID is 'm/l', needed a whole number from 1 to 4294967295" backward m/l --grad-output x
bad "ID is '0', needed a whole number" backward 0 --grad-output x
bad "ID is '4294967296', needed a whole number" backward 4294967296 --grad-output x
bad "ID is '\\x1b', needed a whole number" backward $'\e' --grad-output x
bad "backward needs --grad-output" backward 1
bad "--output-dtype is 'f64', needed f32|bf16|f16" backward 1 --grad-output x --output-dtype f64
bad "--no-grad-input and --output exclude each other" backward 1 --grad-output x --no-grad-input --output y
bad "--no-grad-input and --output-dtype exclude each other" backward 1 --grad-output x --no-grad-input \
    --output-dtype f32
bad "optimizer takes MODEL, got 0 arguments" optimizer --kind sgd
bad "optimizer needs --kind sgd|adam|adamw" optimizer m --rate 0.1
bad "--kind is 'rmsprop', needed sgd|adam|adamw" optimizer m --kind rmsprop
bad "--rate is '0', needed a number above 0" optimizer m --kind sgd --rate 0
bad "--rate is 'fast', needed a number above 0" optimizer m --kind sgd --rate fast
bad "--rate is 'inf', needed a number above 0" optimizer m --kind sgd --rate inf
bad "--rate is '\\x1b', needed a number above 0" optimizer m --kind sgd --rate $'\e'
bad "--momentum is '-1', needed a number of at least 0" optimizer m --kind sgd --momentum=-1
bad "--dampening is '1.5', needed a number from 0 to 1" optimizer m --kind sgd --dampening 1.5
bad "--beta1 is '1', needed a number above 0 and below 1" optimizer m --kind adam --beta1 1
bad "--beta2 is '0', needed a number above 0 and below 1" optimizer m --kind adamw --beta2 0
bad "--eps is '0', needed a number above 0" optimizer m --kind adam --eps 0
bad "--weight-decay is 'nan', needed a number of at least 0" optimizer m --kind adam --weight-decay nan
bad "--beta1 and --kind sgd exclude each other" optimizer m --kind sgd --beta1 0.5
bad "--eps and --kind sgd exclude each other" optimizer m --kind sgd --eps 1
bad "--momentum and --kind adam exclude each other" optimizer m --kind adam --momentum 0.9
bad "--nesterov and --kind adamw exclude each other" optimizer m --kind adamw --nesterov
bad "--nesterov needs --momentum above 0" optimizer m --kind sgd --nesterov
bad "--nesterov and --dampening exclude each other" optimizer m --kind sgd --nesterov --momentum 0.9 \
    --dampening 0.1
bad "--freeze needs a value: LAYER" optimizer m --kind sgd --freeze
bad "--layer-rate is 'a', needed LAYER=X, X a number above 0" optimizer m --kind sgd --layer-rate a
bad "--layer-rate is '=1', needed LAYER=X, X a number above 0" optimizer m --kind sgd --layer-rate =1
bad "--layer-rate is 'a=0', needed LAYER=X, X a number above 0" optimizer m --kind sgd --layer-rate a=0
bad "--layer-rate is 'a=1=', needed LAYER=X, X a number above 0" optimizer m --kind sgd --layer-rate a=1=
bad "--layer-decay is 'a=-1', needed LAYER=X, X a number of at least 0" optimizer m --kind sgd --layer-decay a=-1
bad "optimizer needs --kind sgd|adam|adamw" optimizer m --layer-decay a=1
bad "step needs --step N" step m
bad "--step is '0', needed a whole number from 1 to 4294967295" step m --step 0
bad "--step is 'next', needed a whole number" step m --step next
bad "--step is given twice" step m --step 1 --step 1
bad "--loss-scale is '0', needed a number above 0" step m --step 1 --loss-scale 0
bad "--max-norm is '-2', needed a number of at least 0" step m --step 1 --max-norm -2
bad "ID is '1.5', needed a whole number" drop-context 1.5
bad "zero-grad takes MODEL, got 2 arguments" zero-grad m l
bad "'m' is not MODEL/LAYER" gradient m
bad "--bias takes no value" gradient m/l --bias=yes
bad "calibration takes finish or abort" calibration stop m
bad "works only inside 'fp8ctl batch'" scope begin m
bad "--timeout is 'soon'" --timeout soon status
bad "--timeout is '-1'" --timeout=-1 status
bad "two dashes" -j status
bad "\\x1b[31m" $'\e[31mred'

# --- the socket ---

run --socket /nonexistent/s status
is "no server there: exit code 3, the path is named" ends 3 "/nonexistent/s"
run --socket /nonexistent/s bench
is "no server to measure: exit code 3" ends 3 "/nonexistent/s"
run status --socket /nonexistent/s
is "options of the program may follow the command" ends 3 "/nonexistent/s"
FP8D_SOCKET=/nonexistent/env run status
is "\$FP8D_SOCKET is used" ends 3 "/nonexistent/env"
FP8D_SOCKET=/nonexistent/env run --socket /nonexistent/opt status
is "--socket comes before \$FP8D_SOCKET" ends 3 "/nonexistent/opt"
long=/$(printf 'x%.0s' $(seq 150))
run --socket "$long" status
is "a path over 107 bytes is refused with its length" ends 3 "151 bytes, at most 107"
touch "$tmp/file"
run --socket "$tmp/file" status
is "a file that is no socket: exit code 3" ends 3 "ECONNREFUSED"
run --json --socket /nonexistent/s status
is "--json: the error is an object on stdout" grep -q '"code": "ENOENT"' "$tmp/out"
is "--json: and a sentence on stderr" grep -q '^fp8ctl: status: cannot connect' "$tmp/err"

# --- batch ---

run batch /nonexistent/commands
is "a batch that cannot be opened: exit code 1" ends 1 "/nonexistent/commands"
echo "status" >"$tmp/commands"
run --socket /nonexistent/s batch "$tmp/commands"
is "a batch connects first: exit code 3" ends 3 "/nonexistent/s"

# --- output that cannot be written ---

"$fp8ctl" --help >/dev/full 2>"$tmp/err"
rc=$?
: >"$tmp/out"
is "a full disk is a failure" ends 1 "writing to the standard output failed"

echo "1..$n"
