/* The kit for users' tests: batches, holes, verdicts, time. */
#include "testkit_fixture.h"

#include "random.h"

/* ---- Batches -------------------------------------------------------------------------------- */

static void a_batch_commits(void **state)
{
    (void)state;
    diary d = {0};
    mr_test *test = make(&d, false, OPTIONS("batch_size", "2"));
    assert_run(test, MR_TEST_IDLE);
    append_many(test, 3);
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_handled(test), 2);
    assert_int_equal(mr_test_checkpoint(test), 2);
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_handled(test), 1);
    assert_int_equal(mr_test_checkpoint(test), 3);
    assert_run(test, MR_TEST_IDLE);
    assert_int_equal(mr_test_handled(test), 0);
    assert_written(test, "1 2 3");
    assert_string_equal(mr_test_statement(test, 0), "INSERT INTO t VALUES ($1, $2)");
    assert_int_equal(mr_test_parameter_count(test, 0), 2);
    assert_int_equal(mr_test_parameter_length(test, 0, 0), 1);
    assert_null(mr_test_parameter(test, 0, 1));
    assert_null(mr_test_error(test));
    assert_int_equal(mr_test_wait(test), 0);
    mr_test_forget(test);
    assert_int_equal(mr_test_statement_count(test), 0);
    append_many(test, 1);
    assert_run(test, MR_TEST_COMMITTED);
    assert_written(test, "4");
    mr_test_free(test);
}

static void filters_pass_over(void **state)
{
    (void)state;
    diary d = {0};
    mr_test *test = make(&d, true, OPTIONS("aggregate_types", "Order", "event_types", "Placed"));
    fine(mr_test_append(test, 0, "Invoice", "i", "Placed", NULL, 0, NULL));
    fine(mr_test_append(test, 0, "Order", "i", "Shipped", NULL, 0, NULL));
    assert_run(test, MR_TEST_COMMITTED); /* the checkpoint moves over what is not its own */
    assert_int_equal(mr_test_handled(test), 0);
    assert_int_equal(mr_test_checkpoint(test), 2);
    append(test, 0, "o");
    assert_run(test, MR_TEST_COMMITTED);
    assert_written(test, "3");
    mr_test_free(test);
}

static mr_error *look_at_fields(mr_tx *tx, const mr_event *e, void *user)
{
    (void)tx;
    size_t length = 0;
    assert_memory_equal(mr_event_payload(e, &length), "a\0b", 4);
    assert_int_equal(length, 3);
    assert_string_equal(mr_event_aggregate_type(e), "Order");
    assert_string_equal(mr_event_aggregate_id(e), "o-1");
    assert_string_equal(mr_event_type(e), "Placed");
    assert_int_equal(mr_event_aggregate_version(e), mr_event_position(e) == 7 ? 41 : 42);
    assert_int_equal(mr_event_created_at(e), mr_test_now(((diary *)user)->test));
    if (mr_event_position(e) == 7) {
        assert_string_equal(mr_event_id(e), "0190d4a8-7b6c-7c3e-9f00-0123456789ab");
        assert_int_equal(mr_event_version(e), -3);
        assert_string_equal(mr_event_trace_id(e), "t");
        assert_string_equal(mr_event_correlation_id(e), "");
        assert_string_equal(mr_event_metadata(e), "{\"a\": 1}");
    } else {
        assert_string_equal(mr_event_id(e), "00000000-0000-7000-8000-000000000008");
        assert_int_equal(mr_event_version(e), 1);
        assert_null(mr_event_trace_id(e));
        assert_null(mr_event_metadata(e));
    }
    assert_null(mr_event_causation_id(e));
    ((diary *)user)->count++;
    return NULL;
}

static void events_have_their_fields(void **state)
{
    (void)state;
    diary d = {0};
    mr_consumer *consumer = mr_consumer_new("c");
    mr_consumer_on_event(consumer, look_at_fields, &d, NULL);
    mr_test *test = NULL;
    fine(mr_test_new(consumer, &test));
    d.test = test;
    refused(mr_test_field(test, "trace_id", "t"), MR_E_USAGE, "no event yet");
    int64_t at = 0;
    fine(mr_test_append(test, 7, "Order", "o-1", "Placed", "a\0b", 3, &at));
    assert_int_equal(at, 7);
    fine(mr_test_field(test, "event_id", "0190d4a8-7b6c-7c3e-9f00-0123456789ab"));
    fine(mr_test_field(test, "event_version", "-3"));
    fine(mr_test_field(test, "aggregate_version", "41"));
    fine(mr_test_field(test, "trace_id", "t"));
    fine(mr_test_field(test, "correlation_id", "")); /* empty is not absent */
    fine(mr_test_field(test, "metadata", "{\"a\": 1}"));
    refused(mr_test_field(test, "event_id", "x"), MR_E_PARSE, "not a UUID");
    refused(mr_test_field(test, "event_version", "99999999999"), MR_E_PARSE, "event_version");
    refused(mr_test_field(test, "aggregate_version", "0"), MR_E_PARSE, "aggregate_version");
    refused(mr_test_field(test, "metadata", "{"), MR_E_PARSE, "not JSON");
    refused(mr_test_field(test, "payload", "x"), MR_E_USAGE, "no field 'payload'");
    refused(mr_test_field(test, "colour", "x"), MR_E_USAGE, "no field 'colour'");
    refused(mr_test_field(test, "trace_id", NULL), MR_E_USAGE, "NULL");
    fine(mr_test_append(test, 0, "Order", "o-1", "Placed", "a\0b", 3, &at));
    assert_int_equal(at, 8);
    mr_test_settle(test);
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(d.count, 2);
    mr_test_free(test);
}

/* ---- Holes ---------------------------------------------------------------------------------- */

static void a_hole_blocks_until_it_is_filled_or_decided(void **state)
{
    (void)state;
    diary d = {0};
    mr_test *test = make(&d, false, NULL);
    append(test, 1, "o");
    append(test, 3, "o");
    append(test, 6, "o");
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_checkpoint(test), 1);
    assert_run(test, MR_TEST_BLOCKED);
    append(test, 2, "o"); /* commits late */
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_checkpoint(test), 3);
    assert_run(test, MR_TEST_BLOCKED);
    mr_test_settle(test);
    refused(mr_test_append(test, 4, "Order", "o", "Placed", NULL, 0, NULL), MR_E_STATE,
            "position 4 was decided");
    append(test, 8, "o");
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_checkpoint(test), 6);
    assert_run(test, MR_TEST_BLOCKED);
    append(test, 7, "o");
    assert_run(test, MR_TEST_COMMITTED);
    assert_written(test, "1 2 3 6 7 8");
    mr_test_free(test);
}

/* Whatever order events come in, each is handled once and in order, and none beyond a hole. */
static void any_order_of_commits(void **state)
{
    (void)state;
    rng r = rng_new(rng_seed());
    for (int round = 0; round < 20; round++) {
        diary d = {0};
        mr_test *test = make(&d, rng_chance(&r, 50), OPTIONS("batch_size", "7"));
        bool there[300] = {false};
        int64_t decided = 0, high = 0;
        size_t appended = 0;
        for (int i = 0; i < 400; i++) {
            int64_t position = 1 + (int64_t)rng_below(&r, 299);
            if (rng_chance(&r, 2)) {
                mr_test_settle(test);
                decided = high;
            } else if (!there[position] && position > decided && position < high + 20) {
                append(test, position, "o");
                there[position] = true;
                appended++;
                high = position > high ? position : high;
            }
            if (!rng_chance(&r, 30))
                continue;
            mr_test_outcome outcome = run(test);
            int64_t checkpoint = mr_test_checkpoint(test);
            for (int64_t p = decided + 1; p <= checkpoint; p++)
                assert_true(there[p]); /* nothing undecided was passed */
            if (outcome == MR_TEST_IDLE)
                assert_int_equal(checkpoint, high);
        }
        mr_test_settle(test);
        while (run(test) == MR_TEST_COMMITTED) {
        }
        assert_int_equal(d.count, appended);
        for (size_t i = 0; i < d.count; i++) {
            assert_true(there[d.seen[i]]);
            assert_true(i == 0 || d.seen[i] > d.seen[i - 1]);
        }
        mr_test_free(test);
    }
}

static void a_long_log_takes_many_windows(void **state)
{
    (void)state;
    diary d = {0};
    mr_test *test = make(&d, false, OPTIONS("batch_size", "1300"));
    for (int i = 1; i <= 2600; i++)
        append(test, 2 * i, "o");
    assert_run(test, MR_TEST_BLOCKED);
    mr_test_settle(test);
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_handled(test), 1300);
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_checkpoint(test), 5200);
    for (size_t i = 0; i < 2600; i++)
        assert_int_equal(d.seen[i], 2 * (int64_t)(i + 1));
    mr_test_free(test);
}

/* ---- Failures ------------------------------------------------------------------------------- */

static void a_poison_event_becomes_a_dead_letter(void **state)
{
    (void)state;
    for (int batch = 0; batch < 2; batch++) {
        diary d = {.bad = 3};
        mr_test *test = make(&d, batch == 1, OPTIONS("on_failure", "dead_letter"));
        append_many(test, 5);
        assert_run(test, MR_TEST_FAILED); /* the whole batch, then one by one */
        assert_int_equal(mr_test_handled(test), 0);
        assert_string_equal(mr_error_message(mr_test_error(test)), "3 is bad");
        assert_int_equal(mr_test_statement_count(test), 0);
        assert_run(test, MR_TEST_FAILED);
        assert_int_equal(mr_test_handled(test), 2); /* those before it are kept */
        assert_int_equal(mr_test_checkpoint(test), 2);
        assert_int_equal(mr_test_letter_count(test), 0);
        assert_run(test, MR_TEST_COMMITTED);
        assert_int_equal(mr_test_handled(test), 2);
        assert_int_equal(mr_test_checkpoint(test), 5);
        assert_null(mr_test_error(test));
        assert_int_equal(mr_test_letter_count(test), 1);
        assert_int_equal(mr_test_letter_position(test, 0), 3);
        assert_string_equal(mr_test_letter_error(test, 0), "3 is bad");
        assert_true(mr_test_letter_attempts(test, 0) > 0);
        assert_false(mr_test_letter_parked(test, 0));
        assert_int_equal(d.letters, 1);
        assert_written(test, "1 2 4 5");
        mr_test_free(test);
    }
}

static void later_events_of_the_stream_wait_behind_it(void **state)
{
    (void)state;
    diary d = {.bad = 2};
    mr_test *test =
        make(&d, false, OPTIONS("on_failure", "dead_letter", "dead_letter_order", "key"));
    append(test, 0, "a");
    append(test, 0, "b");
    append(test, 0, "a");
    append(test, 0, "b");
    while (run(test) != MR_TEST_IDLE) {
    }
    append(test, 0, "b");
    append(test, 0, "a");
    assert_run(test, MR_TEST_COMMITTED);
    assert_written(test, "1 3 6");
    assert_int_equal(mr_test_letter_count(test), 3);
    assert_int_equal(mr_test_letter_position(test, 1), 4);
    assert_true(mr_test_letter_parked(test, 1));
    assert_string_equal(mr_test_letter_error(test, 1), "");
    assert_int_equal(mr_test_letter_position(test, 2), 5);
    assert_int_equal(mr_test_letter_attempts(test, 2), 0);
    assert_int_equal(mr_test_letter_position(test, 3), 0); /* out of range */
    assert_string_equal(mr_test_letter_error(test, 3), "");
    mr_test_free(test);
}

static void a_pause_ends_by_resume_or_skip(void **state)
{
    (void)state;
    diary d = {.bad = 2};
    mr_test *test = make(&d, false, NULL);
    append_many(test, 3);
    assert_run(test, MR_TEST_FAILED);
    assert_false(mr_test_paused(test));
    assert_run(test, MR_TEST_PAUSED);
    assert_true(mr_test_paused(test));
    assert_int_equal(mr_test_handled(test), 1);
    size_t seen = d.count;
    assert_run(test, MR_TEST_PAUSED);
    assert_int_equal(d.count, seen);
    assert_string_equal(mr_error_message(mr_test_error(test)), "2 is bad");
    mr_test_resume(test); /* not mended: it fails again */
    assert_run(test, MR_TEST_FAILED);
    assert_run(test, MR_TEST_PAUSED);
    refused(mr_test_skip(test, 1), MR_E_USAGE, "not above the checkpoint");
    refused(mr_test_skip(test, 9), MR_E_USAGE, "no event");
    fine(mr_test_skip(test, 2));
    assert_run(test, MR_TEST_COMMITTED);
    assert_written(test, "1 3");
    assert_int_equal(mr_test_letter_count(test), 0);
    assert_int_equal(mr_test_checkpoint(test), 3);
    d.bad = 4;
    append_many(test, 1);
    assert_run(test, MR_TEST_PAUSED); /* alone, it is proven at once */
    d.bad = 0;
    mr_test_resume(test);
    assert_run(test, MR_TEST_COMMITTED);
    mr_test_free(test);
}

static void retries_wait_for_the_clock(void **state)
{
    (void)state;
    diary d = {.bad = 1, .retryable = true, .heals_after = 3};
    mr_test *test = make(&d, false, OPTIONS("retry_base_delay", "1s", "retry_max_delay", "1m"));
    int64_t began = mr_test_now(test);
    append_many(test, 1);
    for (int i = 0; i < 3; i++) {
        int64_t wait = (int64_t)SECOND << i;
        assert_run(test, MR_TEST_FAILED);
        assert_int_equal(mr_test_wait(test), wait);
        assert_run(test, MR_TEST_WAITING);
        mr_test_advance(test, wait - 1);
        mr_test_advance(test, -5); /* time does not go back */
        assert_run(test, MR_TEST_WAITING);
        assert_int_equal(d.failures, i + 1);
        mr_test_advance(test, 1);
    }
    assert_run(test, MR_TEST_COMMITTED);
    assert_int_equal(mr_test_now(test) - began, 7 * SECOND);
    assert_int_equal(d.count, 4);
    assert_written(test, "1");
    append_many(test, 2); /* what is over does not count for the next one */
    d.bad = 3;
    d.failures = 0;
    assert_run(test, MR_TEST_FAILED);
    assert_int_equal(mr_test_wait(test), SECOND);
    assert_int_equal(mr_test_checkpoint(test), 1); /* a whole batch again, not one by one */
    mr_test_free(test);
}

static void a_worker_would_stop(void **state)
{
    (void)state;
    diary d = {.bad = 1, .retryable = true};
    mr_test *test =
        make(&d, false, OPTIONS("on_failure", "fatal", "max_consecutive_failures", "2"));
    append_many(test, 1);
    assert_run(test, MR_TEST_FAILED);
    mr_test_advance(test, mr_test_wait(test));
    assert_run(test, MR_TEST_STOPPED);
    assert_run(test, MR_TEST_STOPPED);
    assert_true(mr_test_paused(test));
    d.code = MR_E_FATAL;
    mr_test_resume(test);
    assert_run(test, MR_TEST_STOPPED); /* by its own word, whatever on_failure says */
    mr_test_free(test);
}

static void a_slow_handler_runs_out_of_time(void **state)
{
    (void)state;
    diary d = {.takes = 20 * SECOND};
    mr_test *test = make(&d, false, OPTIONS("batch_timeout", "30s"));
    append_many(test, 3);
    assert_run(test, MR_TEST_FAILED);
    assert_int_equal(mr_error_code(mr_test_error(test)), MR_E_TIMEOUT);
    assert_int_equal(mr_test_statement_count(test), 0);
    d.takes = 0;
    mr_test_advance(test, mr_test_wait(test));
    assert_run(test, MR_TEST_COMMITTED);
    assert_written(test, "1 2 3");
    mr_test_free(test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_commits),
        cmocka_unit_test(filters_pass_over),
        cmocka_unit_test(events_have_their_fields),
        cmocka_unit_test(a_hole_blocks_until_it_is_filled_or_decided),
        cmocka_unit_test(any_order_of_commits),
        cmocka_unit_test(a_long_log_takes_many_windows),
        cmocka_unit_test(a_poison_event_becomes_a_dead_letter),
        cmocka_unit_test(later_events_of_the_stream_wait_behind_it),
        cmocka_unit_test(a_pause_ends_by_resume_or_skip),
        cmocka_unit_test(retries_wait_for_the_clock),
        cmocka_unit_test(a_worker_would_stop),
        cmocka_unit_test(a_slow_handler_runs_out_of_time),
    };
    return cmocka_run_group_tests_name("testkit", tests, NULL, NULL);
}
