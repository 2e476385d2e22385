/* Names of numbers, for messages. */
#include "base/dtype.h"
#include "base/fault.h"
#include "client/fp8d.h"

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0.1.0"
#endif

const char *fp8d_version(void)
{
    return PACKAGE_VERSION;
}

const char *fp8d_code_name(int code)
{
    return status_name(code);
}

const char *fp8d_code_text(int code)
{
    return status_text(code);
}

const char *fp8d_stage_name(enum fp8d_stage stage)
{
    return fault_stage_name((enum fault_stage)stage);
}

const char *fp8d_dtype_name(enum fp8d_dtype dtype)
{
    return dtype_name((enum dtype)dtype);
}
