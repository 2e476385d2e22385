#include "base/status.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

struct status_row {
    int code;
    const char *name;
    const char *text;
};

static const struct status_row rows[] = {
#define X(name, value, text) {value, #name, text},
    FP8D_STATUS_LIST(X)
#undef X
};

static const struct status_row *find(int code)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].code == code)
            return &rows[i];
    return NULL;
}

const char *status_name(int code)
{
    const struct status_row *row = find(code);
    if (row)
        return row->name;
    if (code == 0)
        return "OK";
    const char *name = code < 0 && code > -1000 ? strerrorname_np(-code) : NULL;
    return name ? name : "UNKNOWN";
}

const char *status_text(int code)
{
    const struct status_row *row = find(code);
    if (row)
        return row->text;
    if (code == 0)
        return "ok";
    const char *text = code < 0 && code > -1000 ? strerrordesc_np(-code) : NULL;
    return text ? text : "unknown error";
}

int status_to_rpc(int code)
{
    if (code <= -1001 && code >= -1016)
        return -1000 - code;
    switch (code) {
    case 0:
        return 0;
    case -ENOENT:
        return 5;
    case -EEXIST:
        return 6;
    case -EACCES:
    case -EPERM:
    case -EROFS:
    case -EXDEV:
    case -ELOOP:
        return 7;
    case -ENOMEM:
    case -EMFILE:
    case -ENFILE:
    case -ENOSPC:
    case -EDQUOT:
    case -EFBIG:
        return 8;
    case -EINVAL:
    case -EBADF:
    case -EISDIR:
    case -ENOTDIR:
    case -ENAMETOOLONG:
        return 3;
    default:
        return 13;
    }
}

int status_from_rpc(unsigned rpc)
{
    if (rpc == 0)
        return 0;
    return rpc <= 16 ? -1000 - (int)rpc : FP8D_EUNKNOWN;
}
