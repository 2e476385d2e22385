#include "client/ctl/ctl.h"

#include <locale.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    struct ctl ctl = {0};
    (void)setlocale(LC_CTYPE, ""); /* for the width of what is printed; numbers stay C's */
    int rc = ctl_run(&ctl, argc - 1, (const char *const *)argv + 1);
    fp8d_close(ctl.c);
    if (fflush(stdout) || ferror(stdout)) {
        fputs("fp8ctl: writing to the standard output failed\n", stderr);
        return rc ? rc : CTL_FAILED;
    }
    return rc;
}
