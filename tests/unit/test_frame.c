/* The frame header against the table of fp8d-protocol(7). */
#include "proto/frame.h"
#include "tests/unit/run.h"

#include <string.h>

static const struct frame_caps caps = {.meta = 1000, .payload = 5000, .fds = FRAME_FDS_MAX};

/* By hand from the table: type 0x0203, id 0x0807060504030201, meta 999, flags 3, 7 descriptors,
 * payload 4096. */
static const unsigned char known[FRAME_HEADER_BYTES] = {
    'F',  'P',  '8', 'D', 1,    0,    0x03, 0x02, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
    0xe7, 0x03, 0,   0,   0x03, 0x00, 7,    0,    0x00, 0x10, 0,    0,    0,    0,    0,    0};

static const struct frame_header known_header = {.type = 0x0203,
                                                 .flags = 3,
                                                 .fds = 7,
                                                 .meta_len = 999,
                                                 .id = 0x0807060504030201,
                                                 .payload_len = 4096};

/* The known header with the byte at `at` replaced must be refused, and *out left alone. */
static void refused(unsigned at, unsigned char byte, const char *text)
{
    unsigned char raw[FRAME_HEADER_BYTES];
    struct frame_header out = {.id = 42};
    struct fault f = {0};
    memcpy(raw, known, sizeof raw);
    raw[at] = byte;
    ck_assert_int_eq(frame_decode(raw, &caps, &out, &f), FP8D_EPROTOCOL);
    ck_assert_msg(strstr(f.text, text) != NULL, "fault says: %s", f.text);
    ck_assert_uint_eq(out.id, 42);
}

static int decode(uint32_t meta, uint64_t payload, uint16_t fds)
{
    unsigned char raw[FRAME_HEADER_BYTES];
    struct frame_header in = {.type = 1, .meta_len = meta, .payload_len = payload, .fds = fds}, out;
    struct fault f = {0};
    frame_encode(&in, raw);
    return frame_decode(raw, &caps, &out, &f);
}

/* Every field is at its offset, little-endian. */
START_TEST(frame_layout)
{
    unsigned char raw[FRAME_HEADER_BYTES];
    struct frame_header out;
    struct fault f;
    frame_encode(&known_header, raw);
    ck_assert_mem_eq(raw, known, sizeof raw);
    ck_assert_int_eq(frame_decode(known, &caps, &out, &f), 0);
    ck_assert_uint_eq(out.type, known_header.type);
    ck_assert_uint_eq(out.flags, known_header.flags);
    ck_assert_uint_eq(out.fds, known_header.fds);
    ck_assert_uint_eq(out.meta_len, known_header.meta_len);
    ck_assert_uint_eq(out.id, known_header.id);
    ck_assert_uint_eq(out.payload_len, known_header.payload_len);
}
END_TEST

/* Another byte in the magic is refused, and shown escaped. */
START_TEST(frame_magic)
{
    for (unsigned i = 0; i < 4; i++)
        refused(i, 0x07, "\\x07");
}
END_TEST

/* Another framing version is refused, and both are named. */
START_TEST(frame_version)
{
    refused(4, 2, "version is 2, this side speaks 1");
    refused(5, 1, "version is 257");
    refused(4, 0, "version is 0");
}
END_TEST

/* Every flag but REPLY and MORE is refused. */
START_TEST(frame_flags)
{
    for (unsigned bit = 2; bit < 16; bit++)
        refused(20 + bit / 8, (unsigned char)(1u << bit % 8), "flags are");
}
END_TEST

/* A meta of the cap passes, one byte more does not. */
START_TEST(frame_meta_cap)
{
    ck_assert_int_eq(decode(1000, 0, 0), 0);
    ck_assert_int_eq(decode(1001, 0, 0), FP8D_EPROTOCOL);
    ck_assert_int_eq(decode(UINT32_MAX, 0, 0), FP8D_EPROTOCOL);
}
END_TEST

/* A payload of the cap passes, one byte more, 2^63 and 2^64 - 1 do not. */
START_TEST(frame_payload_cap)
{
    ck_assert_int_eq(decode(0, 5000, 0), 0);
    ck_assert_int_eq(decode(0, 5001, 0), FP8D_EPROTOCOL);
    ck_assert_int_eq(decode(0, (uint64_t)1 << 63, 0), FP8D_EPROTOCOL);
    ck_assert_int_eq(decode(0, UINT64_MAX, 0), FP8D_EPROTOCOL);
}
END_TEST

/* 64 descriptors pass, 65 do not. */
START_TEST(frame_descriptor_cap)
{
    ck_assert_int_eq(decode(0, 0, 64), 0);
    ck_assert_int_eq(decode(0, 0, 65), FP8D_EPROTOCOL);
    ck_assert_int_eq(decode(0, 0, UINT16_MAX), FP8D_EPROTOCOL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("frame");
    TCase *t = tcase_create("header");
    tcase_add_test(t, frame_layout);
    tcase_add_test(t, frame_magic);
    tcase_add_test(t, frame_version);
    tcase_add_test(t, frame_flags);
    tcase_add_test(t, frame_meta_cap);
    tcase_add_test(t, frame_payload_cap);
    tcase_add_test(t, frame_descriptor_cap);
    suite_add_tcase(s, t);
    return run_suite(s);
}
