/* Handlers that need no transaction: C callbacks of detached consumers, and plugins that are none.
 */
/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "handler/handler.h"

#include <string.h>

static const mr_event events[] = {{.position = 1}, {.position = 2}, {.position = 3}};
static const mr_event *const list[] = {&events[0], &events[1], &events[2]};

typedef struct probe {
    int64_t fails_at;
    int calls;
} probe;

static mr_error *on_event(mr_tx *tx, const mr_event *event, void *user)
{
    probe *p = user;
    assert_null(tx);
    p->calls++;
    return mr_event_position(event) == p->fails_at ? mr_error_new(MR_E_HANDLER, true, "no") : NULL;
}

static mr_error *on_batch(mr_tx *tx, const mr_event *const *given, size_t count, void *user)
{
    probe *p = user;
    assert_null(tx);
    p->calls++;
    for (size_t i = 0; i < count; i++)
        if (mr_event_position(given[i]) == p->fails_at)
            return mr_error_new(MR_E_HANDLER, true, "no");
    return NULL;
}

static size_t delivers(mr_handler *handler, size_t count, bool well)
{
    mr_run run = {.events = list, .count = count};
    size_t good = 99;
    mr_error *error = handler->deliver(handler, &run, &good);
    assert_int_equal(error == NULL, well);
    mr_error_free(error);
    return good;
}

static void events_one_by_one(void **state)
{
    (void)state;
    probe p = {0};
    mr_handler *handler = NULL;
    assert_null(mr__handler_event(on_event, &p, &handler));
    assert_int_equal(delivers(handler, 3, true), 3);
    assert_int_equal(delivers(handler, 0, true), 0);
    assert_int_equal(p.calls, 3);
    p.fails_at = 2;
    assert_int_equal(delivers(handler, 3, false), 1);
    assert_int_equal(p.calls, 5);
    mr__handler_free(handler);
}

/* What is done is to be saved, or somebody wants it back: no further event is begun, and that is no
 * error. At least one is handled each time, or there would be no progress. */
static void events_come_back_when_told(void **state)
{
    (void)state;
    probe p = {0};
    mr_handler *handler = NULL;
    assert_null(mr__handler_event(on_event, &p, &handler));
    atomic_bool recalled = true;
    mr_run run = {.events = list, .count = 3, .recalled = &recalled};
    size_t good = 99;
    assert_null(handler->deliver(handler, &run, &good));
    assert_int_equal(good, 1);
    atomic_store(&recalled, false);
    run.clock = &mr__clock_system;
    run.save_by = mr__clock_now(run.clock);
    assert_null(handler->deliver(handler, &run, &good));
    assert_int_equal(good, 1);
    run.save_by += INT64_C(3600000000);
    assert_null(handler->deliver(handler, &run, &good));
    assert_int_equal(good, 3);
    mr__handler_free(handler);
}

static void batches_all_or_nothing(void **state)
{
    (void)state;
    probe p = {0};
    mr_handler *handler = NULL;
    assert_null(mr__handler_batch(on_batch, &p, &handler));
    assert_int_equal(delivers(handler, 3, true), 3);
    assert_int_equal(delivers(handler, 0, true), 0);
    assert_int_equal(p.calls, 1); /* never with nothing */
    p.fails_at = 3;
    assert_int_equal(delivers(handler, 3, false), 0);
    mr__handler_free(handler);
}

static void sql_delivers_nothing(void **state)
{
    (void)state;
    mr_handler *handler = NULL;
    assert_null(mr__handler_sql("SELECT 1", &handler));
    assert_null(handler->deliver);
    assert_null(handler->talk);
    mr__handler_free(handler);
}

static void no_plugin(const char *path, const char *why)
{
    mr_handler *handler = NULL;
    mr_error *error = mr__handler_plugin("a", path, "", &handler);
    assert_int_equal(mr_error_code(error), MR_E_CONFIG);
    if (strstr(mr_error_message(error), why) == NULL ||
        strstr(mr_error_message(error), path) == NULL)
        fail_msg("%s", mr_error_message(error));
    mr_error_free(error);
    assert_null(handler);
}

static void plugins_that_are_none(void **state)
{
    (void)state;
    no_plugin("./no/such/plugin.so", "No such file");
    no_plugin("/dev/null", "cannot be loaded");
    no_plugin("libc.so.6", "mr_plugin_v1");
}

static void commands_that_are_none(void **state)
{
    (void)state;
    mr_handler *handler = NULL;
    mr_error *error = mr__handler_exec("a", "", NULL, &handler);
    assert_int_equal(mr_error_code(error), MR_E_CONFIG);
    mr_error_free(error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_one_by_one),      cmocka_unit_test(events_come_back_when_told),
        cmocka_unit_test(batches_all_or_nothing), cmocka_unit_test(sql_delivers_nothing),
        cmocka_unit_test(plugins_that_are_none),  cmocka_unit_test(commands_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
