/* Every rule of fp8d.conf(5), and the default of the socket. */
#include "daemon/config.h"
#include "tests/unit/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- fixture --- */

static struct config c;
static struct fault f;
static char path[64];

static void setup(void)
{
    memset(&f, 0, sizeof f);
    snprintf(path, sizeof path, "/tmp/fp8d-conf-XXXXXX");
    close(mkstemp(path));
    ck_assert_int_eq(config_init(&c, &f), 0);
}

static void teardown(void)
{
    config_fini(&c);
    unlink(path);
}

/* --- helpers --- */

static int read_bytes(const char *text, size_t len)
{
    FILE *file = fopen(path, "w");
    fwrite(text, 1, len, file);
    fclose(file);
    return config_read_file(&c, &io_posix, path, &f);
}

static void good(const char *text)
{
    ck_assert_msg(read_bytes(text, strlen(text)) == 0, "%s", f.text);
}

/* The file is refused, the sentence has `text` and names the line. */
static void bad(const char *file, unsigned line, const char *text)
{
    char place[96];
    snprintf(place, sizeof place, "%s:%u: ", path, line);
    ck_assert_int_lt(read_bytes(file, strlen(file)), 0);
    ck_assert_msg(strstr(f.text, place) && strstr(f.text, text), "fault says: %s", f.text);
}

static void set(const char *key, const char *value, bool ok)
{
    int rc = config_set(&c, key, value, CONFIG_FROM_ARGS, &f);
    ck_assert_msg((rc == 0) == ok, "%s=%s: %d %s", key, value, rc, f.text);
    if (!ok)
        ck_assert_msg(strstr(f.text, key) == f.text, "%s", f.text);
}

/* --- values --- */

/* The defaults of the design. */
START_TEST(config_defaults)
{
    ck_assert_uint_eq(c.connections_max, 1024);
    ck_assert_uint_eq(c.meta_max, 65536);
    ck_assert_uint_eq(c.payload_max, 1u << 30);
    ck_assert_uint_eq(c.in_flight_max, 64);
    ck_assert_uint_eq(c.resident_max, (uint64_t)4 << 30);
    ck_assert_uint_eq(c.header_max, 16 << 20);
    ck_assert_uint_eq(c.drain_timeout, 50000);
    ck_assert_uint_eq(c.stall_limit, 300000);
    ck_assert_uint_eq(c.handshake_timeout, 30000);
    ck_assert_uint_eq(c.socket_mode, 0660);
    ck_assert_uint_eq(c.backend, CONFIG_BACKEND_AUTO);
    uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    ck_assert_uint_le(c.memory_limit, ram / 10 * 8 + ram / 100);
    ck_assert_uint_ge(c.memory_limit, ram / 10 * 8 - ram / 100);
    ck_assert_int_eq(config_check(&c, &f), 0);
}
END_TEST

/* Sizes take K, M, G, T as powers of 1024, and nothing else. */
START_TEST(config_bytes)
{
    set("payload_max", "2K", true);
    ck_assert_uint_eq(c.payload_max, 2048);
    set("payload_max", "3M", true);
    ck_assert_uint_eq(c.payload_max, 3u << 20);
    set("payload_max", "1T", true);
    ck_assert_uint_eq(c.payload_max, (uint64_t)1 << 40);
    set("payload_max", "4096", true);
    ck_assert_uint_eq(c.payload_max, 4096);
    static const char *const wrong[] = {"",
                                        "K",
                                        "1k",
                                        "1KB",
                                        "-1",
                                        "+1",
                                        " 1",
                                        "1 K",
                                        "1.5G",
                                        "0x10",
                                        "18446744073709551616",
                                        "99999999T",
                                        "10%"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        set("payload_max", wrong[i], false);
}
END_TEST

/* memory_limit is bytes, or 1 to 100 percent. */
START_TEST(config_memory)
{
    set("memory_limit", "8G", true);
    ck_assert_uint_eq(c.memory_limit, (uint64_t)8 << 30);
    set("memory_limit", "100%", true);
    set("memory_limit", "1%", true);
    set("memory_limit", "0%", false);
    set("memory_limit", "101%", false);
    set("memory_limit", "50%%", false);
    set("memory_limit", "%", false);
}
END_TEST

/* device_memory is bytes, or a percentage of what only the GPU knows: kept as it is. */
START_TEST(config_share)
{
    ck_assert_uint_eq(c.device_memory, CONFIG_PERCENT + 80);
    set("device_memory", "1%", true);
    ck_assert_uint_eq(c.device_memory, CONFIG_PERCENT + 1);
    set("device_memory", "100%", true);
    ck_assert_uint_eq(c.device_memory, CONFIG_PERCENT + 100);
    set("device_memory", "256M", true);
    ck_assert_uint_eq(c.device_memory, 256u << 20);
    set("device_memory", "1024T", true);
    ck_assert_uint_eq(c.device_memory, (uint64_t)1 << 50);
    static const char *const wrong[] = {
        "", "0%", "101%", "%", "50%%", "1.5G", "255M", "1025T", "9223372036854775808", "-1%"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        set("device_memory", wrong[i], false);
    ck_assert_uint_eq(c.device_memory, (uint64_t)1 << 50); /* untouched by what failed */
    set("device_memory", "101%", false);
    ck_assert_ptr_nonnull(strstr(f.text, "or a share such as 80%"));
}
END_TEST

/* Times take ms, s, min, h; a bare number is seconds. */
START_TEST(config_times)
{
    set("drain_timeout", "250ms", true);
    ck_assert_uint_eq(c.drain_timeout, 250);
    set("drain_timeout", "7", true);
    ck_assert_uint_eq(c.drain_timeout, 7000);
    set("drain_timeout", "2min", true);
    ck_assert_uint_eq(c.drain_timeout, 120000);
    set("drain_timeout", "1h", true);
    ck_assert_uint_eq(c.drain_timeout, 3600000);
    set("drain_timeout", "25h", false);
    set("drain_timeout", "1d", false);
    set("drain_timeout", "1 s", false);
    set("drain_timeout", "s", false);
}
END_TEST

/* Bounds hold on both sides. */
START_TEST(config_bounds)
{
    set("meta_max", "1M", true);
    set("meta_max", "1048577", false);
    ck_assert_ptr_nonnull(strstr(f.text, "needed 1024 to 1048576"));
    set("meta_max", "1023", false);
    set("connections_max", "65536", true);
    set("connections_max", "65537", false);
    set("connections_max", "0", false);
    ck_assert_uint_eq(c.connections_max, 65536); /* untouched by what failed */
}
END_TEST

/* Modes are octal, words are exact, texts printable, roots absolute. */
START_TEST(config_other_kinds)
{
    set("socket_mode", "0600", true);
    ck_assert_uint_eq(c.socket_mode, 0600);
    set("socket_mode", "0668", false);
    set("socket_mode", "1777", false);
    set("backend", "cuda", true);
    ck_assert_uint_eq(c.backend, CONFIG_BACKEND_CUDA);
    set("backend", "cud", false);
    set("backend", "CPU", false);
    set("backend", "", false);
    set("backend", "auto|cpu", false);
    ck_assert_ptr_nonnull(strstr(f.text, "auto|cpu|cuda"));
    set("cpu_level", "v4", true);
    ck_assert_uint_eq(c.cpu_level, 3);
    set("backend_dir", "/a\x01", false);
    char long_path[109] = "/";
    memset(long_path + 1, 'a', 107);
    set("socket", long_path, false);
    ck_assert_ptr_nonnull(strstr(f.text, "socket: has 108 bytes, needed 0 to 107"));
    set("load_roots", "/models:/data", true);
    ck_assert_str_eq(c.load_roots, "/models:/data");
    set("load_roots", "", true);
    set("load_roots", "models", false);
    set("load_roots", "/models:", false);
    set("load_roots", "/models::/data", false);
}
END_TEST

/* How plans are chosen: three words, auto by default. */
START_TEST(config_plans)
{
    ck_assert_uint_eq(c.plans, 0);
    set("plans", "timed", true);
    ck_assert_uint_eq(c.plans, 1);
    set("plans", "reproducible", true);
    ck_assert_uint_eq(c.plans, 2);
    set("plans", "auto", true);
    ck_assert_uint_eq(c.plans, 0);
    set("plans", "fastest", false);
    ck_assert_ptr_nonnull(strstr(f.text, "is \"fastest\", needed one of auto|timed|reproducible"));
}
END_TEST

/* A key that is not known is named. */
START_TEST(config_unknown_key)
{
    ck_assert_int_eq(config_set(&c, "payload", "1", CONFIG_FROM_ARGS, &f), FP8D_ENOT_FOUND);
    ck_assert_ptr_nonnull(strstr(f.text, "unknown key \"payload\""));
}
END_TEST

/* What contradicts something else is refused. */
START_TEST(config_between_keys)
{
    set("output_limit", "1M", true);
    ck_assert_int_lt(config_check(&c, &f), 0);
    ck_assert_ptr_nonnull(strstr(f.text, "output_high_water is 64M"));
    set("output_limit", "64M", true);
    ck_assert_int_eq(config_check(&c, &f), 0);
    set("socket", "relative", true);
    ck_assert_int_lt(config_check(&c, &f), 0);
}
END_TEST

/* --- the file --- */

/* Comments, blank lines, spaces and tabs around keys and values, and a last line without end. */
START_TEST(config_file_good)
{
    good("# comment\n\n  \t\n\tpayload_max = 2G \n  # another\nsocket=/a # b\nlog_level\t=\tdebug");
    ck_assert_uint_eq(c.payload_max, 2u << 30);
    ck_assert_str_eq(c.socket, "/a # b"); /* a comment begins a line, or it is none */
    ck_assert_uint_eq(c.log_level, 3);
    good("");
    good("socket =\n");
    ck_assert_str_eq(c.socket, "");
}
END_TEST

/* Whatever is wrong is named with file and line. */
START_TEST(config_file_bad)
{
    bad("\n\npayload = 1\n", 3, "unknown key \"payload\"");
    bad("device = 1\n\ndevice = 1\n", 3, "device is set again, first in line 1");
    bad("device = x\n", 1, "device: is \"x\", needed a whole number");
    bad("[fp8d]\n", 1, "no sections");
    bad("device\n", 1, "not `key = value`");
    bad("= 3\n", 1, "unknown key \"\"");
    bad("device = 1\r\n", 1, "device");
}
END_TEST

/* A line of 1 023 bytes passes, 1 024 do not; a byte 0 is refused; 64 KiB of file pass. */
START_TEST(config_file_limits)
{
    char line[1100], file[(64 << 10) + 1];
    memset(line, ' ', sizeof line);
    memcpy(line, "device = 2", 10);
    ck_assert_int_eq(read_bytes(line, 1023), 0);
    ck_assert_int_lt(read_bytes(line, 1024), 0);
    ck_assert_ptr_nonnull(strstr(f.text, ":1: the line has 1024 bytes"));
    ck_assert_int_lt(read_bytes("device = 1\0\n", 12), 0);
    memset(file, '\n', sizeof file);
    ck_assert_int_eq(read_bytes(file, 64 << 10), 0);
    ck_assert_int_lt(read_bytes(file, sizeof file), 0);
}
END_TEST

/* A file that is not there, and one that is a directory, are told apart. */
START_TEST(config_file_missing)
{
    ck_assert_int_eq(config_read_file(&c, &io_posix, "/nonexistent", &f), -ENOENT);
    ck_assert_int_eq(config_read_file(&c, &io_posix, "/tmp", &f), FP8D_EINVALID_ARGUMENT);
}
END_TEST

/* What is printed reads back as the same. */
START_TEST(config_print_round_trip)
{
    char text[8192] = "", again[8192] = "";
    set("payload_max", "3G", true);
    set("load_roots", "/models", true);
    set("device_memory", "42%", true);
    set("plans", "reproducible", true);
    FILE *out = fmemopen(text, sizeof text, "w");
    config_print(&c, out);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(text, "# from the command line\npayload_max = 3G\n"));
    config_fini(&c);
    ck_assert_int_eq(config_init(&c, &f), 0);
    good(text);
    ck_assert_uint_eq(c.payload_max, (uint64_t)3 << 30);
    ck_assert_uint_eq(c.device_memory, CONFIG_PERCENT + 42);
    ck_assert_uint_eq(c.plans, 2);
    out = fmemopen(again, sizeof again, "w");
    config_print(&c, out);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(again, "# from the file\nload_roots = /models\n"));
}
END_TEST

/* Help has every key with a sentence. */
START_TEST(config_help_complete)
{
    char text[16384] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    config_help(out);
    fclose(out);
#define X(key, ...) ck_assert_ptr_nonnull(strstr(text, "  " #key " = "));
    CONFIG_LIST(X)
#undef X
}
END_TEST

/* The socket: as set, else by who we are, never /tmp, never cut. */
START_TEST(config_socket_rule)
{
    char out[64];
    ck_assert_int_eq(config_socket(&c, true, "/run/user/1", out, sizeof out, &f), 0);
    ck_assert_str_eq(out, "/run/fp8d/0/fp8d.sock");
    ck_assert_int_eq(config_socket(&c, false, "/run/user/1", out, sizeof out, &f), 0);
    ck_assert_str_eq(out, "/run/user/1/fp8d.sock");
    ck_assert_int_lt(config_socket(&c, false, NULL, out, sizeof out, &f), 0);
    ck_assert_ptr_nonnull(strstr(f.text, "XDG_RUNTIME_DIR is not set"));
    ck_assert_int_lt(config_socket(&c, false, "relative", out, sizeof out, &f), 0);
    ck_assert_int_lt(config_socket(&c, true, NULL, out, 10, &f), 0);
    set("socket", "/else/where", true);
    ck_assert_int_eq(config_socket(&c, true, "/run/user/1", out, sizeof out, &f), 0);
    ck_assert_str_eq(out, "/else/where");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config");
    TCase *t = tcase_create("config");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, config_defaults);
    tcase_add_test(t, config_bytes);
    tcase_add_test(t, config_memory);
    tcase_add_test(t, config_share);
    tcase_add_test(t, config_times);
    tcase_add_test(t, config_bounds);
    tcase_add_test(t, config_other_kinds);
    tcase_add_test(t, config_plans);
    tcase_add_test(t, config_unknown_key);
    tcase_add_test(t, config_between_keys);
    tcase_add_test(t, config_file_good);
    tcase_add_test(t, config_file_bad);
    tcase_add_test(t, config_file_limits);
    tcase_add_test(t, config_file_missing);
    tcase_add_test(t, config_print_round_trip);
    tcase_add_test(t, config_help_complete);
    tcase_add_test(t, config_socket_rule);
    suite_add_tcase(s, t);
    return run_suite(s);
}
