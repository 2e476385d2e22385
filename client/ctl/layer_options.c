#include "client/ctl/layer_options.h"

#include "base/mem.h"
#include "client/ctl/reals.h"

#include <errno.h>
#include <string.h>

enum { FREEZE, RATE, DECAY, OPTIONS };

static const char *const names[OPTIONS] = {"freeze", "layer-rate", "layer-decay"};

/* All values of the three options. */
struct given {
    const char **values[OPTIONS];
    size_t count[OPTIONS];
};

static bool has(const struct fp8d_layer_options *l, int option)
{
    return option == FREEZE ? l->frozen : option == RATE ? l->rate > 0 : l->weight_decay_set;
}

/* The row of a layer that does not have the option yet: another option's, or a new one. */
static struct fp8d_layer_options *row_of(struct layer_options *o, const char *layer, int option)
{
    for (size_t i = 0; i < o->count; i++)
        if (!strcmp(o->list[i].layer, layer) && !has(&o->list[i], option))
            return &o->list[i];
    o->list[o->count] = (struct fp8d_layer_options){.layer = layer};
    return &o->list[o->count++];
}

/* The value up to its last '=', and the number behind it. The name goes to *room. */
static bool split(const struct ctl *ctl, int option, const char *value, char **room, double *number)
{
    char text[CTL_TEXT];
    const char *equals = strrchr(value, '=');
    size_t n = equals ? (size_t)(equals - value) : 0;
    if (!n || !real_parse(equals + 1, number) || *number < 0 || (option == RATE && *number <= 0)) {
        ctl_usage(ctl, "--%s is '%s', needed LAYER=X, X a number %s", names[option],
                  ctl_text(text, value), option == RATE ? "above 0" : "of at least 0");
        return false;
    }
    memcpy(*room, value, n);
    (*room)[n] = 0;
    return true;
}

static bool fill(const struct ctl *ctl, const struct given *g, struct layer_options *o)
{
    char *room = o->names;
    for (size_t i = 0; i < g->count[FREEZE]; i++)
        row_of(o, g->values[FREEZE][i], FREEZE)->frozen = true;
    for (int option = RATE; option < OPTIONS; option++)
        for (size_t i = 0; i < g->count[option]; i++) {
            double number;
            if (!split(ctl, option, g->values[option][i], &room, &number))
                return false;
            struct fp8d_layer_options *l = row_of(o, room, option);
            if (option == RATE)
                l->rate = number;
            else
                l->weight_decay = number;
            l->weight_decay_set = l->weight_decay_set || option == DECAY;
            room += strlen(room) + 1;
        }
    return true;
}

/* Room for every value as a row and as a name. */
static int make(const struct ctl *ctl, const struct given *g, struct layer_options *o)
{
    struct fault f = {0};
    size_t rows = 0, bytes = 0;
    for (int option = 0; option < OPTIONS; option++)
        for (size_t i = 0; i < g->count[option]; i++, rows++)
            bytes += strlen(g->values[option][i]) + 1;
    if (!rows)
        return CTL_OK;
    o->list = mem_array(rows, sizeof *o->list);
    o->names = mem_alloc(bytes);
    if (o->list && o->names)
        return fill(ctl, g, o) ? CTL_OK : CTL_USAGE;
    fault_set(&f, -ENOMEM, "no memory for layers");
    return ctl_fault(ctl, &f);
}

int layer_options_take(const struct ctl *ctl, const struct args *a, struct layer_options *out)
{
    struct fault f = {0};
    struct given g;
    bool memory = true;
    *out = (struct layer_options){0};
    for (int option = 0; option < OPTIONS; option++) {
        g.values[option] = args_list(a, names[option], &g.count[option]);
        memory = memory && (g.values[option] || !args_has(a, names[option]));
    }
    int rc = CTL_OK;
    if (memory) {
        rc = make(ctl, &g, out);
    } else {
        fault_set(&f, -ENOMEM, "no memory for layers");
        rc = ctl_fault(ctl, &f);
    }
    for (int option = 0; option < OPTIONS; option++)
        mem_free(g.values[option]);
    if (rc)
        layer_options_fini(out);
    return rc;
}

void layer_options_fini(struct layer_options *o)
{
    mem_free(o->list);
    mem_free(o->names);
    *o = (struct layer_options){0};
}
