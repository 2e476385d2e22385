#include "client/ctl/bench_plan.h"
#include "client/ctl/ctl.h"

#include <stdio.h>
#include <string.h>

#define HELP_WIDTH 80
#define OPTIONS_END                                                                                \
    {                                                                                              \
        NULL, NULL, NULL, 0, 0, false                                                              \
    }
#define INPUT_OPTION                                                                               \
    {                                                                                              \
        "input", "FILE[:TENSOR]", "input tensor [..., in_features]", 0, 0, false                   \
    }

static const struct arg_option no_options[] = {OPTIONS_END};

/* `own` is what is taken where nothing is said, the defaults if that has none either. */
#define RECIPE_OPTIONS(own)                                                                        \
    {"recipe", "delayed|current", "scaling recipe; default: " own, 0, 0, false},                   \
        {"fp8-format", "hybrid|e4m3", "e4m3 forward and e5m2 backward, or e4m3", 0, 0, false},     \
        {"amax-history-len", "N", "rows of history per site, with the one that collects, 1 to 65536", 1, 65536, false},       \
        {"amax-algo", "max|most_recent", "which of them the scale comes from", 0, 0, false},       \
        {"margin", "N", "divide scales by 2^N, 0 to 31", 0, 31, false},                            \
    {                                                                                              \
        "accumulation", "fast|precise", "how a forward adds on a GPU", 0, 0, false                 \
    }

static const struct arg_option load_options[] = {
    RECIPE_OPTIONS("the file's, else delayed"),
    {"primary-fp8", NULL, "cast high-precision weights to FP8 and keep only that", 0, 0, false},
    {"dequantize", "f32|bf16", "make FP8 weights high precision; default: they stay FP8", 0, 0,
     false},
    {"allow-nan", NULL, "accept FP8 weights that hold NaN codes, and count them", 0, 0, false},
    {"finish-calibration", NULL, "finish a calibration that was saved unfinished", 0, 0, false},
    {"no-optimizer", NULL, "leave out the optimizer and gradients of a save", 0, 0, false},
    {"no-strict", NULL, "report what cannot be a layer instead of refusing the file", 0, 0, false},
    {"only", "GLOB", "claim only layers whose name matches; may be repeated", 0, 0, true},
    {"skip", "GLOB", "do not claim layers whose name matches; may be repeated", 0, 0, true},
    {"server-path", NULL, "PATH is the server's, below a root of its configuration", 0, 0, false},
    OPTIONS_END,
};

static const struct arg_option save_options[] = {
    {"no-optimizer", NULL, "leave out the optimizer and gradients: enough to serve", 0, 0, false},
    {"server-path", NULL, "PATH is the server's, below a root of its configuration", 0, 0, false},
    OPTIONS_END,
};

static const struct arg_option recipe_options[] = {
    RECIPE_OPTIONS("what the model has"),
    OPTIONS_END,
};

static const struct arg_option weight_options[] = {
    {"input", "FILE[:TENSOR]", "the new weight [out_features, in_features]", 0, 0, false},
    {"bias", "FILE[:TENSOR]", "the new bias [out_features]; default: kept", 0, 0, false},
    OPTIONS_END,
};

static const struct arg_option forward_options[] = {
    INPUT_OPTION,
    {"output", "FILE", "write the output as a safetensors file, tensor \"output\"", 0, 0, false},
    {"output-dtype", "f32|bf16|f16", "default: that of the input", 0, 0, false},
    {"mode", "eval|train|calibrate", "default: eval, which changes no state", 0, 0, false},
    {"first-microbatch", "yes|no", "cast the weight anew, or reuse its FP8 copy; default: unset", 0,
     0, false},
    {"context", "ID", "in train: keep what 'backward ID' needs, 1 to 4294967295", 1, UINT32_MAX,
     false},
    OPTIONS_END,
};

static const struct arg_option backward_options[] = {
    {"grad-output", "FILE[:TENSOR]", "gradient of the output [..., out_features]", 0, 0, false},
    {"output", "FILE", "write that of the input as a safetensors file, tensor \"grad_input\"", 0, 0,
     false},
    {"output-dtype", "f32|bf16|f16", "default: that of --grad-output", 0, 0, false},
    {"no-grad-input", NULL, "compute no gradient of the input", 0, 0, false},
    OPTIONS_END,
};

static const struct arg_option recompute_options[] = {
    {"output", "FILE", "write the output as a safetensors file, tensor \"output\"", 0, 0, false},
    {"output-dtype", "f32|bf16|f16", "default: that of the forward's output", 0, 0, false},
    OPTIONS_END,
};

static const struct arg_option gradient_options[] = {
    {"bias", NULL, "that of the bias; default: that of the weight", 0, 0, false},
    {"output", "FILE", "write it as a safetensors file, F32, tensor \"gradient\"", 0, 0, false},
    OPTIONS_END,
};

static const struct arg_option optimizer_options[] = {
    {"kind", "sgd|adam|adamw", "as PyTorch's of these names", 0, 0, false},
    {"rate", "X", "learning rate, above 0 (0.001)", 0, 0, false},
    {"momentum", "X", "sgd: from 0 (0: none)", 0, 0, false},
    {"dampening", "X", "sgd: 0 to 1 (0)", 0, 0, false},
    {"nesterov", NULL, "sgd: Nesterov's momentum", 0, 0, false},
    {"beta1", "X", "adam, adamw: above 0 and below 1 (0.9)", 0, 0, false},
    {"beta2", "X", "adam, adamw: above 0 and below 1 (0.999)", 0, 0, false},
    {"eps", "X", "adam, adamw: above 0 (1e-8)", 0, 0, false},
    {"weight-decay", "X", "from 0 (sgd and adam 0, adamw 0.01)", 0, 0, false},
    {"freeze", "LAYER", "steps leave this layer alone; may be repeated", 0, 0, true},
    {"layer-rate", "LAYER=X", "learning rate of this layer, above 0; may be repeated", 0, 0, true},
    {"layer-decay", "LAYER=X", "weight decay of this layer, from 0; may be repeated", 0, 0, true},
    OPTIONS_END,
};

static const struct arg_option step_options[] = {
    {"step", "N", "number of this step, 1 to 4294967295", 1, UINT32_MAX, false},
    {"loss-scale", "X", "divide gradients by X, above 0 (1)", 0, 0, false},
    {"max-norm", "X", "scale gradients down to this norm, from 0 (0: never)", 0, 0, false},
    OPTIONS_END,
};

static const struct arg_option scaling_options[] = {
    {"history", NULL, "show past maxima, newest first", 0, 0, false},
    {"reset", NULL, "set all sites of MODEL back to scale 1, unset, without history", 0, 0, false},
    {"freeze", NULL, "skip scale updates of MODEL from now on", 0, 0, false},
    {"unfreeze", NULL, "update scales of MODEL again", 0, 0, false},
    OPTIONS_END,
};

static const struct arg_option check_options[] = {INPUT_OPTION, OPTIONS_END};

static const struct arg_option ping_options[] = {
    {"count", "N", "round trips, 1 to 1000000 (1)", 1, 1000000, false},
    OPTIONS_END,
};

static const struct arg_option bench_options[] = {
    {"layer", "M,N,K", "tokens, out_features, in_features (16,4096,4096)", 0, 0, false},
    {"clients", "N", "connections, 1 to 256 (1)", 1, BENCH_CLIENTS_MAX, false},
    {"depth", "N", "forwards under way on each, 1 to 512 (1)", 1, BENCH_DEPTH_MAX, false},
    {"requests", "N", "of each client and plane, 1 to 1000000; default: 2 seconds of them", 1,
     BENCH_REQUESTS_MAX, false},
    {"mode", "eval|train", "default: eval", 0, 0, false},
    {"plane", "resident|inline|both", "inputs and outputs stay, travel, or both in turn (both)", 0,
     0, false},
    {"dtype", "bf16|f16|f32", "of input, weight and output (bf16)", 0, 0, false},
    OPTIONS_END,
};

static const char load_detail[] =
    "Of the recipe, what is not given is what the file saved, else delayed, hybrid,\n"
    "1024, max, 0, fast.";
static const char recipe_detail[] =
    "Without options it is shown. A change drops FP8 copies of weights; scales stay where\n"
    "the FP8 format does, histories keep their newest rows. Another accumulation alone\n"
    "drops nothing.";
static const char create_detail[] =
    "SPEC.json:\n"
    "  {\"recipe\": {\"kind\": \"delayed\"|\"current\", \"fp8_format\": \"hybrid\"|\"e4m3\",\n"
    "              \"amax_algo\": \"max\"|\"most_recent\", \"amax_history_len\": 1 to 65536,\n"
    "              \"margin\": 0 to 31, \"fprop_accumulation\": \"fast\"|\"precise\"},\n"
    "   \"primary_fp8\": true|false,\n"
    "   \"layers\": [{\"name\": NAME, \"weight\": \"FILE[:TENSOR]\", \"bias\": \"FILE[:TENSOR]\"}, "
    "...]}\n"
    "The recipe and its members, primary_fp8 and bias may be left out. A relative FILE\n"
    "starts in the folder of SPEC.json. The name MODEL must be free.";
static const char backward_detail[] =
    "ID is what 'forward --mode train --context ID' was given. Contexts end with their\n"
    "connection, so that both belong in one batch; anywhere else the server finds none.";
static const char optimizer_detail[] =
    "Without options the optimizer is shown, with the number of the next step. With --kind\n"
    "everything is set anew: what is not given is the default, and a layer that is not named\n"
    "moves. Master weights and moments stay where the kind does, and with sgd where there is\n"
    "a momentum as before; else they are dropped.";
static const char step_detail[] =
    "Steps of a model count from 1, skipped ones too; 'optimizer MODEL' and each step print\n"
    "the next number. The last number again is answered, and not taken twice. A step with\n"
    "gradients that are not finite is skipped: that is a result, with exit status 0.";
static const char bench_detail[] =
    "Makes a model fp8ctl-bench-... of random numbers, and drops it at the end, also when\n"
    "interrupted. DEVICE is the median of a forward's time on the device. OVERHEAD is what a\n"
    "forward took beyond that; with more than one under way the same difference is called\n"
    "WAITING, for it holds the waiting for the others.";

const struct command commands[] = {
    {"status", "", "what the server is and does", no_options, 0, 0, false, false, cmd_status, NULL},
    {"models", "", "list the models", no_options, 0, 0, false, false, cmd_models, NULL},
    {"layers", "MODEL", "list the layers of a model", no_options, 1, 1, false, false, cmd_layers,
     NULL},
    {"load", "MODEL PATH", "load a safetensors file as a model, or replace it", load_options, 2, 2,
     false, false, cmd_load, load_detail},
    {"unload", "MODEL", "remove a model", no_options, 1, 1, false, false, cmd_unload, NULL},
    {"save", "MODEL PATH", "save a model with all its state; PATH is replaced as a whole",
     save_options, 2, 2, false, false, cmd_save, NULL},
    {"create", "MODEL SPEC.json", "make a model from tensors of safetensors files", no_options, 2,
     2, false, false, cmd_create, create_detail},
    {"set-weight", "MODEL/LAYER", "replace the weight of a layer", weight_options, 1, 1, false,
     false, cmd_set_weight, NULL},
    {"forward", "MODEL/LAYER", "compute y = x W^T + b", forward_options, 1, 1, false, false,
     cmd_forward, NULL},
    {"backward", "ID", "gradients from the context of a train forward", backward_options, 1, 1,
     false, false, cmd_backward, backward_detail},
    {"recompute", "ID", "the output of a context's forward again", recompute_options, 1, 1, false,
     false, cmd_recompute, backward_detail},
    {"gradient", "MODEL/LAYER", "show the gradient that a layer holds", gradient_options, 1, 1,
     false, false, cmd_gradient, NULL},
    {"zero-grad", "MODEL", "forget the gradients of a model", no_options, 1, 1, false, false,
     cmd_zero_grad, NULL},
    {"optimizer", "MODEL", "show what the steps of a model are taken with, or set it",
     optimizer_options, 1, 1, false, false, cmd_optimizer, optimizer_detail},
    {"step", "MODEL", "move the weights of a model by its gradients", step_options, 1, 1, false,
     false, cmd_step, step_detail},
    {"drop-context", "ID", "forget what 'forward --context ID' kept", no_options, 1, 1, false,
     false, cmd_drop_context, NULL},
    {"calibration", "finish|abort MODEL",
     "set scales from 'forward --mode calibrate', or drop them", no_options, 2, 2, false, false,
     cmd_calibration, NULL},
    {"scope", "begin|end MODEL", "bracket train requests: one scale update, at the end", no_options,
     2, 2, false, true, cmd_scope, NULL},
    {"recipe", "MODEL", "show the scaling recipe of a model, or change what is given",
     recipe_options, 1, 1, false, false, cmd_recipe, recipe_detail},
    {"scaling", "MODEL[/LAYER]", "show the scaling state, or change it", scaling_options, 1, 1,
     false, false, cmd_scaling, NULL},
    {"check", "MODEL/LAYER", "FP8 against high precision, for one input", check_options, 1, 1,
     false, false, cmd_check, NULL},
    {"ping", "", "measure round trips", ping_options, 0, 0, false, false, cmd_ping, NULL},
    {"bench", "", "measure forwards of a temporary model", bench_options, 0, 0, false, false,
     cmd_bench, bench_detail},
    {"batch", "FILE", "run commands of a file ('-': stdin), one a line, on one connection",
     no_options, 1, 1, false, false, cmd_batch, NULL},
    {NULL, NULL, NULL, NULL, 0, 0, false, false, NULL, NULL},
};

const struct command *command_find(const char *name)
{
    for (const struct command *k = commands; k->name; k++)
        if (!strcmp(k->name, name))
            return k;
    return NULL;
}

/* One piece of a synopsis, on a new line where it does not fit. */
static void put_piece(size_t *at, const char *piece)
{
    size_t len = strlen(piece);
    if (*at + len + 1 > HELP_WIDTH) {
        printf("\n         ");
        *at = 9;
    }
    printf(" %s", piece);
    *at += len + 1;
}

static void put_synopsis(const char *prefix, const struct command *k)
{
    char piece[96];
    printf("%s%s", prefix, k->name);
    size_t at = strlen(prefix) + strlen(k->name);
    if (*k->arguments)
        put_piece(&at, k->arguments);
    for (const struct arg_option *o = k->options; o->name; o++) {
        bool must = !strcmp(o->name, "input") || !strcmp(o->name, "grad-output") ||
                    !strcmp(o->name, "step");
        (void)snprintf(piece, sizeof piece, "%s--%s%s%s%s%s", must ? "" : "[", o->name,
                       o->metavar ? " " : "", o->metavar ? o->metavar : "", must ? "" : "]",
                       o->many ? "..." : "");
        put_piece(&at, piece);
    }
    putchar('\n');
}

static void put_options(const struct command *k)
{
    char left[64];
    if (k->options->name)
        puts("\nOptions:");
    for (const struct arg_option *o = k->options; o->name; o++) {
        (void)snprintf(left, sizeof left, "--%s %s", o->name, o->metavar ? o->metavar : "");
        printf("  %-30s %s\n", left, o->help);
    }
}

static void program_help(void)
{
    puts("Usage: fp8ctl [--socket PATH] [--json] [--timeout SECONDS] COMMAND\n"
         "\n"
         "Talks to fp8d, the service that owns FP8 neural-network layers.\n"
         "\n"
         "Commands:");
    for (const struct command *k = commands; k->name; k++)
        printf("  %-12s %s%s\n", k->name, k->summary, k->batch_only ? " (in a batch)" : "");
    puts("\nSynopsis:");
    for (const struct command *k = commands; k->name; k++)
        put_synopsis("  ", k);
    puts("\nOptions:\n"
         "  --socket PATH      the server's socket; default: $FP8D_SOCKET, else\n"
         "                     /run/fp8d/0/fp8d.sock, else $XDG_RUNTIME_DIR/fp8d.sock\n"
         "  --json             print results as JSON\n"
         "  --timeout SECONDS  longest wait for the connection, and for each answer\n"
         "  --help             this text; after a command, that command's\n"
         "  --version          print the version\n"
         "\n"
         "FILE:TENSOR names a tensor of a safetensors file; a file with one needs no name.\n"
         "Exit status: 0 ok, 1 failed, 2 usage, 3 cannot connect.");
}

void command_help(const struct command *k)
{
    if (!k) {
        program_help();
        return;
    }
    put_synopsis("Usage: fp8ctl ", k);
    printf("\n%s%s.\n", k->summary, k->batch_only ? " (only in a batch)" : "");
    put_options(k);
    if (k->detail)
        printf("\n%s\n", k->detail);
}
