/* Replies about a model's state: its scaling, its recipe, saves, and models made from tensors. */
#include "client/convert.h"

int convert_set_scaling(struct fp8d_result *r, const Fp8d__V1__SetScalingReply *m, struct fault *f)
{
    struct fp8d_scaling_set *s = arena_alloc(&r->arena, sizeof *s);
    if (!s)
        return convert_nomem(f);
    *s = (struct fp8d_scaling_set){.sites = m->sites};
    r->body = s;
    return 0;
}

int convert_set_recipe(struct fp8d_result *r, const Fp8d__V1__SetRecipeReply *m, struct fault *f)
{
    struct fp8d_recipe_set *s = arena_zalloc(&r->arena, 1, sizeof *s);
    if (!s)
        return convert_nomem(f);
    if (!m->recipe)
        return fault_set(f, FP8D_EPROTOCOL, "field recipe is missing");
    convert_recipe(m->recipe, &s->recipe);
    s->notes = (const char *const *)m->notes;
    s->notes_count = m->n_notes;
    r->body = s;
    return 0;
}

int convert_create_model(struct fp8d_result *r, const Fp8d__V1__CreateModelReply *m,
                         struct fault *f)
{
    struct fp8d_created *s = arena_alloc(&r->arena, sizeof *s);
    if (!s)
        return convert_nomem(f);
    *s = (struct fp8d_created){.layers = m->layers, .parameters = m->parameters};
    r->body = s;
    return 0;
}

int convert_save_commit(struct fp8d_result *r, const Fp8d__V1__SaveCommitReply *m, struct fault *f)
{
    struct fp8d_save_report *s = arena_alloc(&r->arena, sizeof *s);
    if (!s)
        return convert_nomem(f);
    if (!m->report)
        return fault_set(f, FP8D_EPROTOCOL, "field report is missing");
    *s = (struct fp8d_save_report){
        .bytes_written = m->report->bytes_written,
        .write_us = m->report->write_us,
        .tensors = m->report->tensors,
    };
    r->body = s;
    return 0;
}
