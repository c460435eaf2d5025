/* Filters by type, and the arrays they become on the server. */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "log/filter.h"

#include <string.h>

static bool passes(const char *aggregates, const char *events, const char *aggregate,
                   const char *event)
{
    mr_filter filter;
    assert_null(mr__filter_init(&filter, aggregates, events));
    mr_event row = {.aggregate_type = aggregate, .event_type = event};
    bool result = mr__filter_matches(&filter, &row);
    mr__filter_free(&filter);
    return result;
}

static void matching(void **state)
{
    (void)state;
    assert_true(passes("", "", "Order", "Placed"));
    assert_true(passes("Order", "", "Order", "Placed"));
    assert_false(passes("Order", "", "order", "Placed"));
    assert_false(passes("Order", "", "Orders", "Placed"));
    assert_true(passes("User, Order", "", "Order", "Placed"));
    assert_false(passes("Order", "Gone", "Order", "Placed"));
    assert_false(passes("User", "Placed", "Order", "Placed"));
    assert_true(passes("Order", "Gone,Placed", "Order", "Placed"));
    assert_true(passes("a\\,b", "", "a,b", "x"));
    assert_false(passes("a\\,b", "", "a", "x"));
    assert_false(passes("Order", "", "", ""));
}

static void arrays(void **state)
{
    (void)state;
    char *items[] = {"a", "b c", "d\"e", "f\\g", "", "NULL", "{x,y}"};
    char *array = mr__filter_array(items, 7);
    assert_string_equal(array, "{\"a\",\"b c\",\"d\\\"e\",\"f\\\\g\",\"\",\"NULL\",\"{x,y}\"}");
    mr_free(array);
    array = mr__filter_array(NULL, 0);
    assert_string_equal(array, "{}");
    mr_free(array);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(matching), cmocka_unit_test(arrays)};
    return cmocka_run_group_tests_name("filter", tests, NULL, NULL);
}
