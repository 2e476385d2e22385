/* fp8ctl recipe: show the recipe of a model, or give it another. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"

#include <stdio.h>

/* `set`: what a change said; NULL: it was only asked for. */
static int recipe_result(struct ctl *ctl, const char *model, const struct fp8d_recipe *recipe,
                         const struct fp8d_recipe_set *set, const struct fp8d_result *r)
{
    char text[CTL_TEXT];
    if (ctl->json) {
        json_t *o = json_begin(ctl);
        json_put(ctl, o, "model", json_text(model));
        json_put_reply(ctl, o, r);
        json_put(ctl, o, "recipe", json_recipe(ctl, recipe));
        json_put(ctl, o, "notes",
                 set ? json_texts(ctl, set->notes, set->notes_count) : json_array());
        return json_end(ctl, o);
    }
    printf("%-9s %s\n", "model", ctl_text(text, model));
    printf("%-9s %s\n", "recipe", recipe_text(recipe, text));
    if (set)
        ctl_print_list("note", set->notes, set->notes_count);
    return CTL_OK;
}

static int show(struct ctl *ctl, const char *model)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    if (fp8d_describe_model(ctl->c, model, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    int rc = recipe_result(ctl, model, &fp8d_result_description(r)->model.recipe, NULL, r);
    fp8d_result_free(r);
    return rc;
}

static int change(struct ctl *ctl, const char *model, const struct fp8d_recipe *wanted)
{
    struct fp8d_error err;
    struct fp8d_result *r;
    if (fp8d_set_recipe(ctl->c, model, wanted, NULL, NULL, &r, &err))
        return ctl_failed(ctl, &err);
    const struct fp8d_recipe_set *set = fp8d_result_recipe_set(r);
    int rc = recipe_result(ctl, model, &set->recipe, set, r);
    fp8d_result_free(r);
    return rc;
}

int cmd_recipe(struct ctl *ctl, const struct args *a)
{
    struct fp8d_recipe wanted;
    int rc = ctl_connect(ctl);
    if (rc)
        return rc;
    recipe_from_args(a, &wanted);
    return recipe_asked(a) ? change(ctl, a->argument[0], &wanted) : show(ctl, a->argument[0]);
}
