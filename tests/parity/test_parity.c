/* The CUDA backend against the CPU backend and against float64, over shape x format x mode x dtype.
 * Without a GPU that can be used the whole program is one skip. */
#include "kernels/module.h"
#include "tests/parity/parity.h"
#include "tests/unit/run.h"

#include <stdio.h>

int main(void)
{
    struct fault f = {0};
    if (module_probe_driver(0, &f)) {
        (void)printf("1..0 # SKIP no GPU to compare with: %s\n", f.text);
        return 0;
    }
    Suite *s = suite_create("parity");
    suite_add_tcase(s, parity_cast_case());
    suite_add_tcase(s, parity_state_case());
    suite_add_tcase(s, parity_step_case());
    suite_add_tcase(s, parity_gemm_case());
    suite_add_tcase(s, parity_grad_case());
    suite_add_tcase(s, parity_plan_case());
    suite_add_tcase(s, parity_queue_case());
    return run_suite(s);
}
