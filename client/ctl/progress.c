#include "client/ctl/progress.h"

#include "client/ctl/ctl.h"
#include "client/ctl/names.h"

#include <stdio.h>
#include <unistd.h>

static void draw(void *arg, const struct fp8d_progress *p)
{
    struct progress *line = arg;
    char stage[CTL_TEXT], done[32], total[32];
    double part = p->bytes_total ? 100.0 * (double)p->bytes_done / (double)p->bytes_total : 0;
    fprintf(stderr, "\r%-8.8s %5.1f %%  %s of %s, %u of %u tensors\033[K",
            ctl_text(stage, p->stage), part, bytes_text(p->bytes_done, done),
            bytes_text(p->bytes_total, total), p->tensors_done, p->tensors_total);
    line->drawn = true;
}

fp8d_progress_cb progress_cb(void)
{
    return isatty(STDERR_FILENO) ? draw : NULL;
}

void progress_end(struct progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", stderr);
    p->drawn = false;
}
