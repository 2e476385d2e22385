#include "daemon/engine/load_read.h"

#include "daemon/engine/load_bytes.h"
#include "daemon/engine/load_fill.h"
#include "daemon/engine/load_optimizer.h"
#include "daemon/engine/load_reserve.h"
#include "daemon/engine/load_state.h"

static const struct io *io_of(const struct load *ld)
{
    return ld->engine->o.io;
}

/* Everything that can be wrong with the header, without a look at any value. */
static int parse(struct load *ld, const struct io_stat *st, struct fault *f)
{
    struct safetensors_limits limits = {.header_cap = ld->engine->o.header_cap};
    int rc = safetensors_read(io_of(ld), ld->fd, st, &limits, &ld->header, f);
    if (rc)
        return rc;
    struct claim_options o = {ld->o.no_strict, ld->o.only, ld->o.only_count, ld->o.skip,
                              ld->o.skip_count};
    return claim_make(ld->header, &o, &ld->claim, f);
}

/* All scaling state comes before anything is quantised with it. */
static int fill(struct load *ld, struct queue *q, struct fault *f)
{
    int rc = 0;
#ifdef FP8D_MUTANT_STATE_AFTER
    rc = load_fill(ld, q, f);
    return rc ? rc : load_state_apply(ld, q, f);
#endif
    rc = load_state_apply(ld, q, f);
    return rc ? rc : load_fill(ld, q, f);
}

static int read_file(struct load *ld, struct queue *q, struct fault *f)
{
    struct io_stat st;
    struct recipe recipe;
    int rc = io_check_readable(io_of(ld), ld->fd, &st, f);
    if (!rc)
        rc = parse(ld, &st, f);
    if (!rc)
        rc = load_state_recipe(ld, &recipe, f);
    if (!rc)
        rc = load_optimizer_header(ld, f);
    if (!rc)
        rc = load_reserve(ld, &recipe, f);
    if (!rc)
        rc = fill(ld, q, f);
    return rc ? rc : io_check_unchanged(io_of(ld), ld->fd, &st, f);
}

int load_read(struct load *ld, struct queue *q, struct fault *f)
{
    const struct exec *x = ld->engine->o.exec;
    uint64_t start = x->now(x->self);
    int rc = load_bytes_check(ld, f);
    if (!rc)
        rc = read_file(ld, q, f);
    if (rc) {
        (void)fault_at(f, STAGE_FILE);
        return rc == FP8D_ECANCELLED ? rc : fault_wrap(f, "%s", ld->file);
    }
    model_finish(ld->built);
    ld->built->creator_uid = ld->lease->uid;
    ld->report.parameters = model_parameters(ld->built);
    ld->report.bytes_read = atomic_load(&ld->bytes_done) + ld->header->header_bytes + 8;
    ld->report.read_us = (x->now(x->self) - start) / 1000;
    ld->report.recipe = ld->built->recipe;
    ld->report.claim = &ld->claim;
    ld->report.converted = &ld->converted;
    return 0;
}
