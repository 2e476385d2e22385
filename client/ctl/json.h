/* json.h - objects on stdout: versioned, escaped, floats as the shortest text that reads back. */
#ifndef FP8D_CLIENT_CTL_JSON_H
#define FP8D_CLIENT_CTL_JSON_H

#include "client/ctl/ctl.h"

#include <jansson.h>

#define JSON_VERSION 1 /* of the keys: "fp8ctl_json" */

/* A new object, with its version. NULL only when memory is short: json_put takes that, too. */
json_t *json_begin(struct ctl *ctl);
/* Add a member and take its reference; a failure is kept in ctl->no_memory. */
void json_put(struct ctl *ctl, json_t *o, const char *key, json_t *v);
void json_push(struct ctl *ctl, json_t *list, json_t *v);
/* Print and drop it: in several lines, in a batch in one. Returns an exit code. */
int json_end(struct ctl *ctl, json_t *o);

json_t *json_text(const char *s);     /* escaped where it is not printable UTF-8 */
json_t *json_u64(uint64_t v);
json_t *json_f32(float v);            /* NaN and infinities are strings */
json_t *json_f64(double v);           /* nine digits */
json_t *json_texts(struct ctl *ctl, const char *const *list, size_t count);
json_t *json_recipe(struct ctl *ctl, const struct fp8d_recipe *r);
json_t *json_cast(struct ctl *ctl, bool has, const struct fp8d_cast *cast); /* null without one */
json_t *json_shape(struct ctl *ctl, const struct fp8d_tensor *t);
/* "incarnation" and "weight_version" of a reply. */
void json_put_reply(struct ctl *ctl, json_t *o, const struct fp8d_result *r);

void json_print_error(const struct ctl *ctl, const struct fp8d_error *err);

#endif
