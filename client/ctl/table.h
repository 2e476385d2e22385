/* table.h - a table on stdout, by libsmartcols. */
#ifndef FP8D_CLIENT_CTL_TABLE_H
#define FP8D_CLIENT_CTL_TABLE_H

#include <stdbool.h>

struct ctl;
struct libscols_table;
struct libscols_line;

struct table {
    struct libscols_table *table;
    struct libscols_line *line; /* being filled */
    unsigned column;
    bool failed; /* memory was short */
};

/* Columns by name, NULL ends; a name that begins with '>' is set to the right. */
void table_begin(struct table *t, const char *const *columns);
void table_row(struct table *t);
/* The next cell; foreign text must come escaped. */
void table_cell(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Print and drop it; false if memory was short or writing failed. */
bool table_end(struct table *t);
/* The same with a sentence on failure; an exit code. */
int table_done(const struct ctl *ctl, struct table *t);

#endif
