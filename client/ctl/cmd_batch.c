/* fp8ctl batch: commands of a file, one a line, on one connection. */
#include "client/ctl/ctl.h"
#include "client/ctl/words.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LINE_BYTES 65536

struct batch {
    const char *name;
    unsigned long line;
    char text[LINE_BYTES];
    struct words words;
};

static int line_failed(const struct ctl *ctl, const struct batch *b, int rc, const char *why)
{
    char shown[CTL_TEXT];
    (void)ctl;
    fprintf(stderr, "fp8ctl: %s:%lu: %s\n", ctl_text(shown, b->name), b->line, why);
    return rc;
}

/* Behind the line's own end are the newlines that were there before it was read; with a NUL inside
 * there is more of the line. */
static bool has_nul(const char text[LINE_BYTES], size_t len)
{
    for (size_t i = len + 1; i < LINE_BYTES; i++)
        if (text[i] != '\n')
            return true;
    return false;
}

static int run_line(struct ctl *ctl, struct batch *b)
{
    size_t len = strlen(b->text);
    if (len == sizeof b->text - 1 && b->text[len - 1] != '\n')
        return line_failed(ctl, b, CTL_USAGE, "the line is longer than 65534 bytes");
    if (has_nul(b->text, len))
        return line_failed(ctl, b, CTL_USAGE, "the line has a NUL");
    const char *why = words_split(&b->words, b->text);
    if (why)
        return line_failed(ctl, b, CTL_USAGE, why);
    if (!b->words.count)
        return CTL_OK;
    int rc = ctl_run(ctl, b->words.count, (const char *const *)b->words.word);
    (void)fflush(stdout);
    return rc ? line_failed(ctl, b, rc, "stopped here") : CTL_OK;
}

static int run_lines(struct ctl *ctl, struct batch *b, FILE *in)
{
    int rc = CTL_OK;
    /* Newlines first: what a read leaves behind its end tells a NUL inside the line from the last. */
    for (memset(b->text, '\n', sizeof b->text); !rc && fgets(b->text, sizeof b->text, in);
         memset(b->text, '\n', sizeof b->text)) {
        b->line++;
        rc = run_line(ctl, b);
    }
    if (!rc && ferror(in))
        rc = line_failed(ctl, b, CTL_FAILED, "reading failed");
    return rc;
}

static void drop_scopes(struct ctl *ctl)
{
    for (unsigned i = 0; i < CTL_SCOPES; i++) {
        mem_free((void *)ctl->scopes[i].model);
        ctl->scopes[i] = (struct ctl_scope){0};
    }
}

static int run_batch(struct ctl *ctl, const char *name, FILE *in)
{
    struct fault f = {0};
    struct batch *b = mem_zalloc(sizeof *b);
    if (!b) {
        fault_set(&f, -ENOMEM, "no memory for a batch");
        return ctl_fault(ctl, &f);
    }
    b->name = name;
    ctl->batch = true;
    int rc = run_lines(ctl, b, in);
    ctl->batch = false;
    drop_scopes(ctl);
    mem_free(b);
    return rc;
}

int cmd_batch(struct ctl *ctl, const struct args *a)
{
    struct fault f = {0};
    char shown[CTL_TEXT];
    const char *name = a->argument[0];
    bool standard = !strcmp(name, "-");
    FILE *in = standard ? stdin : fopen(name, "re");
    if (!in) {
        int rc = -errno;
        fault_set(&f, rc, "cannot open %s: %s", ctl_text(shown, name), status_text(rc));
        return ctl_fault(ctl, &f);
    }
    int rc = ctl_connect(ctl);
    if (!rc)
        rc = run_batch(ctl, standard ? "stdin" : name, in);
    if (!standard)
        (void)fclose(in);
    return rc;
}
