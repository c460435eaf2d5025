/* Waits with jitter: within their range, spread over it, and nothing out of nothing. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "runtime/worker.h"

enum { TIMES = 20000 };

static void within_its_half(void **state)
{
    (void)state;
    static const int64_t waits[] = {1, 2, 3, 1000, 100000, 10000000, INT64_MAX / 2};
    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++)
        for (int k = 0; k < 1000; k++) {
            int64_t wait = mr__jitter(waits[i]);
            assert_true(wait >= waits[i] / 2 && wait <= waits[i]);
        }
    assert_int_equal(mr__jitter(0), 0);
}

/* Many that failed together do not come back together. */
static void spread_over_it(void **state)
{
    (void)state;
    int tenths[10] = {0};
    for (int k = 0; k < TIMES; k++)
        tenths[(mr__jitter(1000000) - 500000) * 10 / 500001]++;
    for (int i = 0; i < 10; i++) /* a tenth each; 300 is seven times the spread of chance */
        assert_in_range(tenths[i], TIMES / 10 - 300, TIMES / 10 + 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(within_its_half),
        cmocka_unit_test(spread_over_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
