/* test_codec_chance.c - messages made by chance, and broken by chance: no crash, and protobuf-c
 * takes whatever the checker lets through. */
#include "daemon/rpc/table.h"
#include "tests/unit/run.h"
#include "tests/unit/wire.h"

/* --- chance --- */

static uint64_t seed;

static uint32_t chance(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

/* Some message of this type: each field zero to three times, nested ones too. */
static void invent(const ProtobufCMessageDescriptor *d, unsigned depth)
{
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        unsigned times = f->label == PROTOBUF_C_LABEL_REPEATED ? chance(4) : chance(3) != 0;
        for (unsigned k = 0; k < times && wire_len < 4096; k++) {
            if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
                size_t at = wire_len;
                static unsigned char inner[6][8192];
                invent(f->descriptor, depth + 1);
                size_t n = wire_len - at;
                memcpy(inner[depth], wire + at, n);
                wire_len = at;
                wire_bytes(f->id, inner[depth], n);
            } else if (f->type == PROTOBUF_C_TYPE_STRING) {
                wire_bytes(f->id, "abcdefgh", chance(9));
            } else if (f->type == PROTOBUF_C_TYPE_FLOAT) {
                wire_tag(f->id, 5);
                wire_raw("\0\0\x80\x3f", 4);
            } else if (f->type == PROTOBUF_C_TYPE_DOUBLE) {
                wire_tag(f->id, 1);
                wire_raw("\0\0\0\0\0\0\xf0\x3f", 8);
            } else {
                wire_number(f->id, chance(2)); /* in every enum */
            }
        }
    }
}

/* One to four bytes changed, put in, taken out, or a piece repeated. */
static void mutate(void)
{
    for (unsigned n = 1 + chance(4); n && wire_len; n--) {
        size_t at = chance((uint32_t)wire_len);
        switch (chance(5)) {
        case 0:
            wire[at] = (unsigned char)chance(256);
            break;
        case 1:
            wire[at] ^= (unsigned char)(1u << chance(8));
            break;
        case 2:
            memmove(wire + at, wire + at + 1, --wire_len - at);
            break;
        case 3:
            memmove(wire + at + 1, wire + at, wire_len++ - at);
            wire[at] = (unsigned char)(chance(2) ? 0xff : chance(256));
            break;
        default:
            wire_raw(wire + at, 1 + chance((uint32_t)(wire_len - at)));
        }
    }
}

START_TEST(codec_mutations_never_pass_the_check_and_fail_to_unpack)
{
    /* 10^5 mutations over every request type: no crash, and what the checker lets through
     * protobuf-c takes, except for want of memory. */
    static const uint16_t types[] = {
#define X(Name, NAME, type, class, order, snake) type,
        REQUEST_LIST(X)
#undef X
    };
    unsigned good = 0, bad = 0;
    for (unsigned i = 0; i < 100000; i++) {
        seed = 1000003u * i + 17;
        const ProtobufCMessageDescriptor *d =
            request_row(types[i % (sizeof types / sizeof types[0])])->descriptor;
        wire_start();
        invent(d, 0);
        if (i % 4)
            mutate();
        int checked = codec_check(d, wire, wire_len, &wire_fault);
        int rc = wire_unpack(d);
        ck_assert_msg(i % 4 || rc == 0, "seed of %u: %s", i, wire_fault.text);
        ck_assert_msg(checked == rc || rc == FP8D_ERESOURCE_EXHAUSTED, "seed of %u: %d, %d, %s", i,
                      checked, rc, wire_fault.text);
        ck_assert_msg(rc != FP8D_ERESOURCE_EXHAUSTED || wire_len > 200, "seed of %u: %zu bytes, %s",
                      i, wire_len, wire_fault.text);
        good += !rc;
        bad += rc != 0;
    }
    ck_assert_uint_gt(good, 30000);
    ck_assert_uint_gt(bad, 10000);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("codec_chance");
    TCase *t = tcase_create("chance");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, codec_mutations_never_pass_the_check_and_fail_to_unpack);
    suite_add_tcase(s, t);
    return run_suite(s);
}
