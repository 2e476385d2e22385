/* fp8ctl calibration, fp8ctl scope. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int calibration_result(struct ctl *ctl, const struct args *a, bool finish,
                              const struct fp8d_result *r)
{
    const struct fp8d_calibration *k = fp8d_result_calibration(r);
    if (!ctl->json) {
        printf(finish ? "%u sites set, %u not reached\n" : "%u maxima dropped\n", k->sites_set,
               k->sites_unset);
        return CTL_OK;
    }
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "model", json_text(a->argument[1]));
    json_put_reply(ctl, o, r);
    json_put(ctl, o, "action", json_text(a->argument[0]));
    json_put(ctl, o, "sites_set", json_u64(k->sites_set));
    json_put(ctl, o, "sites_unset", json_u64(k->sites_unset));
    return json_end(ctl, o);
}

int cmd_calibration(struct ctl *ctl, const struct args *a)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    bool finish = !strcmp(a->argument[0], "finish");
    if (!finish && strcmp(a->argument[0], "abort") != 0)
        return ctl_usage(ctl, "calibration takes finish or abort, then MODEL");
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    if (fp8d_finish_calibration(ctl->c, a->argument[1],
                                finish ? FP8D_CALIBRATION_FINISH : FP8D_CALIBRATION_ABORT, NULL,
                                NULL, &r, &err))
        return ctl_failed(ctl, &err);
    rc = calibration_result(ctl, a, finish, r);
    fp8d_result_free(r);
    return rc;
}

/* --- scopes of a batch --- */

static struct ctl_scope *scope_find(struct ctl *ctl, const char *model)
{
    for (unsigned i = 0; i < CTL_SCOPES; i++)
        if (model ? ctl->scopes[i].id && !strcmp(ctl->scopes[i].model, model) : !ctl->scopes[i].id)
            return &ctl->scopes[i];
    return NULL;
}

static int scope_json(struct ctl *ctl, const char *model, const struct fp8d_result *r)
{
    const struct fp8d_scope_end *k = fp8d_result_scope_end(r);
    json_t *o = json_begin(ctl);
    json_put(ctl, o, "model", json_text(model));
    json_put_reply(ctl, o, r);
    json_put(ctl, o, "scope", json_string(k ? "ended" : "begun"));
    if (k) {
        json_put(ctl, o, "sites_updated", json_u64(k->sites_updated));
        json_put(ctl, o, "sites_skipped", json_u64(k->sites_skipped));
    }
    return json_end(ctl, o);
}

static int scope_result(struct ctl *ctl, const char *model, struct fp8d_result *r)
{
    char text[CTL_TEXT];
    const struct fp8d_scope_end *k = fp8d_result_scope_end(r);
    int rc = CTL_OK;
    if (ctl->json)
        rc = scope_json(ctl, model, r);
    else if (k)
        printf("scope on %s ended: %u site%s updated, %u skipped\n", ctl_text(text, model),
               k->sites_updated, k->sites_updated == 1 ? "" : "s", k->sites_skipped);
    else
        printf("scope on %s begun\n", ctl_text(text, model));
    fp8d_result_free(r);
    return rc;
}

static int scope_begin(struct ctl *ctl, const char *model)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    struct fault f = {0};
    struct ctl_scope *s = scope_find(ctl, NULL);
    char *name = mem_strdup(model);
    if (!s || !name) {
        mem_free(name);
        fault_set(&f, s ? -ENOMEM : FP8D_ERESOURCE_EXHAUSTED, "at most %d scopes can be open here",
                  CTL_SCOPES);
        return ctl_fault(ctl, &f);
    }
    if (fp8d_begin_scope(ctl->c, ctl->last_scope + 1, model, NULL, NULL, &r, &err)) {
        mem_free(name);
        return ctl_failed(ctl, &err);
    }
    *s = (struct ctl_scope){name, ++ctl->last_scope};
    return scope_result(ctl, model, r);
}

static int scope_end(struct ctl *ctl, const char *model)
{
    char text[CTL_TEXT];
    struct fp8d_error err;
    struct fp8d_result *r;
    struct fault f = {0};
    struct ctl_scope *s = scope_find(ctl, model);
    if (!s) {
        fault_set(&f, FP8D_ENOT_FOUND, "no scope on model \"%s\" was begun in this batch",
                  ctl_text(text, model));
        return ctl_fault(ctl, &f);
    }
    int rc = fp8d_end_scope(ctl->c, s->id, false, NULL, &r, &err);
    mem_free((void *)s->model);
    *s = (struct ctl_scope){0};
    return rc ? ctl_failed(ctl, &err) : scope_result(ctl, model, r);
}

int cmd_scope(struct ctl *ctl, const struct args *a)
{
    bool begin = !strcmp(a->argument[0], "begin");
    if (!begin && strcmp(a->argument[0], "end") != 0)
        return ctl_usage(ctl, "scope takes begin or end, then MODEL");
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    return begin ? scope_begin(ctl, a->argument[1]) : scope_end(ctl, a->argument[1]);
}
