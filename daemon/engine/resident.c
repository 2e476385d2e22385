#include "daemon/engine/resident.h"

#include "base/mem.h"
#include "daemon/engine/flight.h"

#include <errno.h>

void operand_fini(struct operand *o)
{
    buffer_unref(o->high.buf);
    qtensor_unref(o->q);
    *o = (struct operand){0};
}

struct operand operand_ref(const struct operand *o)
{
    if (o->q)
        qtensor_ref(o->q);
    else
        buffer_ref(o->high.buf);
    return *o;
}

uint64_t operand_rows(const struct operand *o)
{
    return o->q ? qtensor_info(o->q).rows : o->high.rows;
}

uint64_t operand_cols(const struct operand *o)
{
    return o->q ? qtensor_info(o->q).cols : o->high.cols;
}

enum dtype operand_dtype(const struct operand *o)
{
    return o->q ? qtensor_info(o->q).fmt : o->high.dtype;
}

uint64_t operand_bytes(const struct operand *o)
{
    return operand_rows(o) * operand_cols(o) * (dtype_bits(operand_dtype(o)) / 8);
}

static int file(struct lease *l, uint64_t id, const char *field, uint64_t bytes,
                struct resident **out, struct fault *f)
{
    int rc = lease_id_free(&l->tensors, id, field, f);
    if (rc)
        return rc;
    if (l->tensors.count >= l->engine->o.tensors_max)
        return fault_set(f, FP8D_ERESOURCE_EXHAUSTED,
                         "this connection holds %zu resident tensors, the cap is %u",
                         l->tensors.count, l->engine->o.tensors_max);
    rc = lease_charge(l, bytes, "the tensor", f);
    if (rc)
        return rc;
    struct resident *r = mem_zalloc(sizeof *r);
    if (!r || idmap_put(&l->tensors, id, r)) {
        mem_free(r);
        lease_release(l, bytes);
        return fault_set(f, -ENOMEM, "out of memory for tensor %llu", (unsigned long long)id);
    }
    *r = (struct resident){.lease = l, .id = id, .charged = bytes};
    *out = r;
    return 0;
}

static uint64_t bytes_of(const struct operand *value)
{
    return value->q ? qtensor_info(value->q).bytes : value->high.buf->charged;
}

int resident_new(struct lease *l, uint64_t id, const char *field, struct operand value,
                 struct resident **out, struct fault *f)
{
    struct resident *r = NULL;
    int rc = file(l, id, field, bytes_of(&value), &r, f);
    if (rc) {
        operand_fini(&value);
        return rc;
    }
    r->value = value;
    *out = r;
    return 0;
}

int resident_find(struct lease *l, uint64_t id, const char *field, struct resident **out,
                  struct fault *f)
{
    struct resident *r = idmap_get(&l->tensors, id);
    int rc = flight_check_tensor(l->engine, l, id, f);
    if (rc)
        return rc;
    if (!r)
        return fault_set(f, FP8D_ENOT_FOUND, "%s %llu is no resident tensor of this connection",
                         field, (unsigned long long)id);
    *out = r;
    return 0;
}

void resident_end(struct resident *r)
{
    idmap_remove(&r->lease->tensors, r->id);
    lease_release(r->lease, r->charged);
    operand_fini(&r->value);
    mem_free(r);
}

/* --- filings --- */

int filing_open(struct lease *l, uint64_t id, const char *field, bool replace,
                struct operand value, struct filing *out, struct fault *f)
{
    struct filing n = {.resident = replace ? idmap_get(&l->tensors, id) : NULL};
    int rc = flight_check_tensor(l->engine, l, id, f);
    if (rc) {
        operand_fini(&value);
        return rc;
    }
    if (!n.resident) {
        n.fresh = true;
        rc = resident_new(l, id, field, value, &n.resident, f);
    } else {
        n.value = value;
        n.charged = bytes_of(&value);
        rc = lease_charge(l, n.charged, "the tensor", f);
        if (rc)
            operand_fini(&value);
    }
    if (!rc)
        *out = n;
    return rc;
}

void filing_settle(struct filing *n)
{
    struct resident *r = n->resident;
    if (r && !n->fresh) {
        lease_release(r->lease, r->charged);
        operand_fini(&r->value);
        r->value = n->value;
        r->charged = n->charged;
    }
    *n = (struct filing){0};
}

void filing_withdraw(struct filing *n)
{
    if (n->fresh) {
        resident_end(n->resident);
    } else if (n->resident) {
        lease_release(n->resident->lease, n->charged);
        operand_fini(&n->value);
    }
    *n = (struct filing){0};
}
