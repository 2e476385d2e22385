#include "base/status.h"
#include "tests/unit/run.h"

#include <errno.h>
#include <string.h>

/* --- cases --- */

/* google.rpc codes 1 to 16 are the statuses -1001 to -1016, both ways, with google's names. */
START_TEST(status_rpc_codes_round_trip)
{
    static const char *const names[] = {"OK",
                                        "CANCELLED",
                                        "UNKNOWN",
                                        "INVALID_ARGUMENT",
                                        "DEADLINE_EXCEEDED",
                                        "NOT_FOUND",
                                        "ALREADY_EXISTS",
                                        "PERMISSION_DENIED",
                                        "RESOURCE_EXHAUSTED",
                                        "FAILED_PRECONDITION",
                                        "ABORTED",
                                        "OUT_OF_RANGE",
                                        "UNIMPLEMENTED",
                                        "INTERNAL",
                                        "UNAVAILABLE",
                                        "DATA_LOSS",
                                        "UNAUTHENTICATED"};
    for (unsigned i = 0; i <= 16; i++) {
        int code = status_from_rpc(i);
        ck_assert_int_eq(code, i ? -1000 - (int)i : 0);
        ck_assert_int_eq(status_to_rpc(code), (int)i);
        ck_assert_str_eq(status_name(code), names[i]);
    }
    ck_assert_int_eq(status_from_rpc(17), FP8D_EUNKNOWN);
    ck_assert_int_eq(status_from_rpc(0xffffffff), FP8D_EUNKNOWN);
}
END_TEST

/* errno values keep their names and texts, and map to the nearest google.rpc code. */
START_TEST(status_errno_passes_through)
{
    static const struct {
        int code;
        const char *name;
        int rpc;
    } rows[] = {{-ENOENT, "ENOENT", 5}, {-EEXIST, "EEXIST", 6}, {-EACCES, "EACCES", 7},
                {-EPERM, "EPERM", 7},   {-ENOMEM, "ENOMEM", 8}, {-ENOSPC, "ENOSPC", 8},
                {-EMFILE, "EMFILE", 8}, {-EINVAL, "EINVAL", 3}, {-EBADF, "EBADF", 3},
                {-EISDIR, "EISDIR", 3}, {-EIO, "EIO", 13}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ck_assert_str_eq(status_name(rows[i].code), rows[i].name);
        ck_assert_str_eq(status_text(rows[i].code), strerror(-rows[i].code));
        ck_assert_int_eq(status_to_rpc(rows[i].code), rows[i].rpc);
    }
}
END_TEST

/* The project's own codes beyond google's are internal errors on the wire. */
START_TEST(status_own_codes_are_internal_on_the_wire)
{
    ck_assert_str_eq(status_name(FP8D_EPROTOCOL), "PROTOCOL");
    ck_assert_str_eq(status_name(FP8D_ECLOSED), "CLOSED");
    ck_assert_str_eq(status_text(FP8D_EFORKED), "handle used in a forked process");
    ck_assert_int_eq(status_to_rpc(FP8D_EPROTOCOL), 13);
}
END_TEST

/* Numbers that are no status still have a name and a text. */
START_TEST(status_of_nonsense_is_never_null)
{
    static const int codes[] = {1, 5, -999, -1000, -1017, -5000, -2147483647 - 1, 2147483647};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        ck_assert_str_eq(status_name(codes[i]), "UNKNOWN");
        ck_assert_str_eq(status_text(codes[i]), "unknown error");
        ck_assert_int_eq(status_to_rpc(codes[i]), 13);
    }
    ck_assert_str_eq(status_text(0), "ok");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base/status");
    TCase *c = tcase_create("status");
    tcase_add_test(c, status_rpc_codes_round_trip);
    tcase_add_test(c, status_errno_passes_through);
    tcase_add_test(c, status_own_codes_are_internal_on_the_wire);
    tcase_add_test(c, status_of_nonsense_is_never_null);
    suite_add_tcase(s, c);
    return run_suite(s);
}
