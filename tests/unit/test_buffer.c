/* buffer.h: counting, charging, and what is left behind on failure. */
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

/* --- fixture --- */

static struct rig rig;

static void setup(void)
{
    rig_open(&rig, CPU_LEVEL_AUTO, 1, true);
}

static void teardown(void)
{
    rig_close(&rig);
}

/* --- cases --- */

/* A buffer is aligned, host-readable on the CPU backend, and charged what it really takes. */
START_TEST(buffer_is_charged_what_it_takes)
{
    struct ledger l;
    struct buffer *buf = NULL;
    ledger_init(&l, 1u << 24);
    ck_assert_int_eq(buffer_new(rig.b, &l, BUFFER_DEVICE, 100, "x", &buf, &rig.f), 0);
    ck_assert_uint_eq(buf->bytes, 100);
    ck_assert_uint_ge(buf->charged, 100);
    ck_assert_uint_eq(ledger_used(&l), buf->charged);
    ck_assert_uint_eq((uintptr_t)buf->data % 64, 0);
    ck_assert_ptr_eq(buf->host, rig_cuda() ? NULL : buf->data);
    buffer_unref(buf);
    ck_assert_uint_eq(ledger_used(&l), 0);
}
END_TEST

/* Memory goes with the last reference and not before. */
START_TEST(buffer_lives_until_the_last_reference)
{
    struct backend_info info;
    struct buffer *buf = rig_buffer(&rig, 4096, NULL);
    ck_assert_ptr_eq(buffer_ref(buf), buf);
    buffer_unref(buf);
    backend_info(rig.b, &info);
    ck_assert_uint_eq(info.memory_used, 4096);
    buffer_unref(buf);
    backend_info(rig.b, &info);
    ck_assert_uint_eq(info.memory_used, 0);
    buffer_unref(NULL);
}
END_TEST

/* Above the ledger's cap nothing is taken, and the sentence names the use. */
START_TEST(buffer_respects_the_ledger)
{
    struct ledger l;
    struct buffer *buf = NULL;
    ledger_init(&l, 1000);
    int rc = buffer_new(rig.b, &l, BUFFER_HOST, 2000, "input of layer q", &buf, &rig.f);
    ck_assert_int_eq(rc, FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_ptr_null(buf);
    ck_assert_ptr_nonnull(strstr(rig.f.text, "input of layer q"));
    ck_assert_uint_eq(ledger_used(&l), 0);
}
END_TEST

/* A device's account is charged in place of the ledger for what is on the device alone, and its
 * sentence has its name and the numbers. */
START_TEST(buffer_charges_a_device_apart)
{
    struct ledger l, device;
    struct buffer *there = NULL, *here = NULL, *more = NULL;
    ledger_init(&l, 1u << 20);
    ledger_init(&device, 4096);
    device.name = "device memory";
    l.device = &device;
    ck_assert_int_eq(buffer_new(rig.b, &l, BUFFER_DEVICE, 4096, "x", &there, &rig.f), 0);
    ck_assert_int_eq(buffer_new(rig.b, &l, BUFFER_HOST, 8192, "y", &here, &rig.f), 0);
    ck_assert(ledger_used(&device) == 4096 && ledger_used(&l) == 8192);
    int rc = buffer_new(rig.b, &l, BUFFER_DEVICE, 4096, "z", &more, &rig.f);
    ck_assert_int_eq(rc, FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_str_eq(rig.f.text,
                     "z needs 4096 bytes, but 4096 of the device memory of 4096 are in use");
    ck_assert(ledger_used(&device) == 4096 && ledger_used(&l) == 8192);
    l.device = NULL; /* what was charged there is given back there */
    buffer_unref(there);
    buffer_unref(here);
    ck_assert(ledger_used(&device) == 0 && ledger_used(&l) == 0);
}
END_TEST

/* A size that no address space holds is an error, not a wrap. */
START_TEST(buffer_refuses_absurd_sizes)
{
    struct buffer *buf = NULL;
    static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 63, UINT64_MAX / 2};
    int rc = buffer_new(rig.b, NULL, BUFFER_HOST, sizes[_i], "x", &buf, &rig.f);
    ck_assert_int_eq(rc, FP8D_ERESOURCE_EXHAUSTED);
    ck_assert_ptr_null(buf);
}
END_TEST

/* Zero bytes are a valid buffer. */
START_TEST(buffer_may_be_empty)
{
    struct buffer *buf = rig_buffer(&rig, 0, NULL);
    ck_assert_ptr_nonnull(buf->data);
    buffer_unref(buf);
}
END_TEST

/* Only the two kinds exist. */
START_TEST(buffer_refuses_unknown_kinds)
{
    struct buffer *buf = NULL;
    int rc = buffer_new(rig.b, NULL, (enum buffer_kind)3, 1, "x", &buf, &rig.f);
    ck_assert_int_eq(rc, FP8D_EINVALID_ARGUMENT);
}
END_TEST

/* Each allocation fails once: clean error, nothing charged, nothing left. */
START_TEST(buffer_survives_each_failed_allocation)
{
    int64_t blocks = mem_live_blocks();
    struct ledger l;
    ledger_init(&l, 1u << 24);
    for (int n = 0;; n++) {
        struct buffer *buf = NULL;
        mem_fault_arm(n, false);
        int rc = buffer_new(rig.b, &l, BUFFER_HOST, 3u << 20, "x", &buf, &rig.f);
        bool fired = mem_fault_fired();
        mem_fault_arm(-1, false);
        ck_assert_int_eq(rc, fired ? FP8D_ERESOURCE_EXHAUSTED : 0);
        buffer_unref(buf);
        ck_assert_int_eq(mem_live_blocks(), blocks);
        ck_assert_uint_eq(ledger_used(&l), 0);
        if (!fired) {
            ck_assert_int_eq(n, 2);
            return;
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("buffer");
    TCase *c = tcase_create("buffer");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, buffer_is_charged_what_it_takes);
    if (!rig_cuda()) /* counts bytes of the host, which a GPU's backend does not */
        tcase_add_test(c, buffer_lives_until_the_last_reference);
    tcase_add_test(c, buffer_respects_the_ledger);
    tcase_add_test(c, buffer_charges_a_device_apart);
    tcase_add_loop_test(c, buffer_refuses_absurd_sizes, 0, 3);
    tcase_add_test(c, buffer_may_be_empty);
    tcase_add_test(c, buffer_refuses_unknown_kinds);
    tcase_add_test(c, buffer_survives_each_failed_allocation);
    suite_add_tcase(s, c);
    return run_suite(s);
}
