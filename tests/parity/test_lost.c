/* A device that fails for good: nothing hangs, everything says so. A program of its own, since CUDA
 * does not recover within a process. Without a GPU one skip. */
#include "kernels/module.h"
#include "tests/unit/rig.h"
#include "tests/unit/run.h"

#include <stdio.h>

static struct rig rig;

/* An operation that writes where nothing is mapped ends the context: the note behind it and the
 * next ones fire with an error, operations are refused with the first reason, and closing returns.
 */
START_TEST(lost_device_answers_everything)
{
    struct backend_info info;
    struct rig_note note[2];
    memset(&rig, 0, sizeof rig);
    ck_assert_msg(!rig_open_cuda(&rig.b, &rig.f), "%s", rig.f.text);
    ck_assert_msg(!queue_open(rig.b, "test", &rig.q, &rig.f), "%s", rig.f.text);
    struct tensor x = rig_tensor(&rig, DTYPE_F32, 1, 4, (float[4]){0});
    ck_assert_int_eq(backend_measure(rig.q, &x, (void *)0x1000, &rig.f), 0);
    for (int i = 0; i < 2; i++) {
        note[i] = (struct rig_note){.note = {.done = rig_note_done}};
        sem_init(&note[i].fired, 0, 0);
        queue_notify(rig.q, &note[i].note);
    }
    for (int i = 0; i < 2; i++) {
        while (sem_wait(&note[i].fired)) {
        }
        ck_assert_int_eq(note[i].status, FP8D_EINTERNAL);
    }
    ck_assert_int_eq(backend_copy(rig.q, x.buf, 0, x.buf, 8, 4, &rig.f), FP8D_EINTERNAL);
    ck_assert_ptr_nonnull(strstr(rig.f.text, "the device is lost: "));
    backend_info(rig.b, &info);
    ck_assert(info.lost && strstr(info.lost_why, "GPU 0"));
    (void)fprintf(stderr, "%s\n", rig.f.text);
    buffer_unref(x.buf);
    rig_close(&rig);
    backend_close(rig_kept()->b);
}
END_TEST

int main(void)
{
    struct fault f = {0};
    if (module_probe_driver(0, &f)) {
        (void)printf("1..0 # SKIP no GPU to lose: %s\n", f.text);
        return 0;
    }
    Suite *s = suite_create("lost");
    TCase *c = tcase_create("lost");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, lost_device_answers_everything);
    suite_add_tcase(s, c);
    return run_suite(s);
}
