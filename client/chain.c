#include "client/chain.h"

int chain_collect(struct fp8d *c, const struct chain *s, int rc, struct fp8d_result **out,
                  struct fp8d_error *err)
{
    for (unsigned i = 0; i < s->sent; i++) {
        bool last = i + 1 == s->sent;
        if (rc)
            (void)fp8d_forget(c, s->ids[i], NULL);
        else
            rc = call_finish(c, 0, s->ids[i], last ? out : NULL, err);
    }
    return rc;
}
