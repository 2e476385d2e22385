/* json.h - reading JSON from foreign bytes, with a limit on its memory.
 *
 * jansson parses; duplicate keys, invalid UTF-8, NUL in strings and more than JSON_DEPTH_MAX levels
 * are errors. A tree lives in an arena whose cap is the budget: it is read only, never
 * json_decref'd, and gone with the arena. An allocation that fails leaves the parser by longjmp,
 * since jansson 2.14 itself, when its token buffer cannot grow, reads and writes past it or stops
 * at an assert.
 *
 * Faults: FP8D_EDATA_LOSS with the byte where the text breaks a rule, FP8D_ERESOURCE_EXHAUSTED past
 * the budget, -ENOMEM. Any thread; a reader belongs to one thread at a time.
 */
#ifndef FP8D_CKPT_JSON_H
#define FP8D_CKPT_JSON_H

#include "base/cursor.h"
#include "base/fault.h"
#include "base/mem.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define JSON_DEPTH_MAX 32 /* arrays and objects inside each other, the outermost included */

/* Put jansson's memory under mem.h, for the whole process. Called by the functions below; call it
 * first in a main() that uses jansson before them, so that no block is freed by another allocator
 * than its own. */
void json_setup(void);

/* Parse one whole document (any value, white space around it) into mem. Not longer than INT_MAX. */
int json_parse(const char *text, size_t len, struct arena *mem, json_t **out, struct fault *f);

/* A walk over the members of a document that is one object, holding one member at a time: memory is
 * that of the largest member, whatever their number. Names that occur twice are found by jansson
 * inside a member's value, but by the caller among the members. */
struct json_members {
    const char *text;
    size_t len;
    struct cursor at;
    struct arena mem; /* of the member handed out last */
    size_t budget;
    bool started;
};

void json_members_init(struct json_members *m, const char *text, size_t len, size_t budget);
void json_members_fini(struct json_members *m);

/* The next member: 1 with its name (NUL-terminated, no NUL inside, any other UTF-8) and value, both
 * valid until the next call; 0 at the end of the document; negative with a fault. */
int json_members_next(struct json_members *m, const char **name, json_t **value, struct fault *f);

/* "a string", "an integer", "a fraction", "an array", ...: for sentences. */
const char *json_kind(const json_t *v);

#endif
