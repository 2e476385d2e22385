/* fp8ctl scaling: show the state, or change it as a whole. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/names.h"
#include "client/ctl/table.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --- JSON: the keys of the manual page, no more and no less --- */

static json_t *history_json(struct ctl *ctl, const struct fp8d_site *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->history_count; i++)
        json_push(ctl, list, json_f32(s->history[i]));
    return list;
}

static json_t *site_json(struct ctl *ctl, const struct fp8d_site *s)
{
    json_t *o = json_object();
    json_put(ctl, o, "format", json_string(fp8_name(s->dtype)));
    json_put(ctl, o, "set", json_boolean(s->set));
    json_put(ctl, o, "scale", json_f32(s->scale));
    json_put(ctl, o, "scale_inv", json_f32(s->scale_inv));
    json_put(ctl, o, "scale_inv_in_use",
             s->scale_inv_in_use > 0 ? json_f32(s->scale_inv_in_use) : json_null());
    json_put(ctl, o, "amax_last", json_f32(s->amax_last));
    json_put(ctl, o, "history", history_json(ctl, s));
    json_put(ctl, o, "collecting", json_f32(s->collecting));
    json_put(ctl, o, "updates", json_u64(s->updates));
    json_put(ctl, o, "skipped_updates", json_u64(s->skipped_updates));
    json_put(ctl, o, "saturated", json_u64(s->saturated));
    json_put(ctl, o, "flushed", json_u64(s->flushed));
    json_put(ctl, o, "nonfinite", json_u64(s->nonfinite));
    json_put(ctl, o, "uncalibrated_casts", json_u64(s->uncalibrated_casts));
    return o;
}

static json_t *layer_json(struct ctl *ctl, const struct fp8d_layer_scaling *l)
{
    char text[CTL_TEXT];
    json_t *o = json_object();
    json_t *tensors = json_object();
    for (size_t i = 0; i < l->count; i++)
        json_put(ctl, tensors, ctl_text(text, l->sites[i].name), site_json(ctl, &l->sites[i]));
    json_put(ctl, o, "weight_version", json_u64(l->weight_version));
    json_put(ctl, o, "cached_version",
             l->cached_version ? json_u64(l->cached_version) : json_null());
    json_put(ctl, o, "tensors", tensors);
    return o;
}

static int scaling_json(struct ctl *ctl, const struct fp8d_result *r)
{
    const struct fp8d_scaling *s = fp8d_result_scaling(r);
    char text[CTL_TEXT];
    json_t *o = json_begin(ctl);
    json_t *layers = json_object();
    for (size_t i = 0; i < s->count; i++) {
        const char *name = s->layers[i].name;
        bool good = utf8_printable(name, strlen(name));
        json_put(ctl, layers, good ? name : ctl_text(text, name), layer_json(ctl, &s->layers[i]));
    }
    json_put(ctl, o, "model", json_text(s->model));
    json_put_reply(ctl, o, r);
    json_put(ctl, o, "recipe", json_recipe(ctl, &s->recipe));
    json_put(ctl, o, "frozen", json_boolean(s->frozen));
    json_put(ctl, o, "calibrating", json_boolean(s->calibrating));
    json_put(ctl, o, "scope_open", json_boolean(s->scope_open));
    json_put(ctl, o, "layers", layers);
    return json_end(ctl, o);
}

/* --- table --- */

/* Sites that nothing quantises yet: people need not see them. */
static bool site_reserved(const struct fp8d_site *s)
{
    return !strcmp(s->name, "output") || !strcmp(s->name, "grad_input");
}

/* What a reader should not overlook. */
static const char *site_state(const struct fp8d_site *s, char *out, size_t size)
{
    const char *set = s->set ? "" : "unset",
               *calibrating = s->calibration_amax > 0 ? "calibrating" : "";
    char casts[48] = "";
    if (s->uncalibrated_casts)
        (void)snprintf(casts, sizeof casts, "uncalibrated casts %" PRIu64, s->uncalibrated_casts);
    (void)snprintf(out, size, "%s%s%s%s%s", set, *set && (*casts || *calibrating) ? ", " : "",
                   casts, *casts && *calibrating ? ", " : "", calibrating);
    return out;
}

static void site_row(struct table *t, const char *layer, const struct fp8d_site *s)
{
    char text[CTL_TEXT], f[32];
    table_row(t);
    table_cell(t, "%s", ctl_text(text, layer));
    table_cell(t, "%s", ctl_text(text, s->name));
    table_cell(t, "%s", fp8_name(s->dtype));
    table_cell(t, "%s", float_text(s->scale, f));
    table_cell(t, "%s", float_text(s->scale_inv, f));
    table_cell(t, "%s", s->scale_inv_in_use > 0 ? float_text(s->scale_inv_in_use, f) : "-");
    table_cell(t, "%s", float_text(s->amax_last, f));
    table_cell(t, "%s", float_text(s->collecting, f));
    table_cell(t, "%" PRIu64, s->updates);
    table_cell(t, "%" PRIu64, s->skipped_updates);
    table_cell(t, "%" PRIu64, s->saturated);
    table_cell(t, "%" PRIu64, s->flushed);
    table_cell(t, "%" PRIu64, s->nonfinite);
    table_cell(t, "%s", site_state(s, text, sizeof text));
}

static int scaling_table(const struct ctl *ctl, const struct fp8d_scaling *s)
{
    static const char *const columns[] = {"LAYER",      "SITE",     "FORMAT",     ">SCALE",
                                          ">SCALE_INV", ">IN_USE",  ">AMAX",      ">COLLECTING",
                                          ">UPDATES",   ">SKIPPED", ">SATURATED", ">FLUSHED",
                                          ">NONFINITE", "STATE",    NULL};
    struct table t;
    table_begin(&t, columns);
    for (size_t i = 0; i < s->count; i++)
        for (size_t j = 0; j < s->layers[i].count; j++)
            if (!site_reserved(&s->layers[i].sites[j]))
                site_row(&t, s->layers[i].name, &s->layers[i].sites[j]);
    return table_done(ctl, &t);
}

/* Zeros at the old end are counted, not shown. */
static void history_print(const char *layer, const struct fp8d_site *s)
{
    char text[CTL_TEXT], f[32];
    size_t shown = s->history_count;
    if (!shown)
        return;
    while (shown && !(s->history[shown - 1] > 0))
        shown--;
    printf("%s", ctl_text(text, layer));
    printf(" %s:", ctl_text(text, s->name));
    for (size_t i = 0; i < shown; i++)
        printf(" %s", float_text(s->history[i], f));
    if (shown < s->history_count)
        printf(" (%zu zeros)", s->history_count - shown);
    putchar('\n');
}

static int scaling_print(const struct ctl *ctl, const struct fp8d_result *r, bool history)
{
    const struct fp8d_scaling *s = fp8d_result_scaling(r);
    char text[CTL_TEXT];
    printf("%s", ctl_text(text, s->model));
    printf(", weight version %" PRIu64 ", %s%s%s%s\n", fp8d_result_reply(r)->weight_version,
           recipe_text(&s->recipe, text), s->frozen ? ", frozen" : "",
           s->calibrating ? ", calibrating" : "", s->scope_open ? ", scope open" : "");
    int rc = scaling_table(ctl, s);
    if (rc || !history)
        return rc;
    puts("\namax history, newest first");
    for (size_t i = 0; i < s->count; i++)
        for (size_t j = 0; j < s->layers[i].count; j++)
            if (!site_reserved(&s->layers[i].sites[j]))
                history_print(s->layers[i].name, &s->layers[i].sites[j]);
    return CTL_OK;
}

/* --- change --- */

struct action {
    const char *option;
    enum fp8d_scaling_action action;
    const char *done;
};

static const struct action actions[] = {
    {"reset", FP8D_SCALING_RESET, "reset"},
    {"freeze", FP8D_SCALING_FREEZE, "frozen"},
    {"unfreeze", FP8D_SCALING_UNFREEZE, "unfrozen"},
};

/* The one that is asked for; *count is how many are. */
static const struct action *find_action(const struct args *a, unsigned *count)
{
    const struct action *found = NULL;
    *count = 0;
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
        if (!args_has(a, actions[i].option))
            continue;
        found = &actions[i];
        ++*count;
    }
    return found;
}

static int changed(struct ctl *ctl, const char *model, const struct action *k,
                   const struct fp8d_result *r)
{
    char text[CTL_TEXT];
    uint32_t sites = fp8d_result_scaling_set(r)->sites;
    if (ctl->json) {
        json_t *o = json_begin(ctl);
        json_put(ctl, o, "model", json_text(model));
        json_put_reply(ctl, o, r);
        json_put(ctl, o, "action", json_string(k->option));
        json_put(ctl, o, "sites", json_u64(sites));
        return json_end(ctl, o);
    }
    printf("%s is %s", ctl_text(text, model), k->done);
    if (k->action == FP8D_SCALING_RESET)
        printf(": %u site%s", sites, sites == 1 ? "" : "s");
    putchar('\n');
    return CTL_OK;
}

static int change(struct ctl *ctl, const char *model, const struct action *k)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (fp8d_set_scaling(ctl->c, model, k->action, NULL, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    rc = changed(ctl, model, k, r);
    fp8d_result_free(r);
    return rc;
}

/* --- the command --- */

static int show(struct ctl *ctl, const char *name, bool history)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    char model[129];
    const char *layer = NULL;
    if (strchr(name, '/')) {
        if (!ctl_split(ctl, name, model, &layer))
            return CTL_USAGE;
        name = model;
    }
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (fp8d_query_scaling(ctl->c, name, layer, history, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    rc = ctl->json ? scaling_json(ctl, r) : scaling_print(ctl, r, history);
    fp8d_result_free(r);
    return rc;
}

int cmd_scaling(struct ctl *ctl, const struct args *a)
{
    unsigned count;
    const struct action *k = find_action(a, &count);
    bool history = args_has(a, "history");
    if (!k)
        return show(ctl, a->argument[0], history);
    if (count > 1 || history)
        return ctl_usage(ctl, "--reset, --freeze, --unfreeze and --history exclude each other");
    if (strchr(a->argument[0], '/'))
        return ctl_usage(ctl, "--%s is for a whole MODEL, not for one layer", k->option);
    return change(ctl, a->argument[0], k);
}
