#include "daemon/engine/load_route.h"

enum load_route load_route(const struct load *ld, const struct source *x)
{
    if (dtype_is_fp8(x->weight->dtype))
        return ld->o.dequantize ? ROUTE_WIDEN : ROUTE_VERBATIM;
    return ld->o.primary_fp8 ? ROUTE_CAST : ROUTE_HIGH;
}

bool load_route_keeps_copy(const struct load *ld, const struct source *x)
{
    return source_has_copy(x) && load_route(ld, x) == ROUTE_HIGH &&
           x->cached[SOURCE_CODES]->dtype == recipe_dtype(&ld->built->recipe, SITE_WEIGHT);
}
