/* parity.h - the cases of test_parity, a file each. */
#ifndef FP8D_TESTS_PARITY_PARITY_H
#define FP8D_TESTS_PARITY_PARITY_H

#include <check.h>

TCase *parity_cast_case(void);
TCase *parity_state_case(void);
TCase *parity_step_case(void);
TCase *parity_gemm_case(void);
TCase *parity_grad_case(void);
TCase *parity_plan_case(void);
TCase *parity_queue_case(void);

#endif
