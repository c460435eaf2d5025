/* What the tests of the kit for users' tests share: a handler that keeps a diary, shorthand. */
#ifndef TESTS_UNIT_TESTKIT_FIXTURE_H
#define TESTS_UNIT_TESTKIT_FIXTURE_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include "millrace/millrace.h"

#include <stdio.h>
#include <string.h>

enum { SECOND = 1000000 }; /* microseconds */

/* What the handler saw and what it is told to do. */
typedef struct diary {
    int64_t seen[4000];
    size_t count;
    int64_t bad;     /* fails at this position … */
    bool retryable;  /* … with an error of this kind */
    mr_code code;    /* 0 = MR_E_HANDLER */
    int heals_after; /* … unless it has failed so often, 0 = never heals */
    int failures;
    int frees, letters;
    mr_test *test;
    int64_t takes; /* microseconds it moves the clock by */
} diary;

static inline mr_error *note(mr_tx *tx, int64_t position)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%lld", (long long)position);
    const char *const values[] = {text, NULL};
    return mr_tx_exec(tx, "INSERT INTO t VALUES ($1, $2)", 2, values);
}

static inline mr_error *verdict(diary *d, int64_t position)
{
    if (d->takes > 0)
        mr_test_advance(d->test, d->takes);
    if (position != d->bad || (d->heals_after > 0 && d->failures >= d->heals_after))
        return NULL;
    d->failures++;
    return mr_error_new(d->code == MR_OK ? MR_E_HANDLER : d->code, d->retryable, "%lld is bad",
                        (long long)position);
}

static inline mr_error *on_event(mr_tx *tx, const mr_event *event, void *user)
{
    diary *d = user;
    int64_t position = mr_event_position(event);
    d->seen[d->count++ % 4000] = position;
    if (tx != NULL) {
        mr_error *error = note(tx, position);
        if (error != NULL)
            return error;
    }
    return verdict(d, position);
}

static inline mr_error *on_batch(mr_tx *tx, const mr_event *const *events, size_t count, void *user)
{
    for (size_t i = 0; i < count; i++) {
        mr_error *error = on_event(tx, events[i], user);
        if (error != NULL)
            return error;
    }
    return NULL;
}

static inline void freed(void *user)
{
    ((diary *)user)->frees++;
}

static inline void on_letter(void *user, const char *consumer, const mr_event *event,
                             const mr_error *error, int attempts)
{
    (void)consumer;
    (void)event;
    assert_non_null(error);
    assert_true(attempts > 0);
    ((diary *)user)->letters++;
}

/* ---- Shorthand ------------------------------------------------------------------------------ */

/* Wants no error, and says which one came. */
static inline void fine(mr_error *error)
{
    if (error != NULL)
        fail_msg("%s", mr_error_message(error));
}

static inline void refused(mr_error *error, mr_code code, const char *text)
{
    assert_non_null(error);
    assert_int_equal(mr_error_code(error), code);
    if (strstr(mr_error_message(error), text) == NULL)
        fail_msg("'%s' is not in '%s'", text, mr_error_message(error));
    mr_error_free(error);
}

/* Options as name, value, …, NULL. */
static inline mr_test *make(diary *d, bool batch, const char *const *options)
{
    mr_consumer *consumer = mr_consumer_new("c");
    if (batch)
        mr_consumer_on_batch(consumer, on_batch, d, NULL);
    else
        mr_consumer_on_event(consumer, on_event, d, NULL);
    mr_consumer_on_dead_letter(consumer, on_letter, d);
    for (; options != NULL && *options != NULL; options += 2)
        fine(mr_consumer_set(consumer, options[0], options[1]));
    mr_test *test = NULL;
    fine(mr_test_new(consumer, &test));
    d->test = test;
    return test;
}

#define OPTIONS(...) ((const char *const[]){__VA_ARGS__, NULL})

static inline void append(mr_test *test, int64_t position, const char *id)
{
    fine(mr_test_append(test, position, "Order", id, "Placed", "{}", 2, NULL));
}

static inline void append_many(mr_test *test, int count)
{
    for (int i = 0; i < count; i++)
        append(test, 0, "o");
}

static inline mr_test_outcome run(mr_test *test)
{
    mr_test_outcome outcome = MR_TEST_IDLE;
    fine(mr_test_run(test, &outcome));
    return outcome;
}

#define assert_run(test, wanted)                                                                   \
    assert_string_equal(mr_test_outcome_name(run(test)), mr_test_outcome_name(wanted))

/* The committed statements' first parameters, in order. */
static inline void assert_written(const mr_test *test, const char *wanted)
{
    char all[4096] = "";
    for (size_t i = 0; i < mr_test_statement_count(test); i++) {
        size_t used = strlen(all);
        (void)snprintf(all + used, sizeof(all) - used, "%s%s", i == 0 ? "" : " ",
                       mr_test_parameter(test, i, 0));
    }
    assert_string_equal(all, wanted);
}

#endif
