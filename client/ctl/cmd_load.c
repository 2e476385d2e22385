/* fp8ctl load, fp8ctl unload. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/names.h"
#include "client/ctl/progress.h"

#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static int load_json(struct ctl *ctl, const char *model, const struct fp8d_result *r)
{
    const struct fp8d_load_report *s = fp8d_result_load(r);
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "model", json_text(model));
    json_put_reply(ctl, o, r);
    json_put(ctl, o, "layers", json_u64(s->layers));
    json_put(ctl, o, "parameters", json_u64(s->parameters));
    json_put(ctl, o, "bytes_read", json_u64(s->bytes_read));
    json_put(ctl, o, "read_us", json_u64(s->read_us));
    json_put(ctl, o, "recipe", json_recipe(ctl, &s->recipe));
    json_put(ctl, o, "loaded", json_texts(ctl, s->loaded, s->loaded_count));
    json_put(ctl, o, "ignored", json_texts(ctl, s->ignored, s->ignored_count));
    json_put(ctl, o, "ignored_total", json_u64(s->ignored_total));
    json_put(ctl, o, "converted", json_texts(ctl, s->converted, s->converted_count));
    json_put(ctl, o, "nan_codes", json_u64(s->nan_codes));
    json_put(ctl, o, "notes", json_texts(ctl, s->notes, s->notes_count));
    return json_end(ctl, o);
}

static void load_print(const char *model, const struct fp8d_load_report *s)
{
    char text[CTL_TEXT], bytes[32];
    printf("model     %s: %u layer%s, %" PRIu64 " parameters\n", ctl_text(text, model), s->layers,
           s->layers == 1 ? "" : "s", s->parameters);
    printf("recipe    %s\n", recipe_text(&s->recipe, text));
    printf("read      %s in %.3f s\n", bytes_text(s->bytes_read, bytes), (double)s->read_us / 1e6);
    ctl_print_names("loaded", s->loaded, s->loaded_count);
    ctl_print_more("loaded", s->loaded_count, s->layers);
    ctl_print_list("converted", s->converted, s->converted_count);
    ctl_print_list("ignored", s->ignored, s->ignored_count);
    ctl_print_more("ignored", s->ignored_count, s->ignored_total);
    if (s->nan_codes)
        printf("NaN       %" PRIu64 " codes in FP8 weights\n", s->nan_codes);
    ctl_print_list("note", s->notes, s->notes_count);
}

static int load(struct ctl *ctl, const struct args *a, const struct fp8d_load_options *o)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    struct progress line = {0};
    const char *model = a->argument[0], *path = a->argument[1];
    int rc = args_has(a, "server-path")
                 ? fp8d_load_server_path(ctl->c, model, path, o, progress_cb(), &line, &r, &err)
                 : fp8d_load_file(ctl->c, model, path, o, progress_cb(), &line, &r, &err);
    progress_end(&line);
    if (rc)
        return ctl_failed(ctl, &err);
    rc = CTL_OK;
    if (ctl->json)
        rc = load_json(ctl, model, r);
    else
        load_print(model, fp8d_result_load(r));
    fp8d_result_free(r);
    return rc;
}

int cmd_load(struct ctl *ctl, const struct args *a)
{
    struct fault f = {0};
    static const enum fp8d_dtype dtypes[] = {FP8D_DTYPE_NONE, FP8D_F32, FP8D_BF16};
    struct fp8d_load_options o = {
        .no_strict = args_has(a, "no-strict"),
        .primary_fp8 = args_has(a, "primary-fp8"),
        .dequantize = dtypes[args_choice(a, "dequantize")],
        .allow_nan = args_has(a, "allow-nan"),
        .finish_calibration = args_has(a, "finish-calibration"),
        .no_optimizer = args_has(a, "no-optimizer"),
    };
    if (o.primary_fp8 && o.dequantize)
        return ctl_usage(ctl, "--primary-fp8 and --dequantize exclude each other");
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    recipe_from_args(a, &o.recipe);
    const char **only = args_list(a, "only", &o.only_count);
    const char **skip = args_list(a, "skip", &o.skip_count);
    o.only = only;
    o.skip = skip;
    if ((args_has(a, "only") && !only) || (args_has(a, "skip") && !skip)) {
        fault_set(&f, -ENOMEM, "no memory for globs");
        rc = ctl_fault(ctl, &f);
    } else {
        rc = load(ctl, a, &o);
    }
    mem_free(only);
    mem_free(skip);
    return rc;
}

int cmd_unload(struct ctl *ctl, const struct args *a)
{
    struct fp8d_error err;
    char text[CTL_TEXT];
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (fp8d_drop_model(ctl->c, a->argument[0], NULL, NULL, NULL, &err))
        return ctl_failed(ctl, &err);
    if (!ctl->json) {
        printf("unloaded %s\n", ctl_text(text, a->argument[0]));
        return CTL_OK;
    }
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "unloaded", json_text(a->argument[0]));
    return json_end(ctl, o);
}
