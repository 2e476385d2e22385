/* test_codec.c - the wire checker over bytes made by hand: what it must refuse, and what it must
 * let through. */
#include "proto/fp8d.pb-c.h"
#include "tests/unit/run.h"
#include "tests/unit/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- helpers --- */

static void refused(const ProtobufCMessageDescriptor *d, const char *says)
{
    int rc = wire_unpack(d);
    ck_assert_msg(rc == FP8D_EINVALID_ARGUMENT && strstr(wire_fault.text, says),
                  "%d, \"%s\", needed \"%s\"", rc, wire_fault.text, says);
    wire_start();
}

static void taken(const ProtobufCMessageDescriptor *d)
{
    int rc = wire_unpack(d);
    ck_assert_msg(rc == 0, "%d, \"%s\"", rc, wire_fault.text);
    wire_start();
}

#define FORWARD (&fp8d__v1__forward_request__descriptor)
#define BEGIN (&fp8d__v1__load_begin_request__descriptor)
#define ATTACH (&fp8d__v1__load_attach_request__descriptor)
#define HEAD (&fp8d__v1__request_head__descriptor)
#define REF (&fp8d__v1__tensor_ref__descriptor)
#define RECIPE (&fp8d__v1__recipe__descriptor)

/* --- strings and enums --- */

START_TEST(codec_strings_are_printable_utf8)
{
    /* Overlong forms, surrogates, truncation, NULs and controls are refused with the name of the
     * field and the bytes escaped; any other UTF-8 is fine. */
    static const char *const bad[] = {
        "\xff", "a\xc3",    "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "a\nb", "\x1b[31m", "\x7f",     "\xc2\x85"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        wire_bytes(2, bad[i], strlen(bad[i]));
        refused(FORWARD, "model is \"");
    }
    wire_bytes(2, "a\0b", 3);
    refused(FORWARD, "model is \"a\\x00b\", needed UTF-8 without control characters");
    wire_bytes(2, "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", 11);
    taken(FORWARD);
    wire_bytes(3, "good", 4);
    wire_bytes(3, "b\tad", 4);
    refused(ATTACH, "names is \"b\\x09ad\"");
}
END_TEST

START_TEST(codec_enums_are_known)
{
    /* Every value outside the enum is refused, negative and 2^32-wrapped ones too, with its number.
     */
    static const uint64_t bad[] = {
        4,          255,           INT32_MAX, 1ull << 31, UINT32_MAX, 1ull << 32, (1ull << 32) + 1,
        UINT64_MAX, UINT64_MAX - 1};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char says[64];
        (void)snprintf(says, sizeof says, "mode is %llu, needed a value of enum Mode",
                       (unsigned long long)bad[i]);
        wire_number(4, bad[i]);
        refused(FORWARD, says);
    }
    for (unsigned v = 0; v < 4; v++) {
        wire_number(4, v);
        taken(FORWARD);
    }
    wire_bytes(6, "\x08\x63", 2);
    refused(FORWARD, "input.dtype is 99, needed a value of enum DType");
}
END_TEST

START_TEST(codec_numbers_fit_their_fields)
{
    /* A uint32 of more than 32 bits is not cut down to another value: 2^32 + 5 is no margin of 5.
     */
    wire_number(5, UINT32_MAX);
    taken(RECIPE);
    wire_number(5, (1ull << 32) + 5);
    refused(RECIPE, "margin is 4294967301");
    wire_number(1, 1ull << 32);
    refused(HEAD, "deadline_ms is 4294967296");
    wire_number(2, UINT64_MAX);
    taken(HEAD);
}
END_TEST

/* --- wire types, truncation --- */

START_TEST(codec_wire_types_fit)
{
    /* Each field in each other wire type is refused; a repeated number may be packed or not. */
    static const unsigned types[] = {0, 1, 2, 5};
    for (unsigned i = 0; i < 4; i++) {
        if (types[i] != 0) { /* output_id, a varint */
            wire_tag(8, types[i]);
            wire_raw("\x04\0\0\0\0\0\0\0", 8);
            refused(FORWARD, "output_id has a wire type that does not fit");
        }
        if (types[i] != 2) { /* model, a string */
            wire_tag(2, types[i]);
            wire_raw("\x04\0\0\0\0\0\0\0", 8);
            refused(FORWARD, "model has a wire type that does not fit");
        }
        if (types[i] != 5 && types[i] != 2) { /* scale_inv, floats */
            wire_tag(6, types[i]);
            wire_raw("\x04\0\0\0\0\0\0\0", 8);
            refused(REF, "scale_inv has a wire type that does not fit");
        }
    }
    wire_bytes(2, "\x01\x02\x80\x01", 4);
    wire_number(2, 5);
    taken(REF);
    wire_bytes(6, "\0\0\x80\x3f", 4);
    wire_tag(6, 5);
    wire_raw("\0\0\x80\x3f", 4);
    taken(REF);
}
END_TEST

START_TEST(codec_groups_are_refused)
{
    /* Groups and the unassigned wire types are no protobuf here, known field or not. */
    static const unsigned types[] = {3, 4, 6, 7};
    for (unsigned i = 0; i < 4; i++) {
        wire_tag(2, types[i]);
        refused(FORWARD, "model");
        wire_tag(900, types[i]);
        refused(FORWARD, "malformed");
    }
}
END_TEST

START_TEST(codec_truncation_is_refused_everywhere)
{
    /* A message that uses every kind of field, cut at each byte: refused, or a shorter message. */
    wire_number(4, 2);
    wire_bytes(2, "model", 5);
    wire_bytes(1, "\x08\x80\x01\x1a\x03\x01\x02\x03", 8);
    wire_bytes(6, "\x08\x01\x12\x02\x04\x05\x1a\x04\x08\x00\x10\x50\x32\x04\0\0\x80\x3f", 18);
    wire_bytes(77, "unknown", 7);
    size_t whole = wire_len;
    ck_assert_int_eq(wire_unpack(FORWARD), 0);
    for (wire_len = 0; wire_len < whole; wire_len++) {
        int rc = wire_unpack(FORWARD);
        ck_assert(rc == 0 || rc == FP8D_EINVALID_ARGUMENT);
    }
}
END_TEST

START_TEST(codec_varints_and_lengths_are_whole)
{
    /* Varints over ten bytes, lengths past the end or of 2^31 and more, packed runs that end inside
     * a number. */
    wire_tag(8, 0);
    wire_raw("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11);
    refused(FORWARD, "malformed");
    static const uint64_t lengths[] = {
        6, 1u << 20, 1ull << 31, 1ull << 32, (1ull << 32) + 5, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        wire_tag(2, 2);
        wire_varint(lengths[i]);
        wire_raw("hello", 5);
        refused(FORWARD, "model is longer than the message");
    }
    wire_bytes(2, "\x01\x80", 2);
    refused(REF, "dims is cut short");
    wire_bytes(6, "\0\0\x80", 3);
    refused(REF, "scale_inv is cut short");
}
END_TEST

START_TEST(codec_accepts_only_what_protobuf_c_does)
{
    /* Number 0, tags over five bytes and lengths over five are refused here, with a sentence, and
     * not by protobuf-c as if memory were short. */
    wire_raw("\x00\x01", 2);
    refused(FORWARD, "malformed");
    wire_raw("\x80\x00\x01", 3);
    refused(FORWARD, "malformed");
    wire_raw("\x90\x80\x80\x80\x80\x00\x01", 7);
    refused(FORWARD, "malformed");
    wire_raw("\x12\x85\x80\x80\x80\x80\x00hello", 12);
    refused(FORWARD, "model");
    wire_raw("\xfa\x38\x85\x80\x80\x80\x80\x00hello", 13);
    refused(FORWARD, "malformed");
}
END_TEST

/* --- counts --- */

START_TEST(codec_counts_are_capped)
{
    /* 4096 elements of a repeated field, 64 unknown fields; one more is refused. Packed, unpacked
     * and mixed count alike. */
    unsigned char ones[5000];
    memset(ones, 1, sizeof ones);
    wire_bytes(2, ones, 4096);
    taken(REF);
    wire_bytes(2, ones, 4097);
    refused(REF, "dims has more than 4096 elements");
    wire_bytes(2, ones, 4000);
    wire_bytes(2, ones, 97);
    refused(REF, "dims has more than 4096 elements");
    for (unsigned i = 0; i < 4097; i++)
        wire_bytes(3, "n", 1);
    refused(ATTACH, "names has more than 4096 elements");
    for (unsigned i = 0; i < 64; i++)
        wire_number(1000 + i, i);
    taken(FORWARD);
    for (unsigned i = 0; i < 65; i++)
        wire_number(1000, i);
    refused(FORWARD, "more than 64 unknown fields");
}
END_TEST

START_TEST(codec_messages_are_given_once)
{
    /* A singular sub-message twice, also as a member of a oneof and nested; scalars may repeat. */
    wire_bytes(6, "", 0);
    wire_bytes(6, "", 0);
    refused(FORWARD, "input is given twice");
    wire_bytes(1, "", 0);
    wire_bytes(2, "m", 1);
    wire_bytes(1, "", 0);
    refused(FORWARD, "head is given twice");
    wire_bytes(3, "", 0);
    wire_number(4, 1);
    wire_bytes(3, "", 0);
    refused(REF, "inline_bytes is given twice");
    wire_bytes(6, "\x1a\x00\x1a\x00", 4);
    refused(FORWARD, "input.inline_bytes is given twice");
    wire_bytes(3, "", 0);
    wire_number(4, 1); /* the later member of the oneof counts */
    taken(REF);
    wire_number(8, 1);
    wire_number(8, 2);
    wire_bytes(2, "m", 1);
    wire_bytes(2, "n", 1);
    taken(FORWARD);
}
END_TEST

START_TEST(codec_full_requests_fit_their_memory)
{
    /* The largest requests that limits allow decode: 2 x 256 globs of one byte, 64 names, 16 needs
     * written one by one. */
    static unsigned char options[4096];
    for (unsigned i = 0; i < 512; i++) {
        wire_bytes(i < 256 ? 3 : 4, "*", 1);
    }
    size_t n = wire_len;
    memcpy(options, wire, n);
    wire_start();
    wire_bytes(3, "m", 1);
    wire_bytes(6, options, n);
    taken(BEGIN);
    for (unsigned i = 0; i < 64; i++)
        wire_bytes(3, "n", 1);
    taken(ATTACH);
    for (unsigned i = 0; i < 16; i++)
        wire_number(3, i + 1);
    taken(HEAD);
}
END_TEST

START_TEST(codec_amplification_stays_under_the_cap)
{
    /* Bytes chosen to cost the most memory: many tiny fields, singular and repeated. The arena's
     * cap holds (unpack checks it), and what does not fit is RESOURCE_EXHAUSTED. */
    for (unsigned i = 0; i < 30000; i++)
        wire_number(4, 1);
    int rc = wire_unpack(FORWARD);
    ck_assert(rc == 0 || rc == FP8D_ERESOURCE_EXHAUSTED);
    wire_start();
    for (unsigned i = 0; i < 4096; i++)
        wire_bytes(3, "", 0);
    rc = wire_unpack(ATTACH);
    ck_assert(rc == 0 || rc == FP8D_ERESOURCE_EXHAUSTED);
    wire_start();
    for (unsigned i = 0; i < 4096; i++)
        wire_number(3, 1);
    rc = wire_unpack(HEAD);
    ck_assert(rc == 0 || rc == FP8D_ERESOURCE_EXHAUSTED);
}
END_TEST

static void add_tests(TCase *t)
{
    tcase_add_test(t, codec_strings_are_printable_utf8);
    tcase_add_test(t, codec_enums_are_known);
    tcase_add_test(t, codec_numbers_fit_their_fields);
    tcase_add_test(t, codec_wire_types_fit);
    tcase_add_test(t, codec_groups_are_refused);
    tcase_add_test(t, codec_truncation_is_refused_everywhere);
    tcase_add_test(t, codec_varints_and_lengths_are_whole);
    tcase_add_test(t, codec_accepts_only_what_protobuf_c_does);
    tcase_add_test(t, codec_counts_are_capped);
    tcase_add_test(t, codec_messages_are_given_once);
    tcase_add_test(t, codec_full_requests_fit_their_memory);
    tcase_add_test(t, codec_amplification_stays_under_the_cap);
}

int main(void)
{
    Suite *s = suite_create("codec");
    TCase *t = tcase_create("codec");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, wire_start, NULL);
    add_tests(t);
    suite_add_tcase(s, t);
    return run_suite(s);
}
