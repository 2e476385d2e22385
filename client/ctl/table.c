#include "client/ctl/table.h"

#include "client/ctl/ctl.h"

#include <libsmartcols/libsmartcols.h>
#include <stdarg.h>
#include <stdio.h>

void table_begin(struct table *t, const char *const *columns)
{
    *t = (struct table){.table = scols_new_table()};
    t->failed = !t->table;
    if (t->table) /* cells come escaped */
        (void)scols_table_enable_noencoding(t->table, 1);
    for (; !t->failed && *columns; columns++) {
        bool right = **columns == '>';
        t->failed =
            !scols_table_new_column(t->table, *columns + right, 0, right ? SCOLS_FL_RIGHT : 0);
    }
}

void table_row(struct table *t)
{
    if (t->failed)
        return;
    t->line = scols_table_new_line(t->table, NULL);
    t->failed = !t->line;
    t->column = 0;
}

void table_cell(struct table *t, const char *fmt, ...)
{
    char text[2304];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!t->failed)
        t->failed = scols_line_set_data(t->line, t->column++, text) != 0;
}

bool table_end(struct table *t)
{
    bool good = !t->failed && !scols_print_table(t->table) && !ferror(stdout);
    scols_unref_table(t->table);
    return good;
}

int table_done(const struct ctl *ctl, struct table *t)
{
    struct fault f = {0};
    if (table_end(t))
        return CTL_OK;
    fault_set(&f, FP8D_EINTERNAL, "the table could not be printed");
    return ctl_fault(ctl, &f);
}
